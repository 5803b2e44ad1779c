# What nodes, their memory and their links reach, before anything is measured on them. It leaves a
# table whatever the outcome; a probe that failed stops nobody.
if PROBED:

    rule probe:
        input:
            # ancient: a new point repeats no probe, unless it brings shapes of its own
            ancient(str(LEFT.points_table)),
        output:
            str(LEFT.probes),
            str(LEFT.hosts),
        log:
            str(LOGS.rule("probe")),
        threads: workflow.cores or 1
        resources:
            **{DEVICES: devices_of(PLAN.probe.ranks_per_node)},
            **PLAN.resources,
            nodes=PLAN.probe.nodes,
            tasks_per_node=PLAN.probe.ranks_per_node,
            runtime=PLAN.probe.minutes,
        params:
            plan=str(LEFT.probe_plan),
            asked=PLAN.probe_asked,
        shell:
            SCALING
            + " probe {params.plan:q} {output[0]:q} --logs "
            + quoted(LOGS.probe_ranks)
            + " > {log:q} 2>&1"
