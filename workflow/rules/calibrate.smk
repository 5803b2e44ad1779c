# What the rows say about this cluster, for the sizes that were not measured.
rule calibrate:
    input:
        rows(),
    output:
        f"{RESULTS}/calibration.json",
    log:
        f"{LOGS}/calibrate.log",
    localrule: True
    shell:
        "{PYTHON} -m scaling calibrate {RESULTS}/rows {output} > {log} 2>&1"
