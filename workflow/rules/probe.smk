# What nodes, their memory and their links reach, before anything is measured on them. It leaves a
# table whatever the outcome; a probe that failed stops nobody.
if PROBED:

    rule probe:
        input:
            # ancient: a new point repeats no probe, unless it brings shapes of its own
            ancient(f"{RESULTS}/points.parquet"),
        output:
            PROBES,
            f"{RESULTS}/hosts.json",
        log:
            f"{LOGS}/probe.log",
        threads: workflow.cores or 1
        resources:
            **{DEVICES: devices_of(PLAN.probe.ranks_per_node)},
            **PLAN.resources,
            nodes=PLAN.probe.nodes,
            tasks_per_node=PLAN.probe.ranks_per_node,
            runtime=PLAN.probe.minutes,
        params:
            plan=f"{RESULTS}/probe.json",
            asked=PLAN.probe_asked,
        shell:
            "{PYTHON:q} -m scaling probe {params.plan:q} {output[0]:q} > {log:q} 2>&1"
