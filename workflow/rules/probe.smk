# Measure what nodes, memory and links reach, before any point. Leaves a table whatever the outcome:
# a failed probe stops nothing.
if HAS_PROBES:
    # Snakemake does not know what was asked of a probe that ended while it was dead: one of an
    # earlier plan is dated before everything that a probe follows from.
    asked = plan_file.read_json_object(STUDY.hosts).get("asked", PLAN.probe_asked)
    if asked != PLAN.probe_asked and STUDY.probes.exists():
        os.utime(STUDY.probes, (1, 1))

    rule probe:
        input:
            # ancient: new points repeat no probe, unless they have new shapes
            (
                ancient(str(STUDY.points_table))
                if asked == PLAN.probe_asked
                else str(STUDY.points_table)
            ),
        output:
            str(STUDY.probes),
            str(STUDY.hosts),
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
            plan=str(STUDY.probe_plan),
            asked=PLAN.probe_asked,
        shell:
            SCALING
            + " probe {params.plan:q} {output[0]:q} --logs "
            + quoted(LOGS.probe_ranks)
            + " > {log:q} 2>&1"
