"""The headline: which layout to use at which sizes, and how much faster the last step trains."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from scaling.analyse.ties import NOISE_FLOOR, PREDICTED_FLOOR, UNSTATED_FLOOR
from scaling.layout.axes import AXES, DEFAULTS, REPLICA_AXES
from scaling.report.tables import Record, Tables
from scaling.report.text import SERIES_LABELS, listed, percent, times

Choices = Mapping[str, Any]  # a layout: its axes by name

MOST_WORDS = 30
FULL_COST = 0.95  # a step that returns this much of its cost is said to return all of it
_NUMBERS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight")
_ALWAYS_NAMED = ("zero_stage", "zero_shard_size")  # even where all layouts agree on them


class Stretch(NamedTuple):
    """An advised layout and the sizes it is advised for, both ends included."""

    layout: str
    from_size: int
    to_size: int


def headline(
    tables: Tables,
    stretches: Sequence[Stretch],
    choices: Mapping[str, Record],
) -> tuple[str, str]:
    """What to use where, and what the last step gains: the longest version within `MOST_WORDS`.

    Args:
        tables: those of one selection and series.
        stretches: by size; empty where nothing ran.
        choices: the decision's layouts by id, each with its axes.
    """
    if not stretches:
        return "", ""
    node = tables["settings"][0]["gpus_per_node"]
    advised = [choices[stretch.layout] for stretch in stretches]
    common, names = layout_phrases(advised, node)
    shared = other_choices(advised[0], shared_axes(advised, list(choices.values())), node)
    placed = _placed(names, stretches, tables)
    by_degrees = _placed(_names_by_degrees(advised, node), stretches, tables)
    by_change = _placed(names_by_change(advised, node), stretches, tables)
    full = _clause(common, shared, placed)
    clauses = [
        full + _rival(tables, choices, stretches[-1]),
        full,
        _clause(common, shared[:1], placed),
        _clause(common, [], placed),
        _clause("", shared, by_degrees),
        _clause("", [], by_degrees),
        _clause("", [], by_change),
    ]
    first, *others = stretches
    ending = last_step(tables["returns"], tables.series)
    versions = [(clause, ending) for clause in clauses]
    ends = [degrees(layout) for layout in (advised[0], advised[-1])]
    if ends[0] != ends[1]:
        changing = f"from {ends[0]} on {tables.gpus(first.from_size)} to {ends[1]}, changing "
        changing += f"at {listed([str(stretch.from_size) for stretch in others])}"
        versions.append((changing, ending))
    often = {1: "once", 2: "twice"}.get(len(others), f"{len(others)} times")
    sizes = f"between {first.from_size} and {tables.gpus(stretches[-1].to_size)}"
    versions.append((f"the layout to use changes {often} {sizes}", ending))
    most = MOST_WORDS - len(SERIES_LABELS[tables.series].split())
    return next(version for version in versions if len(" ".join(version).split()) <= most)


def _clause(common: str, shared: Sequence[str], placed: Sequence[str]) -> str:
    in_brackets = f" ({', '.join(shared)})" if shared else ""
    if common:
        body = f"{common}{in_brackets}, {', '.join(placed)}"
    else:
        name, _, where = placed[0].partition("\0")
        body = ", ".join([f"{name}{in_brackets}{where}", *placed[1:]])
    return body.replace("\0", "")


def _placed(names: Sequence[str], stretches: Sequence[Stretch], tables: Tables) -> list[str]:
    """Each layout with its sizes, a NUL between the two: `ZeRO-1<NUL> up to 64 GPUs`."""
    placed = []
    for number, (name, stretch) in enumerate(zip(names, stretches, strict=True)):
        last = number == len(names) - 1
        # only the first size is said with its unit
        size = str(stretch.to_size) if number else tables.gpus(stretch.to_size)
        if last and number:
            placed.append(f"then {name}\0")  # up to the largest size
        elif stretch.from_size == stretch.to_size:
            placed.append(f"{name}\0 on {size}")
        else:
            placed.append(f"{name}\0 up to {size}")
    return placed


def _rival(tables: Tables, choices: Mapping[str, Record], last: Stretch) -> str:
    """A layout of other degrees that ties with the advised one at the largest size; or nothing.

    It "may be faster" if its own rate was higher and only the noise makes it a tie.
    """
    tied = [
        row
        for row in tables["decision"]
        if row["world_size"] == last.to_size
        and row["within_noise"]
        and row["share_of_best"] >= 1 / (1 + PREDICTED_FLOOR)
    ]
    rivals = [row for row in tied if degrees(row) != degrees(choices[last.layout])]
    if not rivals:
        return ""
    name = degrees(max(rivals, key=lambda row: float(row["share_of_best"])))
    if not any(row["advised"] for row in tied):
        return f"; {name} may be faster at {last.to_size}"
    predicted = tables.series == "predicted"
    tie = "would tie" if predicted else "tie" if name.endswith("stages") else "ties"
    return f"; {name} {tie} at {last.to_size}"


def last_step(steps: Sequence[Record], series: str) -> str:
    """How much faster the last step trains; `steps` are rows of the table `returns`.

    Not as a share of its cost: out of the section about returns, `83 %` of it reads as a loss.
    """
    predicted = series == "predicted"
    if not steps:
        return f"Only one size {'is predicted' if predicted else 'ran'}: scaling is not known."
    step, returned = steps[-1], steps[-1]["step_return"]
    growth = step["to_world_size"] / step["from_world_size"]
    what = "The last doubling"
    if growth != 2:
        what = f"The step from {step['from_world_size']} to {step['to_world_size']}"
    faster = returned * (growth - 1)
    sure = return_end(step, "low") > 0
    if return_end(step, "high") < 0:
        change = "slower"
    elif faster <= NOISE_FLOOR:
        change = "no faster"
    elif faster < 0.995:
        change = f"{'' if sure else 'perhaps '}{percent(faster)} faster"
    else:
        sure &= returned < FULL_COST or returns_in_full(step["step_return_low"])
        change = f"{'' if sure else 'perhaps '}{times(1 + faster)} as fast"
    return f"{what} {'would make' if predicted else 'makes'} training {change}."


def returns_in_full(low: float | None) -> bool:
    """Whether a step that returned its full cost surely did, by the low end of what it returned."""
    return low is None or low >= FULL_COST - UNSTATED_FLOOR


def return_end(step: Record, end: Literal["low", "high"]) -> float:
    """An end of what a step may have returned of its cost, for sentences.

    At least as far out as the floor of the two rates (`scaling.analyse.ties`), because an interval
    of single runs leaves out what differs between runs.
    """
    stated = step[f"step_return_{end}"]  # None if the rates have no interval
    growth = step["to_world_size"] / step["from_world_size"]
    sign = 1 if end == "high" else -1
    noise = (1 + (UNSTATED_FLOOR if stated is None else NOISE_FLOOR)) ** sign
    floor = float(((1 + step["step_return"] * (growth - 1)) * noise - 1) / (growth - 1))
    return floor if stated is None else sign * max(sign * stated, sign * floor)


def layout_phrases(layouts: Sequence[Choices], gpus_per_node: int | None) -> tuple[str, list[str]]:
    """What the layouts share (empty where their degrees differ), and each by what differs.

    `("plain data parallelism", ["micro-batch 2", "micro-batch 1"])`,
    `("", ["plain data parallelism", "two pipeline stages"])`.
    """
    axes = differing_axes(layouts)
    if any(name in REPLICA_AXES for name in axes) or not axes:
        return "", [
            ", ".join([degrees(layout), *other_choices(layout, axes, gpus_per_node)])
            for layout in layouts
        ]
    return degrees(max(layouts, key=lambda layout: layout.get("ep") or 1)), [
        listed([words for name in axes if (words := choice(layout, name, gpus_per_node))])
        for layout in layouts
    ]


def degrees(choices: Choices) -> str:
    """How one replica is cut: `plain data parallelism`, `tensor parallel 2 with four stages`."""
    tp, pp, cp = (choices.get(name) or 1 for name in ("tp", "pp", "cp"))
    parts = []
    if tp > 1:
        parts.append(f"tensor parallel {tp}")
    if pp > 1:
        stages = _NUMBERS[pp] if pp < len(_NUMBERS) else pp
        parts.append(f"{stages} pipeline stages")
    if cp > 1:
        parts.append(f"context parallel {cp}")
    parts += [
        AXES[name].text.name.format(choices[name])
        for name in REPLICA_AXES
        if name not in ("tp", "pp", "cp") and choices.get(name) not in (None, DEFAULTS[name])
    ]
    if not parts:
        # experts that are spread over the replicas make it less than plain
        return "data parallelism" if (choices.get("ep") or 1) > 1 else "plain data parallelism"
    return " with ".join([parts[0], listed(parts[1:])] if parts[1:] else parts)


def choice(choices: Choices, axis: str, gpus_per_node: int | None) -> str:
    """One choice that is no degree: `ZeRO-3`, `sharded inside the node`, `micro-batch 2`."""
    value = choices.get(axis)
    if value is None:
        sharded = axis == "zero_shard_size" and choices.get("zero_stage")
        return "sharded over all" if sharded else ""
    if axis == "zero_stage":
        return f"ZeRO-{value}"
    if axis == "zero_shard_size":
        inside = value == gpus_per_node
        return "sharded inside the node" if inside else f"sharded over {value}"
    if axis == "engine":
        return f"{value} engine"
    axis_text = AXES[axis].text
    if value in (False, "none"):
        return f"no {axis_text.title}"
    return axis_text.name.format(value)


def other_choices(choices: Choices, axes: Sequence[str], gpus_per_node: int | None) -> list[str]:
    """The choices on these axes in words, without degrees and without what is switched off."""
    return [
        choice(choices, name, gpus_per_node)
        for name in AXES
        if name in axes
        and name not in REPLICA_AXES
        and choices.get(name) not in (None, "none")
        and choices.get(name) is not False  # ZeRO-0 is a choice, though 0 == False
        and choices.get(AXES[name].text.needs_degree or "") != 1
    ]


def differing_axes(layouts: Iterable[Choices]) -> list[str]:
    """The axes on which the layouts differ. Null is unknown, unless the axis has it as a choice."""
    layouts = list(layouts)
    return [
        name
        for name, axis in AXES.items()
        if len({layout.get(name) for layout in layouts} - (set() if axis.optional else {None})) > 1
    ]


def shared_axes(advised: Sequence[Choices], rivals: Sequence[Choices]) -> list[str]:
    """The axes that all advised layouts agree on and that are worth naming once.

    ZeRO always; another axis where a rival chose otherwise.
    """
    telling = {*differing_axes([*advised, *rivals]), *_ALWAYS_NAMED}
    differing = differing_axes(advised)
    return [name for name in AXES if name in telling and name not in (*differing, *REPLICA_AXES)]


def _names_by_degrees(advised: Sequence[Choices], gpus_per_node: int | None) -> list[str]:
    """Each layout by its degrees alone, or by all that differs where neighbours share degrees."""
    names = [degrees(layout) for layout in advised]
    distinct = all(name != following for name, following in itertools.pairwise(names))
    return names if distinct else layout_phrases(advised, gpus_per_node)[1]


def names_by_change(advised: Sequence[Choices], gpus_per_node: int | None) -> list[str]:
    """Each layout by its degrees, or by the first choice that changes where they stay."""
    names = [degrees(layout) for layout in advised]
    for number, (before, after) in enumerate(itertools.pairwise(advised), start=1):
        if degrees(before) == degrees(after):
            changed = differing_axes([before, after])
            # two published layouts, of which one states a choice and the other does not
            same = "the same as far as stated"
            names[number] = choice(after, changed[0], gpus_per_node) if changed else same
    return names
