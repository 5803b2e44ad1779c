# Turn tables into one self-contained page.
rule report:
    input:
        rules.tabulate.output,
        REPORT_SOURCES,
    output:
        # `snakemake --report` includes the page
        report(str(STUDY.report), category="Scaling", labels={"study": NAME}),
    log:
        str(LOGS.rule("report")),
    localrule: True
    shell:
        SCALING + " report " + quoted(RESULTS) + " --no-tables > {log:q} 2>&1"
