# What ran on slow nodes only, of this size and smaller ones, runs once more on others.
checkpoint elsewhere:
    input:
        ancient(str(LEFT.points_table)),
        rows_before_elsewhere,
    output:
        update(str(LEFT.choice_elsewhere("{size}"))),
    log:
        str(LOGS.rule("contend/{size}.elsewhere")),
    wildcard_constraints:
        size=r"\d+",
    localrule: True
    params:
        points=PLAN.asked,
    shell:
        f"{CHOOSE} {{wildcards.size:q}} {{output:q}} --elsewhere > {{log:q}} 2>&1"


# Repeats where they decide: which layouts of a size run once more, by what their runs have shown.
# Ancient: a choice stands though an earlier run is measured again.
checkpoint contend:
    input:
        ancient(str(LEFT.points_table)),
        rows_before_repeat,
    output:
        # update: the old choice stands until the new one replaces it
        update(str(LEFT.choice_of_repeat("{size}", "{repeat}"))),
    log:
        str(LOGS.rule("contend/{size}.{repeat}")),
    wildcard_constraints:
        size=r"\d+",
    localrule: True
    params:
        points=PLAN.asked,
        contended=PLAN.contended,
    shell:
        CHOOSE + " {wildcards.size:q} {output:q} --repeat {wildcards.repeat:q}"
        " > {log:q} 2>&1"
