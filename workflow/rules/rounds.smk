# Rounds: choose points by the rows so far. These are ancient: a choice stands even if a point of an
# earlier round is measured again.
checkpoint next_points:
    input:
        ancient(str(STUDY.points_table)),
        rows_before_round,
    output:
        # update: the old choice stands until the new one replaces it
        update(str(STUDY.round("{round}"))),
    log:
        str(LOGS.rule("rounds/{round}")),
    wildcard_constraints:
        round=r"\d+",
    localrule: True
    params:
        points=PLAN.asked,
        rounds=PLAN.rounds,
        clusters=PLAN.clusters,
    shell:
        f"{NEXT} {{wildcards.round:q}} {{output:q}} > {{log:q}} 2>&1"
