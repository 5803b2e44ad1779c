# Guided sweeps: choose which points of a size are measured, by the rows of smaller sizes. These are
# ancient: a choice stands even if a point of a smaller size is measured again.
checkpoint choose:
    input:
        ancient(str(STUDY.points_table)),
        rows_below,
    output:
        # update: the old choice stands until the new one replaces it
        update(str(STUDY.choice("{size}"))),
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


# Guided sweeps: add points that the rows of the last choice make worth measuring.
checkpoint choose_again:
    input:
        ancient(str(STUDY.points_table)),
        rows_before_turn,
    output:
        update(str(STUDY.choice_again("{size}", "{turn}"))),
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
