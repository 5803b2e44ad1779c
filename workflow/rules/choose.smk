# A guided sweep: which points of a size are measured, by what the smaller sizes have shown. Ancient:
# a choice stands though a point of a smaller size is measured again.
checkpoint choose:
    input:
        ancient(f"{RESULTS}/points.parquet"),
        rows_below,
    output:
        f"{RESULTS}/chosen/{{size}}.parquet",
    log:
        f"{LOGS}/choose/{{size}}.log",
    localrule: True
    params:
        points=PLAN.asked,
        guide=PLAN.guide,
        clusters=PLAN.clusters,
    shell:
        "{PYTHON} -m scaling choose {PLAN.study:q} {wildcards.size} {output} {CHOSEN} > {log} 2>&1"
