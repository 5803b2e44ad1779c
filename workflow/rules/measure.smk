# Real training steps: the only rule that asks for GPUs. It leaves a row whatever the outcome.
rule measure:
    input:
        # ancient: a new point must not repeat the old ones
        ancient(str(LEFT.points_table)),
        probes_before,
    output:
        row("{point}"),
    log:
        str(LOGS.rule("measure/{point}")),
    priority: precedence
    # on one machine a point has all cores: two at once would measure each other
    threads: workflow.cores or 1
    resources:
        **{DEVICES: devices},
        **PLAN.resources,
        nodes=nodes,
        slurm_exclude=avoided,
        tasks_per_node=ranks_per_node,
        runtime=runtime_minutes,
    params:
        point=str(LEFT.point("{point}")),
    shell:
        SCALING + " measure {params.point:q} {output:q}"
        " --excluded={resources.slurm_exclude:q} > {log:q} 2>&1"
