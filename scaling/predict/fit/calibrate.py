"""From measured rows to a calibration: fit each stack, then again without the rows it predicts."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from scaling.errors import InputError
from scaling.foreign.arrays import Flags, Floats
from scaling.foreign.columns import Columns
from scaling.predict.cost.interval import band_of
from scaling.predict.cost.memory import memory_of
from scaling.predict.cost.step import step_of
from scaling.predict.fit.fitting import fit_memory, fit_time
from scaling.predict.read.calibration import (
    DATA_SHEET_BAND,
    Band,
    Calibration,
    Fitted,
    StackCalibration,
)
from scaling.predict.read.features import Group, Points
from scaling.predict.read.observed import Observed

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
    start = {**group.start, **{name: fitted.value for name, fitted in memory.items()}}
    time = fit_time(group, seen, start)
    timed = seen.timed
    axes = {
        "world_size": points.world_size[group.rows][timed],
        "seq_length": points.seq_length[group.rows][timed],
        "model": points.model[group.rows][timed],
        "hidden_size": group.features.hidden_size[timed],
    }
    found = {"interpolation": _prior_band()}
    if bands and timed.sum() >= _FEWEST_TO_FOLD:
        found = _bands(group, seen, start, time, axes)
    return StackCalibration(
        framework=group.framework,
        cluster=group.cluster_name,
        generation=group.gpu.generation,
        rows_timed=int(timed.sum()),
        rows_out_of_memory=int(seen.out_of_memory.sum()),
        rows_with_peak_memory=int(np.isfinite(seen.peak_memory_bytes).sum()),
        parameters={**memory, **time},
        bands=found,
        seen={axis: tuple(sorted(set(values.tolist()))) for axis, values in axes.items()},
    )


def _prior_band() -> Band:
    """A handful of rows halves the data sheet's error, as far as published tables tell."""
    return Band(low=0.6 * DATA_SHEET_BAND[0], high=0.6 * DATA_SHEET_BAND[1], rows=0)


def _bands(
    group: Group,
    seen: Observed,
    start: Mapping[str, float],
    fitted: Mapping[str, Fitted],
    axes: Mapping[str, npt.NDArray[np.generic]],
) -> dict[str, Band]:
    """Residuals of rows the fit has not seen: random folds, and whole values of an axis left out.

    World sizes are only ever predicted from smaller ones, as they are in use.
    """
    timed = np.flatnonzero(seen.timed)
    warm = {**start, **{name: one.value for name, one in fitted.items()}}

    def residuals(held: Flags) -> Floats:
        return _held_back(group, seen, start, warm, timed[~held], timed[held])

    order = np.random.default_rng(0).permutation(len(timed)) % _FOLDS
    random = [residuals(order == fold) for fold in range(_FOLDS)]
    bands = {"interpolation": band_of(np.concatenate(random))}
    for axis, values in axes.items():
        folds = []
        for held, rest in _splits(axis, values):
            if held.sum() >= _FEWEST_HELD_BACK and rest.sum() >= _FEWEST_TO_FOLD:
                folds.append(_held_back(group, seen, start, warm, timed[rest], timed[held]))
        if folds:
            bands[axis] = band_of(np.concatenate(folds))
    return bands


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


def _held_back(
    group: Group,
    seen: Observed,
    start: Mapping[str, float],
    warm: Mapping[str, float],
    fit_rows: npt.NDArray[np.int64],
    test_rows: npt.NDArray[np.int64],
) -> Floats:
    """log(measured / predicted) of the test rows, fitted on the others."""
    part = dataclasses.replace(
        group, rows=group.rows[fit_rows], features=group.features.take(fit_rows)
    )
    fitted = fit_time(part, seen.take(fit_rows), start, first_guess=warm)
    p = {**start, **{name: one.value for name, one in fitted.items()}}
    f = group.features.take(test_rows)
    used = memory_of(group, f, p).total / group.capacity_bytes
    predicted = step_of(group, f, p, used).total
    return np.asarray(np.log(seen.step_time_s[test_rows] / predicted), dtype=np.float64)
