# Memory and step time of every point, from data sheets where nothing has been measured yet.
rule predict:
    input:
        points=f"{RESULTS}/points.parquet",
        calibration=calibration(),
    output:
        f"{RESULTS}/predictions.parquet",
    log:
        f"{LOGS}/predict.log",
    localrule: True
    params:
        calibration=lambda wildcards, input: (
            f"--calibration {input.calibration}" if input.calibration else ""
        ),
        asked=PLAN.asked,
        clusters=PLAN.clusters,
    shell:
        "{PYTHON} -m scaling predict {input.points} {output} {params.calibration} > {log} 2>&1"
