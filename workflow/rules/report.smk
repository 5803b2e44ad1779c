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
        "{PYTHON:q} -m scaling report {RESULTS:q} --no-tables > {log:q} 2>&1"
