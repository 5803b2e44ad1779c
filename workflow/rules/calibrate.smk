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
            ["--probes", str(input.probes)] if input.probes else []
        ),
        clusters=PLAN.clusters,
    shell:
        "{PYTHON:q} -m scaling calibrate {RESULTS:q}/rows {output:q} {params.probes:q} > {log:q} 2>&1"
