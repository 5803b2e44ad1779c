# A guided sweep: which points of a size are measured, by what the smaller sizes have shown. Ancient:
# a choice stands though a point of a smaller size is measured again.
checkpoint choose:
    input:
        ancient(str(LEFT.points_table)),
        rows_below,
    output:
        # update: the old choice stands until the new one replaces it
        update(str(LEFT.choice("{size}"))),
    log:
        str(LOGS.rule("choose/{size}")),
    wildcard_constraints:
        size=r"\d+",
    localrule: True
    params:
        points=PLAN.asked,
        guide=PLAN.guide,
        clusters=PLAN.clusters,
    shell:
        f"{CHOOSE} {{wildcards.size:q}} {{output:q}} > {{log:q}} 2>&1"


# What the rows of a choice make worth measuring too.
checkpoint choose_again:
    input:
        ancient(str(LEFT.points_table)),
        rows_before_turn,
    output:
        update(str(LEFT.choice_again("{size}", "{turn}"))),
    log:
        str(LOGS.rule("choose/{size}.again{turn}")),
    wildcard_constraints:
        size=r"\d+",
        turn=r"\d+",
    localrule: True
    params:
        points=PLAN.asked,
        guide=PLAN.guide,
        clusters=PLAN.clusters,
    shell:
        f"{CHOOSE} {{wildcards.size:q}} {{output:q}} --again {{wildcards.turn:q}} > {{log:q}} 2>&1"
