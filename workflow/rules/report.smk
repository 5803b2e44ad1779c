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
        "{PYTHON} -m scaling report {RESULTS} --no-tables > {log} 2>&1"
