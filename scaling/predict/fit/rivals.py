"""Layouts that compete: settings, repeats and pairs, the same whatever the order of the rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling.arrays import Flags, Floats
from scaling.predict.read.features import Points, places_among

Rows = npt.NDArray[np.int64]  # row numbers

# Pairs of one setting. Beyond, a random sample: its shares are off by 0.5 % at most.
_MOST_PAIRS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The timed rows of layouts that could replace each other, k layouts in m rows.

    Rows of one layout are its repeats. layouts: a row of each, in the order of `layout_numbers`,
    (k,). step_time_s: the median of each layout's repeats, (k,). rows: all of them, by layout, then
    by step time, (m,). repeats: how many each layout has, (k,).
    """

    layouts: Rows
    step_time_s: Floats
    rows: Rows
    repeats: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs of rows of one setting, of two layouts: `a` and `b`, (n,).

    `weight`: each setting has a total weight of its number of rows.
    """

    a: Rows
    b: Rows
    weight: Floats


def rows_by_setting(points: Points, rows: Flags | Rows) -> dict[tuple[Any, ...], list[int]]:
    """Row numbers by what candidates share: software, model, cluster, size and work."""
    software = (points.framework, points.model, points.cluster)
    size = (points.world_size, points.seq_length, points.global_batch_size)
    return rows_by((*software, *size, points.setting), rows)


def rows_by(
    columns: tuple[npt.NDArray[Any], ...], rows: Flags | Rows
) -> dict[tuple[Any, ...], list[int]]:
    """Row numbers by the values of the columns."""
    at = np.flatnonzero(rows) if rows.dtype == bool else rows
    by_key: dict[tuple[Any, ...], list[int]] = {}
    keys = zip(*(column[at].tolist() for column in columns), strict=True)
    for row, key in zip(at.tolist(), keys, strict=True):
        by_key.setdefault(key, []).append(row)
    return by_key


def layout_numbers(points: Points) -> Rows:
    """A number for each row, (n,), equal where all that is predicted from is equal.

    Numbers are in the order of stacks, models and features; -1 for rows that cannot be predicted.
    """
    numbers = np.full(len(points), -1, dtype=np.int64)
    taken = 0
    for group in sorted(points.groups, key=lambda group: group.key):
        code = np.zeros(len(group.rows), dtype=np.int64)
        names = (points.model[group.rows], points.setting[group.rows])
        for place in (*map(places_among, names), *group.features.places()):
            code = np.unique(code * len(code) + place, return_inverse=True)[1]
        numbers[group.rows] = taken + code
        taken += int(code.max()) + 1
    return numbers


def settings_of(
    points: Points, layouts: Rows, step_time_s: Floats, timed: Flags | Rows
) -> list[Setting]:
    """The settings of the timed rows; `layouts` are `layout_numbers`, (n,)."""
    at = np.flatnonzero(timed) if timed.dtype == bool else timed
    rows = at[np.lexsort((step_time_s[at], layouts[at]))]
    starts = np.flatnonzero(np.diff(layouts[rows], prepend=-2))
    ends = np.append(starts[1:], len(rows))
    repeats = ends - starts
    middle = step_time_s[rows[[starts + (repeats - 1) // 2, starts + repeats // 2]]].mean(axis=0)
    place = {row: number for number, row in enumerate(rows[starts].tolist())}
    settings = []
    for firsts in rows_by_setting(points, rows[starts]).values():
        of = np.array([place[row] for row in firsts])
        settings.append(
            Setting(
                layouts=np.array(firsts),
                step_time_s=middle[of],
                rows=np.concatenate([rows[starts[i] : ends[i]] for i in of.tolist()]),
                repeats=repeats[of],
            )
        )
    return settings


def regrets_of(settings: Sequence[Setting], pick: Callable[[Rows], Rows]) -> list[float]:
    """How much slower than the best layout the best of those picked is, per setting with several.

    `pick` is given a row of each layout, and answers with the places of its choices among them.
    """
    return [
        float(setting.step_time_s[pick(setting.layouts)].min() / setting.step_time_s.min() - 1)
        for setting in settings
        if len(setting.layouts) > 1
    ]


def pairs_of(settings: Sequence[Setting]) -> Pairs:
    """All pairs of rows of two layouts, or `_MOST_PAIRS` of a setting that has more pairs of rows.

    A sample is the same whatever the order of the table.
    """
    sides = [np.empty((3, 0))]
    for setting in settings:
        a, b = _pairs_of_setting(setting.repeats)
        if len(a):
            weight = np.full(len(a), len(setting.rows) / len(a))
            sides.append(np.stack([setting.rows[a], setting.rows[b], weight]))
    a, b, weight = np.concatenate(sides, axis=1)
    return Pairs(a=a.astype(np.int64), b=b.astype(np.int64), weight=weight)


def _pairs_of_setting(repeats: Rows) -> tuple[Rows, Rows]:
    """Pairs of places in the rows of a setting, whose layouts have so many repeats, in turn."""
    rows = int(repeats.sum())
    layout = np.repeat(np.arange(len(repeats)), repeats)
    if rows * (rows - 1) // 2 <= _MOST_PAIRS:
        a, b = np.triu_indices(rows, 1)
        apart = layout[a] != layout[b]
        return a[apart], b[apart]
    others = rows - repeats[layout]  # rows of other layouts
    if not others.any():
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    draw = np.random.default_rng(0)
    a = draw.choice(rows, _MOST_PAIRS, p=others / others.sum())
    after = np.cumsum(repeats)[layout[a]]  # the others begin here, and go on from the first row
    return a, (after + draw.integers(0, others[a])) % rows
