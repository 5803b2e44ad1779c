# Turn rows into tables: one SQL file per table.
rule tabulate:
    input:
        rows,
        chosen,
        probes(),
        predictions(),
        published(),
        str(STUDY.points_table),
        str(STUDY.refused),
        str(STUDY.study),
        SQL,
        FINDINGS,
    output:
        [str(STUDY.table(name)) for name in TABLES],
    log:
        str(LOGS.rule("tabulate")),
    localrule: True
    params:
        # digests of their content: a plan that changed while this ran triggers it again
        plan=PLAN.files,
        clusters=PLAN.clusters,
    shell:
        SCALING + " tabulate " + quoted(RESULTS) + " > {log:q} 2>&1"
