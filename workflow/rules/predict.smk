# Predict memory and step time of every point, from data sheets without a calibration.
rule predict:
    input:
        points=str(STUDY.points_table),
        calibration=calibration(),
    output:
        str(STUDY.predictions),
    log:
        str(LOGS.rule("predict")),
    localrule: True
    params:
        calibration=lambda wildcards, input: (
            ["--calibration", str(input.calibration)] if input.calibration else []
        ),
        asked=PLAN.asked,
        clusters=PLAN.clusters,
    shell:
        SCALING + " predict {input.points:q} {output:q} {params.calibration:q}"
        " > {log:q} 2>&1"
