# What rows and probes say about this cluster, for the sizes that were not measured.
rule calibrate:
    input:
        rows,
        probes=probes(),
    output:
        f"{RESULTS}/calibration.json",
    log:
        f"{LOGS}/calibrate.log",
    localrule: True
    params:
        probes=lambda wildcards, input: (
            f"--probes {input.probes}" if input.probes else ""
        ),
        clusters=PLAN.clusters,
    shell:
        "{PYTHON} -m scaling calibrate {RESULTS}/rows {output} {params.probes} > {log} 2>&1"
