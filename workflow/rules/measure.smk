# Measure real training steps. Leaves a row whatever the outcome.
rule measure:
    input:
        # ancient: a new point must not make old ones run again
        ancient(str(STUDY.points_table)),
        probes_before,
    output:
        row("{point}"),
    log:
        str(LOGS.rule("measure/{point}")),
    priority: run_priority
    # on one machine a point gets all cores: two at once would disturb each other
    threads: workflow.cores or 1
    resources:
        **{DEVICES: devices},
        **PLAN.resources,
        nodes=nodes,
        slurm_exclude=excluded_hosts,
        tasks_per_node=ranks_per_node,
        runtime=runtime_minutes,
    params:
        point=str(STUDY.point("{point}")),
    shell:
        SCALING
        + " measure {params.point:q} {output:q}"
        + IMPLIED
        + " --excluded={resources.slurm_exclude:q} > {log:q} 2>&1"
