# The study's grid as files. A study that changed is planned again; points that stay the same keep
# their files, and rows do not depend on the time of this rule.
rule plan:
    output:
        f"{RESULTS}/points.parquet",
        f"{RESULTS}/refused.parquet",
        f"{RESULTS}/study.json",
    log:
        f"{LOGS}/plan.log",
    localrule: True
    params:
        points=grid.fingerprint(PLAN) + GUIDE,
        about=about(STUDY),
    shell:
        "{PYTHON} -m scaling plan {STUDY.path} {CHOSEN} > {log} 2>&1"
