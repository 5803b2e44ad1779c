# Rows to tables: one SQL file, one table.
rule tabulate:
    input:
        rows,
        chosen(),
        probes(),
        predictions(),
        published(),
        str(LEFT.points_table),
        str(LEFT.refused),
        str(LEFT.study),
        SQL,
        FINDINGS,
    output:
        [str(LEFT.table(name)) for name in TABLES],
    log:
        str(LOGS.rule("tabulate")),
    localrule: True
    params:
        # by content: a plan that was made anew while this ran is another one
        plan=PLAN.files,
        clusters=PLAN.clusters,
    shell:
        SCALING + " tabulate " + quoted(RESULTS) + " > {log:q} 2>&1"
