"""A covering array: few layouts in which every two values of two axes meet."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Case = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairs(case: Case) -> set[Pair]:
    """Every two values that meet in this case."""
    return set(itertools.combinations(sorted(case.items()), 2))


def covering(possible: Sequence[Case]) -> list[Case]:
    """Cases of `possible` in which every pair meets that meets anywhere in it.

    Greedy: the case with the most new pairs next, the first of equals; so the array is the same
    for the same axes. It is within a factor of ln(pairs) of the smallest one.
    """
    left = {index: pairs(case) for index, case in enumerate(possible)}
    missing = set().union(*left.values())
    chosen = []
    while missing:
        best = max(left, key=lambda index: len(left[index] & missing))
        chosen.append(possible[best])
        missing -= left.pop(best)
    return chosen


def product(axes: Mapping[str, Sequence[Any]]) -> Iterator[Case]:
    """Every combination, the later axes changing faster."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))
