"""From measured rows to a calibration: fit each stack, then again without the rows it predicts."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling.errors import InputError
from scaling.foreign.arrays import Flags, Floats, Words
from scaling.foreign.columns import Columns
from scaling.predict.cost.interval import COUNTS, beyond_of, range_of, rough_of, shown_of
from scaling.predict.cost.memory import memory_of, need_of
from scaling.predict.cost.model import axes_of
from scaling.predict.cost.step import step_of
from scaling.predict.fit.bands import HeldBack, band_of, one_fold
from scaling.predict.fit.coverage import settings_of
from scaling.predict.fit.fitting import fit_cautiously, fit_memory, fit_outcomes, fit_time
from scaling.predict.read.calibration import (
    DATA_SHEET_BAND,
    Band,
    Calibration,
    Fitted,
    StackCalibration,
)
from scaling.predict.read.features import Features, Group, Points
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
    chosen_trust,
    error_of,
    shrunk,
    untested_trust,
)

_FOLDS = 4
_FEWEST_TO_FOLD = 8  # timed rows; below that a fold would fit on nothing
_FEWEST_HELD_BACK = 3
_MOST_VALUES = 3  # of one axis that are left out in turn


def calibrate(
    points: Points,
    observed: Observed,
    *,
    source: str,
    bands: bool = True,
    probes: Mapping[str, Mapping[str, float]] | None = None,
) -> Calibration:
    """Fit every stack of a table.

    Memory first (from peaks, and from which rows ran), then step time given memory. With `bands`
    the fit is repeated without parts of the rows, which gives the error to expect; without, bands
    are those of a data sheet.

    Args:
        points: what was run.
        observed: what came of it, row for row.
        source: where the rows are from, kept in the file.
        bands: whether to spend the time on held-back folds.
        probes: parameters that microbenchmarks tell, by cluster: where the fit starts from and
            what it keeps where the rows say nothing.
    """
    stacks = {}
    for plain in points.groups:
        told = (probes or {}).get(plain.cluster_name, {})
        group = dataclasses.replace(plain, start={**plain.start, **told})
        seen = observed.take(group.rows)
        judged = seen.out_of_memory | np.isfinite(seen.peak_memory_bytes)
        if seen.timed.any() or judged.any() or seen.ran.any():
            stacks[group.key] = _calibrate_stack(group, seen, points, bands)
    return Calibration(source=source, stacks=stacks)


def one_fingerprint_per_stack(columns: Columns, points: Points) -> None:
    """Refuse to average over software that differs.

    Raises:
        InputError: rows of one framework and cluster carry different stack fingerprints.
    """
    if "stack_fingerprint" not in columns:
        return
    prints = columns.words("stack_fingerprint", "")
    for group in points.groups:
        found = sorted(set(prints[group.rows].tolist()) - {""})
        if len(found) > 1:
            raise InputError(
                f"{columns.source}: stack_fingerprint: {group.key} has {len(found)} of them; "
                f"choose one with --where \"stack_fingerprint = '{found[0]}'\""
            )


def _calibrate_stack(group: Group, seen: Observed, points: Points, bands: bool) -> StackCalibration:
    memory = fit_memory(group, seen, group.start)
    start = _moved(group.start, memory)
    time = fit_time(group, seen, start)
    cautious = fit_cautiously(group, seen, start, _moved(start, time))
    time = {
        name: dataclasses.replace(fitted, cautious=cautious[name]) for name, fitted in time.items()
    }
    timed = seen.timed
    axes = {axis: values[timed] for axis, values in axes_of(points, group).items()}
    held_back: dict[str, Any] = {"bands": {"interpolation": _prior_band()}}
    if bands:  # too few rows for a fold: nothing bears the fit out where a row is new
        held_back |= {"trust": {UNTESTED: 0.0}, "sheet_error": 0.0}
    if bands and timed.sum() >= _FEWEST_TO_FOLD:
        settings = _settings(points, group)[timed]
        held_back = _held_back_errors(group, seen, start, time, axes, settings)
    return StackCalibration(
        framework=group.framework,
        cluster=group.cluster_name,
        generation=group.gpu.generation,
        rows_timed=int(timed.sum()),
        rows_out_of_memory=int(seen.out_of_memory.sum()),
        rows_with_peak_memory=int(np.isfinite(seen.peak_memory_bytes).sum()),
        parameters={**memory, **time},
        seen={axis: tuple(sorted(set(values.tolist()))) for axis, values in axes.items()}
        | (range_of(group.features.take(np.flatnonzero(timed))) if timed.any() else {}),
        **held_back,
        outcomes=fit_outcomes(group, seen, group.start) if bands else {},
    )


def _prior_band() -> Band:
    """A handful of rows halves the data sheet's error, as far as published tables tell."""
    low, high = 0.6 * DATA_SHEET_BAND[0], 0.6 * DATA_SHEET_BAND[1]
    return Band(low=low, high=high, rows=0, own=0.055, shared=0.06)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Fold:
    """Rows held back from one fit, for each of `trusts`; by noise, what neighbours are off by."""

    by_trust: list[HeldBack]
    nearby: dict[float, Floats]


def _held_back_errors(
    group: Group,
    seen: Observed,
    start: Mapping[str, float],
    fitted: Mapping[str, Fitted],
    axes: Mapping[str, npt.NDArray[np.generic]],
    settings: Words,
) -> dict[str, Any]:
    """What fits of part of the rows say of the others: bands, trust and residual of a calibration.

    Of rows the fit has not seen: random folds, and whole values of an axis left out.

    World sizes are only ever predicted from smaller ones, as they are in use. What is left out also
    says how far the fit is to be followed where a value is new, and whether what neighbours are off
    by makes a prediction better: within the rows, and by axis.
    """
    timed = np.flatnonzero(seen.timed)
    warm = _moved(start, fitted)
    careful = {name: one.cautious or one.value for name, one in fitted.items()}
    places = places_of(group.features.take(timed))

    def held_back(p: Mapping[str, float], rows: Flags, fitted_rows: Flags) -> HeldBack:
        known = range_of(group.features.take(timed[fitted_rows]))
        return _held_back(group, seen, p, timed[rows], settings[rows], known)

    def fold(held: Flags, rest: Flags, trusts: Sequence[float] = (1.0,)) -> _Fold:
        part, part_seen = _rows_of(group, timed[rest]), seen.take(timed[rest])
        fitted = _moved(start, fit_time(part, part_seen, start, first_guess=warm))
        cautious = fitted
        if trusts == TRUSTS:
            cautious = fit_cautiously(part, part_seen, start, fitted, first_guess=careful)
        known = held_back(fitted, rest, rest).log_residual
        nearby = {
            noise: fitted_residual(places[rest], known, noise=noise).at(places[held])
            for noise in NOISES
        }
        by_trust = [
            held_back(shrunk(fitted, start, trust, cautious), held, rest) for trust in trusts
        ]
        return _Fold(by_trust=by_trust, nearby=nearby)

    order = np.random.default_rng(0).permutation(len(timed)) % _FOLDS
    random = [fold(order == one, order != one, (1.0, 0.0)) for one in range(_FOLDS)]
    of_fit, of_sheet = (
        np.concatenate([one.by_trust[at].log_residual for one in random]) for at in (0, 1)
    )
    trust = {}
    noise = chosen_noise(
        {
            noise: np.concatenate(
                [one.by_trust[0].log_residual - one.nearby[noise] for one in random]
            )
            for noise in NOISES
        }
    )
    holds_in, within = _with_neighbours("interpolation", random, 0, 1.0, noise)
    kind = {
        "lean_kernels": group.stack.lean_kernels,
        "lossy_transport": group.cluster.lossy_transport,
    }
    bands = {"interpolation": band_of("interpolation", [one_fold(within)], **kind)}
    ways = {axis: _splits(axis, values) for axis, values in axes.items()}
    ways[LAYOUT] = _layout_splits(group.features.take(timed))
    for axis, splits in ways.items():
        folds = [
            fold(held, rest, TRUSTS)
            for held, rest in splits
            if held.sum() >= _FEWEST_HELD_BACK and rest.sum() >= _FEWEST_TO_FOLD
        ]
        if folds:
            by_trust = zip(*(one.by_trust for one in folds), strict=True)
            trust[axis] = chosen_trust(
                [np.concatenate([one.log_residual for one in held]) for held in by_trust]
            )
            if axis == LAYOUT:
                continue
            at = TRUSTS.index(trust[axis])
            held = [one.by_trust[at] for one in folds]
            if holds_in:
                holds, held = _with_neighbours(axis, folds, at, trust[axis], noise)
                holds_in += holds
            bands[axis] = band_of(axis, held, **kind)
        elif holds_in and axis != LAYOUT:
            holds_in += (axis,)
    tested = [trust[axis] for axis in axes if axis in trust]
    trust[UNTESTED] = untested_trust(len(timed), of_sheet, of_fit, tested)
    residual = None
    if holds_in:
        everyone = np.ones(len(timed), dtype=bool)
        everything = held_back(warm, everyone, everyone)
        residual = fitted_residual(places, everything.log_residual, holds_in, noise=noise)
    sheet_error = error_of(of_sheet)
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
    for name, values in shown_of(f).items():
        for value in np.unique(values)[-1:] if name in COUNTS else np.unique(values):
            rest = values < value if name in COUNTS else values != value
            splits.append((values == value, rest))
    return splits


def _moved(start: Mapping[str, float], fitted: Mapping[str, Fitted]) -> dict[str, float]:
    """Every parameter after a fit that moved some."""
    return {**start, **{name: one.value for name, one in fitted.items()}}


def _rows_of(group: Group, rows: npt.NDArray[np.int64]) -> Group:
    return dataclasses.replace(group, rows=group.rows[rows], features=group.features.take(rows))


def _held_back(
    group: Group,
    seen: Observed,
    p: Mapping[str, float],
    test_rows: npt.NDArray[np.int64],
    settings: Words,
    known: Mapping[str, tuple[float, ...]],
) -> HeldBack:
    """The test rows, predicted by parameters that were fitted on others."""
    f = group.features.take(test_rows)
    memory = memory_of(group, f, p)
    step = step_of(group, f, p, memory.total / group.capacity_bytes)
    return HeldBack(
        log_residual=np.log(seen.step_time_s[test_rows] / step.total),
        roughness=rough_of(
            step.terms["tp_comm_s"] / step.total,
            need_of(memory, p) / group.capacity_bytes,
            lossy_transport=group.cluster.lossy_transport,
        ),
        beyond=beyond_of(f, known),
        setting=settings,
    )


def _settings(points: Points, group: Group) -> Words:
    """What rows of a stack must share to be rivals at one size, as words (n,)."""
    settings: Words = np.full(len(points), "", dtype=object)
    for key, rows in settings_of(points, np.ones(len(points), dtype=bool)).items():
        settings[rows] = "|".join(map(str, key))
    return settings[group.rows]
