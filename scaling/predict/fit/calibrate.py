"""From measured rows to a calibration: fit each stack, then again without the rows it predicts."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from scaling.errors import InputError
from scaling.foreign.arrays import Flags, Words
from scaling.foreign.columns import Columns
from scaling.predict.cost.interval import HeldBack, band_of, one_fold, rough_of
from scaling.predict.cost.memory import memory_of, need_of
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
        found = _bands(group, seen, start, time, axes, _settings(points, group)[timed])
    return StackCalibration(
        framework=group.framework,
        cluster=group.cluster_name,
        rows_timed=int(timed.sum()),
        rows_out_of_memory=int(seen.out_of_memory.sum()),
        rows_with_peak_memory=int(np.isfinite(seen.peak_memory_bytes).sum()),
        parameters={**memory, **time},
        bands=found,
        seen={axis: tuple(sorted(set(values.tolist()))) for axis, values in axes.items()},
    )


def _prior_band() -> Band:
    """A handful of rows halves the data sheet's error, as far as published tables tell."""
    low, high = 0.6 * DATA_SHEET_BAND[0], 0.6 * DATA_SHEET_BAND[1]
    return Band(low=low, high=high, rows=0, own=0.055, shared=0.06)


def _bands(
    group: Group,
    seen: Observed,
    start: Mapping[str, float],
    fitted: Mapping[str, Fitted],
    axes: Mapping[str, npt.NDArray[np.generic]],
    settings: Words,
) -> dict[str, Band]:
    """Residuals of rows the fit has not seen: random folds, and whole values of an axis left out.

    World sizes are only ever predicted from smaller ones, as they are in use.
    """
    timed = np.flatnonzero(seen.timed)
    warm = {**start, **{name: one.value for name, one in fitted.items()}}

    def fold(held: Flags, rest: Flags) -> HeldBack:
        return _held_back(group, seen, start, warm, timed[rest], timed[held], settings[held])

    order = np.random.default_rng(0).permutation(len(timed)) % _FOLDS
    random = [fold(order == one, order != one) for one in range(_FOLDS)]
    bands = {"interpolation": band_of("interpolation", [one_fold(random)])}
    for axis, values in axes.items():
        folds = []
        for held, rest in _splits(axis, values):
            if held.sum() >= _FEWEST_HELD_BACK and rest.sum() >= _FEWEST_TO_FOLD:
                folds.append(fold(held, rest))
        if folds:
            bands[axis] = band_of(axis, folds)
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
    settings: Words,
) -> HeldBack:
    """The test rows, predicted by a fit on the others."""
    part = dataclasses.replace(
        group, rows=group.rows[fit_rows], features=group.features.take(fit_rows)
    )
    fitted = fit_time(part, seen.take(fit_rows), start, first_guess=warm)
    p = {**start, **{name: one.value for name, one in fitted.items()}}
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
        setting=settings,
    )


def _settings(points: Points, group: Group) -> Words:
    """What rows of a stack must share to be rivals at one size, as words (n,)."""
    parts = (points.model, points.world_size, points.seq_length, points.global_batch_size)
    columns = [part[group.rows].astype(str).tolist() for part in parts]
    return np.array(["|".join(row) for row in zip(*columns, strict=True)], dtype=object)
