"""A covering array: few layouts in which every two values of two axes meet."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Case = dict[str, Any]


def covering(possible: Sequence[Case]) -> list[Case]:
    """Cases of `possible` in which every pair meets that meets anywhere in it.

    Greedy: the case with the most new pairs next, the first of equals; so the array is the same
    for the same axes. It is within a factor of ln(pairs) of the smallest one.
    """
    rows = [sorted(case.items()) for case in possible]
    number = {item: n for n, item in enumerate(dict.fromkeys(itertools.chain(*rows)))}
    items = np.array([[number[item] for item in row] for row in rows], dtype=int)
    first, second = np.triu_indices(items.shape[1], 1)
    met = items[:, first] * len(number) + items[:, second]  # a number for each pair of a case
    missing = np.zeros(len(number) ** 2, dtype=bool)
    missing[met] = True
    chosen = []
    while missing.any():
        best = int(missing[met].sum(axis=1).argmax())
        chosen.append(possible[best])
        missing[met[best]] = False
    return chosen


def product(axes: Mapping[str, Sequence[Any]]) -> Iterator[Case]:
    """Every combination, the later axes changing faster."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))
