# Rows to tables: one SQL file, one table.
rule tabulate:
    input:
        rows,
        chosen(),
        probes(),
        predictions(),
        published(),
        f"{RESULTS}/points.parquet",
        f"{RESULTS}/refused.parquet",
        f"{RESULTS}/study.json",
        SQL,
        FINDINGS,
    output:
        expand(f"{RESULTS}/tables/{{table}}.parquet", table=TABLES),
    log:
        f"{LOGS}/tabulate.log",
    localrule: True
    params:
        # by content: a plan that was made anew while this ran is another one
        plan=PLAN.files,
        clusters=PLAN.clusters,
    shell:
        "{PYTHON:q} -m scaling tabulate {RESULTS:q} > {log:q} 2>&1"
