# Fit the prediction to rows and probes of this cluster, for sizes that were not measured.
rule calibrate:
    input:
        rows,
        points=str(STUDY.points_table),
        probes=probes(),
    output:
        str(STUDY.calibration),
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
        + quoted(STUDY.rows)
        + " {output:q} --points {input.points:q}"
        " {params.probes:q} > {log:q} 2>&1"
