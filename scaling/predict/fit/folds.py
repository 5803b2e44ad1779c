"""What fits of part of the rows say of the others: bands, trust and residual of a calibration.

Of rows the fit has not seen: random folds, and whole values of an axis left out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Flags, Floats, Strings
from scaling.predict.cost.interval import (
    COUNT_AXES,
    distance_beyond,
    layout_coordinates,
    layout_ranges,
    own_error_factor,
)
from scaling.predict.cost.memory import memory_of, need_of
from scaling.predict.cost.step import step_of
from scaling.predict.fit.bands import HeldBack, band_of, one_fold
from scaling.predict.fit.fitting import fit_cautiously, fit_time, moved
from scaling.predict.read.calibration import Fitted
from scaling.predict.read.features import Features, Group
from scaling.predict.read.observed import Observed
from scaling.predict.read.residual import (
    NOISES,
    chosen_noise,
    fitted_residual,
    is_worth,
    places_of,
)
from scaling.predict.read.trust import (
    LAYOUT,
    TRUSTS,
    UNTESTED,
    at_trust,
    chosen_trust,
    error_of,
    shrunk,
    untested_trust,
)

_FOLDS = 4
FEWEST_TO_FOLD = 8  # timed rows; below that a fold would fit on nothing
_FEWEST_HELD_BACK = 3
_MOST_VALUES = 3  # of one axis that are left out in turn


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Fold:
    """Rows held back from one fit, for each of TRUSTS; by noise, what neighbours are off by."""

    by_trust: list[HeldBack]
    nearby: dict[float, Floats]


def held_back_errors(
    group: Group,
    seen: Observed,
    start: Mapping[str, float],
    fitted: Mapping[str, Fitted],
    axes: Mapping[str, npt.NDArray[np.generic]],
    settings: Strings,
) -> dict[str, Any]:
    """What fits of part of the rows say of the others: bands, trust and residual of a calibration.

    Of rows the fit has not seen: random folds, and whole values of an axis left out.

    World sizes are only ever predicted from smaller ones, as they are in use. What is left out also
    says how far the fit is to be followed where a value is new, and whether what neighbours are off
    by makes a prediction better: within the rows, and by axis.
    """
    timed = np.flatnonzero(seen.timed)
    warm = moved(start, fitted)
    careful = {name: one.cautious or one.value for name, one in fitted.items()}
    places = places_of(group.features.take(timed))

    def held_back(p: Mapping[str, float], rows: Flags, fitted_rows: Flags) -> HeldBack:
        known = layout_ranges(group.features.take(timed[fitted_rows]))
        return _held_back(group, seen, p, timed[rows], settings[rows], known)

    def fold(held: Flags, rest: Flags) -> _Fold:
        part, part_seen = _rows_of(group, timed[rest]), seen.take(timed[rest])
        fitted = moved(start, fit_time(part, part_seen, start, first_guess=warm))
        cautious = fit_cautiously(part, part_seen, start, fitted, first_guess=careful)
        known = held_back(fitted, rest, rest).log_residual
        nearby = {
            noise: fitted_residual(places[rest], known, noise=noise).at(places[held])
            for noise in NOISES
        }
        by_trust = [
            held_back(shrunk(fitted, start, trust, cautious), held, rest) for trust in TRUSTS
        ]
        return _Fold(by_trust=by_trust, nearby=nearby)

    order = np.random.default_rng(0).permutation(len(timed)) % _FOLDS
    random = [fold(order == one, order != one) for one in range(_FOLDS)]
    trust = {}
    noise = chosen_noise(
        {
            noise: np.concatenate(
                [one.by_trust[-1].log_residual - one.nearby[noise] for one in random]
            )
            for noise in NOISES
        }
    )
    holds_in, within = _with_neighbours("interpolation", random, -1, 1.0, noise)
    kind = {
        "lean_kernels": group.stack.lean_kernels,
        "lossy_transport": group.cluster.lossy_transport,
    }
    bands = {"interpolation": band_of("interpolation", [one_fold(within)], **kind)}
    for at, share in enumerate(TRUSTS[:-1]):
        followed = [one_fold([one.by_trust[at] for one in random])]
        bands[at_trust(share)] = band_of("interpolation", followed, **kind)
    ways = {axis: _splits(axis, values) for axis, values in axes.items()}
    ways[LAYOUT] = _layout_splits(group.features.take(timed))
    for axis, splits in ways.items():
        folds = [
            fold(held, rest)
            for held, rest in splits
            if held.sum() >= _FEWEST_HELD_BACK and rest.sum() >= FEWEST_TO_FOLD
        ]
        if folds:
            by_trust = zip(*(one.by_trust for one in folds), strict=True)
            trust[axis] = chosen_trust(
                [np.concatenate([one.log_residual for one in held]) for held in by_trust]
            )
            at = TRUSTS.index(trust[axis])
            held = [one.by_trust[at] for one in folds]
            if holds_in:
                holds, held = _with_neighbours(axis, folds, at, trust[axis], noise)
                holds_in += holds
            bands[axis] = band_of(axis, held, **kind)
        elif holds_in:
            holds_in += (axis,)
    tested = [trust[axis] for axis in axes if axis in trust]
    trust[UNTESTED] = untested_trust(tested)
    residual = None
    if holds_in:
        everyone = np.ones(len(timed), dtype=bool)
        everything = held_back(warm, everyone, everyone)
        residual = fitted_residual(places, everything.log_residual, holds_in, noise=noise)
    sheet_error = error_of(np.concatenate([one.by_trust[0].log_residual for one in random]))
    return {"bands": bands, "trust": trust, "residual": residual, "sheet_error": sheet_error}


def _with_neighbours(
    axis: str, folds: list[_Fold], at: int, trust: float, noise: float
) -> tuple[tuple[str, ...], list[HeldBack]]:
    """(axis,) and the folds' rows less what neighbours tell, unless that harms; else () and all."""
    without = [fold.by_trust[at] for fold in folds]
    with_it = [
        dataclasses.replace(held, log_residual=held.log_residual - trust * fold.nearby[noise])
        for held, fold in zip(without, folds, strict=True)
    ]
    before, after = (
        np.concatenate([held.log_residual for held in each]) for each in (without, with_it)
    )
    # within the rows neighbours have to help; where a row is new they only must not have harmed
    helps = is_worth(before, after) if axis == "interpolation" else not is_worth(after, before)
    return ((axis,), with_it) if helps else ((), without)


def _splits(axis: str, values: npt.NDArray[np.generic]) -> list[tuple[Flags, Flags]]:
    """(rows held back, rows to fit on) for the values of one axis worth leaving out."""
    unique, counts = np.unique(
        values.astype(str) if axis == "model" else values, return_counts=True
    )
    if len(unique) < 2:
        return []
    if axis == "world_size":
        return [(values == v, values < v) for v in unique[-2:]]
    most = unique[np.argsort(-counts)][:_MOST_VALUES]
    return [(values == v, values != v) for v in most]


def _layout_splits(f: Features) -> list[tuple[Flags, Flags]]:
    """The same for layouts: the largest of each count from smaller ones, and each switch."""
    splits = []
    for name, values in layout_coordinates(f).items():
        for value in np.unique(values)[-1:] if name in COUNT_AXES else np.unique(values):
            rest = values < value if name in COUNT_AXES else values != value
            splits.append((values == value, rest))
    return splits


def _rows_of(group: Group, rows: npt.NDArray[np.int64]) -> Group:
    return dataclasses.replace(group, rows=group.rows[rows], features=group.features.take(rows))


def _held_back(
    group: Group,
    seen: Observed,
    p: Mapping[str, float],
    test_rows: npt.NDArray[np.int64],
    settings: Strings,
    known: Mapping[str, tuple[float, ...]],
) -> HeldBack:
    """The test rows, predicted by parameters that were fitted on others."""
    f = group.features.take(test_rows)
    memory = memory_of(group, f, p)
    step = step_of(group, f, p, memory.total / group.capacity_bytes)
    return HeldBack(
        log_residual=np.log(seen.step_time_s[test_rows] / step.total),
        roughness=own_error_factor(
            step.terms["tp_comm_s"] / step.total,
            need_of(memory, p) / group.capacity_bytes,
            lossy_transport=group.cluster.lossy_transport,
        ),
        beyond=distance_beyond(f, known),
        setting=settings,
    )
