# Tables to one self-contained page.
rule report:
    input:
        rules.tabulate.output,
        REPORT_SOURCES,
    output:
        # `snakemake --report` holds the page too
        report(str(LEFT.report), category="Scaling", labels={"study": NAME}),
    log:
        str(LOGS.rule("report")),
    localrule: True
    shell:
        SCALING + " report " + quoted(RESULTS) + " --no-tables > {log:q} 2>&1"
