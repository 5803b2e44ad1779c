# Layouts of this size and smaller ones that only ran on slow nodes run once more on others.
checkpoint elsewhere:
    input:
        ancient(str(STUDY.points_table)),
        rows_before_elsewhere,
    output:
        update(str(STUDY.choice_elsewhere("{size}"))),
    log:
        str(LOGS.rule("contend/{size}.elsewhere")),
    wildcard_constraints:
        size=r"\d+",
    localrule: True
    params:
        points=PLAN.asked,
    shell:
        f"{CHOOSE} {{wildcards.size:q}} {{output:q}} --elsewhere > {{log:q}} 2>&1"


# Contenders: choose which layouts of a size run once more, by the rows of their earlier runs. These
# are ancient: a choice stands even if an earlier run is measured again.
checkpoint contend:
    input:
        ancient(str(STUDY.points_table)),
        rows_before_repeat,
    output:
        # update: the old choice stands until the new one replaces it
        update(str(STUDY.choice_of_repeat("{size}", "{repeat}"))),
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
