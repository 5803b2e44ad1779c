"""A layout in the words of a sentence: what layouts share is said once, then only what differs."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scaling.layout.axes import AXES, DEFAULTS, REPLICA_AXES
from scaling.report.text.numbers import listed

Choices = Mapping[str, Any]

_NUMBERS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight")
_ALWAYS = ("zero_stage", "zero_shard_size")  # said of a layout though all others agree on it


def spelled(number: int) -> str:
    """Small counts as words: `two`, `16`."""
    return _NUMBERS[number] if number < len(_NUMBERS) else str(number)


def degrees(choices: Choices) -> str:
    """How one replica is cut: `plain data parallelism`, `tensor parallel 2 with four stages`."""
    parts = []
    tp, pp, cp = (choices.get(name) or 1 for name in ("tp", "pp", "cp"))
    if tp > 1:
        parts.append(f"tensor parallel {tp}")
    if pp > 1:
        parts.append(f"{spelled(pp)} pipeline stages")
    if cp > 1:
        parts.append(f"context parallel {cp}")
    others = [name for name in REPLICA_AXES if name not in ("tp", "pp", "cp")]
    parts += [
        AXES[name].text.name.format(choices[name]) for name in others if _chosen(choices, name)
    ]
    if not parts:
        return "plain data parallelism"
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
    axis_words = AXES[axis].text
    if value in (False, "none"):
        return f"no {axis_words.title}"
    return axis_words.name.format(value)


def differing(layouts: Iterable[Choices]) -> list[str]:
    """The axes on which these layouts differ, in the order in which people say them."""
    layouts = list(layouts)
    return [name for name in AXES if len({each.get(name) for each in layouts} - unknown(name)) > 1]


def unknown(axis: str) -> set[None]:
    """What says nothing of an axis: null, but where null is a choice."""
    return set() if AXES[axis].optional else {None}


def rest(choices: Choices, axes: Sequence[str], gpus_per_node: int | None) -> list[str]:
    """The words of these axes, degrees left out; what is off goes without saying."""
    chosen = (name for name in AXES if name in axes and name not in REPLICA_AXES)
    return [
        choice(choices, name, gpus_per_node)
        for name in chosen
        # ZeRO-0 is a choice, though 0 is no other than false
        if choices.get(name) not in (None, "none")
        and choices.get(name) is not False
        and choices.get(AXES[name].text.needs_degree or "") != 1
    ]


def shared_axes(advised: Sequence[Choices], rivals: Sequence[Choices]) -> list[str]:
    """The axes that are the same in all advised layouts and worth saying once.

    ZeRO always; another one where a rival chose otherwise.
    """
    same = [name for name in AXES if name not in differing(advised) and name not in REPLICA_AXES]
    telling = {*differing([*advised, *rivals]), *_ALWAYS}
    return [name for name in same if name in telling]


def plainer(advised: Sequence[Choices], gpus_per_node: int | None) -> list[str]:
    """The same layouts by their degrees alone; by all that differs where those do not tell them."""
    names = [degrees(each) for each in advised]
    differ = all(one != other for one, other in itertools.pairwise(names))
    return names if differ else phrases(advised, gpus_per_node)[1]


def stepwise(advised: Sequence[Choices], gpus_per_node: int | None) -> list[str]:
    """Each layout by its degrees, or where those stay by the first thing that changes."""
    names = [degrees(each) for each in advised]
    for number, (before, after) in enumerate(itertools.pairwise(advised), start=1):
        if degrees(before) == degrees(after):
            names[number] = choice(after, differing([before, after])[0], gpus_per_node)
    return names


def phrases(advised: Sequence[Choices], gpus_per_node: int | None) -> tuple[str, list[str]]:
    """What the advised layouts share (empty where their degrees differ), and each by what differs.

    `("plain data parallelism", ["micro-batch 2", "micro-batch 1"])`,
    `("", ["plain data parallelism", "two pipeline stages"])`.
    """
    unlike = differing(advised)
    if any(name in REPLICA_AXES for name in unlike) or not unlike:
        return "", [
            ", ".join([degrees(each), *rest(each, unlike, gpus_per_node)]) for each in advised
        ]
    return degrees(advised[0]), [
        listed([words for name in unlike if (words := choice(each, name, gpus_per_node))])
        for each in advised
    ]


def _chosen(choices: Choices, axis: str) -> bool:
    return choices.get(axis) not in (None, DEFAULTS[axis])
