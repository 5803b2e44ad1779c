# Tables to one self-contained page.
rule report:
    input:
        rules.tabulate.output,
        REPORT_SOURCES,
    output:
        f"{RESULTS}/report.html",
    log:
        f"{LOGS}/report.log",
    localrule: True
    shell:
        "{PYTHON:q} -m scaling report {RESULTS:q} --no-tables > {log:q} 2>&1"
