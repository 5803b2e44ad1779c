# What rows and probes say about this cluster, for the sizes that were not measured.
rule calibrate:
    input:
        rows,
        points=str(LEFT.points_table),
        probes=probes(),
    output:
        str(LEFT.calibration),
    log:
        str(LOGS.rule("calibrate")),
    localrule: True
    params:
        probes=lambda wildcards, input: (
            ["--probes", str(input.probes)] if input.probes else []
        ),
        clusters=PLAN.clusters,
    shell:
        SCALING
        + " calibrate "
        + quoted(LEFT.rows)
        + " {output:q} --points {input.points:q}"
        " {params.probes:q} > {log:q} 2>&1"
