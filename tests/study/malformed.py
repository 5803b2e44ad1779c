"""Studies with one mistake each, and the words of the sentence that tells it."""

import yaml

from tests.conftest import STUDY


def changed(**changes):
    return yaml.safe_dump({**STUDY, **changes})


def measure(**keys):
    return changed(measure=keys)


def axes(**changes):
    return changed(axes={**STUDY["axes"], **changes})


def without(*names):
    return changed(axes={k: v for k, v in STUDY["axes"].items() if k not in names})


MALFORMED = {
    "not YAML": ("a: [1, 2", "one.yaml: line 1, column 9: not valid YAML: expected ',' or ']'"),
    "a key twice": ("kind: weak\nkind: weak", "not valid YAML: the key 'kind' is written twice"),
    "unsafe YAML": ("!!python/object/apply:os.getcwd []", "not valid YAML: could not determine"),
    "an empty file": ("", "one.yaml: is empty; it must hold keys and values"),
    "no title": ("kind: strong", "one.yaml: title: is missing"),
    "a numeric title": (changed(title=3), "title=3: must be text"),
    "an unknown kind": (changed(kind="stronk"), "kind='stronk': did you mean 'strong'?"),
    "an unknown key": (
        changed(layout=[{}]),
        "layout: unknown key 'layout': did you mean 'layouts'?",
    ),
    "an unknown axis in a block": (
        changed(layouts=[{}, {"zero": 1}]),
        "layouts[1].zero: unknown key 'zero': did you mean 'zero_stage'?",
    ),
    "no layouts": (changed(layouts=[]), "layouts=[]: must not be empty"),
    "a size of text": (
        axes(world_size="eight"),
        "axes.world_size[0]='eight': must be a whole number",
    ),
    "a boolean size": (axes(pp=True), "axes.pp[0]=True: must be a whole number"),
    "a size of zero": (axes(world_size=[1, 0]), "axes.world_size[1]=0: must be at least 1"),
    "an absurd size": (
        axes(seq_length=10**12),
        "axes.seq_length[0]=1000000000000: must be at most 10000000",
    ),
    "an unknown stage": (axes(zero_stage=4), "axes.zero_stage[0]=4: allowed: 0, 1, 2, 3"),
    "an unknown model": (
        axes(model="minni"),
        "axes.model: unknown model 'minni': did you mean 'mini'?",
    ),
    "an unknown cluster": (
        axes(cluster="hier"),
        "axes.cluster: unknown cluster 'hier': did you mean 'here'?",
    ),
    "two clusters measured": (
        axes(cluster=["here", "there"]),
        "axes.cluster=['here', 'there']: a study with mode: measure runs on one",
    ),
    "a model that is nowhere": (axes(model="../../x"), "model=../../x: there is no config.json"),
    "no world size": (
        without("world_size"),
        "axes.world_size: is missing, and layouts[0] does not give it either",
    ),
    "the batch of the other kind": (
        axes(batch_size_per_gpu=2),
        "axes.batch_size_per_gpu=[2]: kind: strong fixes global_batch_size instead",
    ),
    "a weak study with a global batch": (
        changed(kind="weak"),
        "axes.global_batch_size=[8]: kind: weak fixes batch_size_per_gpu instead",
    ),
    "too few steps": (measure(measured_steps=9), "measure.measured_steps=9: must be at least 10"),
    "more steps at the least than at the most": (
        measure(measured_steps={"at_least": 30, "at_most": 20}),
        "measure.measured_steps: at_least=30: must not be more than at_most=20",
    ),
    "steps that are no number": (
        measure(measured_steps="many"),
        "measure.measured_steps='many': must be a whole number, or {at_least, at_most, until}",
    ),
    "a probe that is said as YAML 1.1 does": (
        changed(probe="no"),
        "probe='no': must be true or false, or {world_size, time_limit_s}",
    ),
    "repeats for everybody": (
        measure(repeats={"at_most": 3, "for": "all"}),
        "measure.repeats.for='all': allowed: contenders",
    ),
    "endless time": (
        measure(time_limit_s=float("inf")),
        "measure.time_limit_s=inf: must be a finite number",
    ),
    "a grid of nothing": (
        axes(tp=8, world_size=8),
        "layouts: the grid holds no point that can run: num_heads=4",
    ),
    "a grid above its limit": (
        changed(max_points=1),
        "layouts: the grid holds 2 points, more than max_points=1",
    ),
    "an alias bomb": (
        "a0: &a0 [1]\n"
        + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 15))
        + changed(axes={}).replace("axes: {}", "axes: {tp: *a14}"),
        "axes.tp[0]=[[[",
    ),
    "brackets in brackets": ("a: " + "[" * 900, "not valid YAML: maximum recursion depth"),
    "a book of comments": ("# nothing\n" * 100_000, "has more than 250,000 bytes"),
    "5,000 digits": (changed() + f"max_points: {'7' * 5000}\n", "Exceeds the limit"),
    "a long name": (axes(cluster="m" * 300), "a name is letters"),
    "a long key": (changed(**{"k" * 300: 1}), "unknown key 'kkkk"),
    "a title with an escape": (changed(title="a\x1b[2Jb"), "one line without control characters"),
    "yes for a number": (
        changed(measure={}).replace("measure: {}", "measure: {gradient_clipping: yes}"),
        "measure.gradient_clipping='yes': must be a number",
    ),
    "an octal number": (
        changed() + "max_points: 010\n",
        "max_points='010': must be a whole number",
    ),
    "minutes for seconds": (
        changed(measure={}).replace("measure: {}", "measure: {time_limit_s: 1:30}"),
        "measure.time_limit_s='1:30': must be a number",
    ),
    "a key that is a number": ("1: 2", "title: is missing (2 more problems in this file)"),
    "a key that is a fraction": ("1.5: 2", "the key 1.5 must be text or a whole number"),
    "null for an axis": (changed(layouts=[{"tp": None}]), "layouts[0].tp[0]=null: must be a whole"),
    "more repeats than points": (
        changed(measure={"repeats": 100}, max_points=150),
        "the grid holds 200 points, more than max_points=150",
    ),
}
