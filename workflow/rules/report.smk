# Tables to one self-contained page.
rule report:
    input:
        rules.tabulate.output,
        REPORT_SOURCES,
    output:
        str(LEFT.report),
    log:
        str(LOGS.rule("report")),
    localrule: True
    shell:
        SCALING + " report " + quoted(RESULTS) + " --no-tables > {log:q} 2>&1"
