"""The headline: what to use where, in at most 30 words, and what the last step buys."""

from collections.abc import Mapping, Sequence
from typing import Any

from scaling.analyse.ties import NOISE_FLOOR, PREDICTED_FLOOR
from scaling.report.tables import Record, Tables
from scaling.report.text.layouts import degrees, phrases, plainer, rest, shared_axes, stepwise
from scaling.report.text.numbers import listed, percent
from scaling.report.text.words import counted, opening

MOST_WORDS = 30
ALL_OF_IT = 0.95


def headline(
    tables: Tables,
    stretches: Sequence[Any],
    steps: Sequence[Any],
    choices: Mapping[str, Record],
    kind: str,
    words: Mapping[str, str],
) -> tuple[str, str]:
    """What to use where, and what the last step buys: the longest version within `MOST_WORDS`.

    Args:
        tables: of one selection and series.
        stretches: `advice.Stretch`, by size; empty where nothing ran.
        steps: `advice.Step`, by size.
        choices: the decision's layouts by id, each with its axes.
        kind: the series, as measured or predicted.
        words: for GPUs.
    """
    if not stretches:
        return "", ""
    node = tables["settings"][0]["gpus_per_node"]
    advised = [choices[one.layout] for one in stretches]
    common, names = phrases(advised, node)
    shared = rest(advised[0], shared_axes(advised, list(choices.values())), node)
    placed = _placed(names, stretches, words)
    ending = _last_step(steps, kind)
    rival = _as_fast(tables, choices, stretches[-1], kind)
    plain = _placed(plainer(advised, node), stretches, words)
    first, *others = stretches
    by_steps = _placed(stepwise(advised, node), stretches, words)
    briefly = ending.replace(" of its money's worth", "").replace(" buy", " return")
    ends = [degrees(each) for each in (advised[0], advised[-1])]
    changing = f"from {ends[0]} on {counted(first.from_size, words)} to {ends[1]}, changing at "
    changing += listed([str(one.from_size) for one in others])
    often = {1: "once", 2: "twice"}.get(len(others), f"{len(others)} times")
    sizes = f"between {first.from_size} and {counted(stretches[-1].to_size, words)}"
    versions = [
        (_clause(common, shared, placed) + rival, ending),
        (_clause(common, shared, placed), ending),
        (_clause(common, shared[:1], placed), ending),
        (_clause(common, [], placed), ending),
        (_clause("", shared, plain), ending),
        (_clause("", [], plain), ending),
        (_clause("", [], by_steps), ending),
        (_clause("", [], by_steps), briefly),
        *([(_clause("", [], [changing]), briefly)] if ends[0] != ends[1] else []),
        (_clause("", [], [f"the layout to use changes {often} {sizes}"]), ending),
    ]
    most = MOST_WORDS - len(opening(kind).split())
    return next(one for one in versions if len(" ".join(one).split()) <= most)


def _clause(common: str, shared: Sequence[str], placed: Sequence[str]) -> str:
    in_brackets = f" ({', '.join(shared)})" if shared else ""
    if common:
        body = f"{common}{in_brackets}, {', '.join(placed)}"
    else:
        name, _, where = placed[0].partition("\0")
        body = ", ".join([f"{name}{in_brackets}{where}", *placed[1:]])
    return body.replace("\0", "")


def _placed(names: Sequence[str], stretches: Sequence[Any], words: Mapping[str, str]) -> list[str]:
    """Each layout with its sizes; a NUL parts the name from them."""
    placed = []
    for number, (name, stretch) in enumerate(zip(names, stretches, strict=True)):
        last = number == len(names) - 1
        if last and number:
            placed.append(f"then {name}\0")  # up to the largest size
        elif stretch.from_size == stretch.to_size:
            placed.append(f"{name}\0 on {_size(number, stretch.to_size, words)}")
        else:
            placed.append(f"{name}\0 up to {_size(number, stretch.to_size, words)}")
    return placed


def _size(number: int, size: int, words: Mapping[str, str]) -> str:
    """`64 GPUs` where a sentence first names a size, `128` after it."""
    return str(size) if number else counted(size, words)


def _as_fast(tables: Tables, choices: Mapping[str, Record], last: Any, kind: str) -> str:
    """A layout of other degrees that is not told from the advised one at the largest size.

    One that gave more than the advised, though not surely, is not called as fast.
    """
    here = [
        row
        for row in tables["decision"]
        if row["world_size"] == last.to_size
        and row["within_noise"]
        and row["share_of_best"] >= 1 / (1 + PREDICTED_FLOOR)
    ]
    own = degrees(choices[last.layout])
    others = [row for row in here if degrees(row) != own]
    if not others:
        return ""
    name = degrees(max(others, key=lambda row: float(row["share_of_best"])))
    if not any(row["advised"] for row in here):
        return f"; {name} may be faster at {last.to_size}"
    verb = "would be" if kind == "predicted" else "are" if name.endswith("stages") else "is"
    return f"; {name} {verb} as fast at {last.to_size}"


def _last_step(steps: Sequence[Any], kind: str) -> str:
    """What the last step buys of its money's worth."""
    would = kind == "predicted"
    if not steps:
        return f"Only one size {'is predicted' if would else 'ran'}: no return."
    step = steps[-1]
    doubling = step.to_size == 2 * step.from_size
    what = "The last doubling" if doubling else f"The step from {step.from_size}"
    if (step.high if step.high is not None else step.returned + NOISE_FLOOR) < 0:
        return f"{what} {'would make' if would else 'makes'} training slower."
    if step.returned >= ALL_OF_IT:
        return f"{what} {'would buy' if would else 'buys'} its money's worth."
    share = f"{percent(step.returned)} of its money's worth"
    if step.returned <= NOISE_FLOOR:
        share = "nothing"
    return f"{what} {'would buy' if would else 'buys'} {share}."
