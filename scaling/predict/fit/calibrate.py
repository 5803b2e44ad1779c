"""From measured rows to a calibration: fit each stack, then again without the rows it predicts."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import log_ndtr

from scaling.errors import InputError
from scaling.foreign.arrays import Floats, Strings
from scaling.foreign.columns import Columns
from scaling.predict.cost.interval import layout_ranges
from scaling.predict.cost.memory import memory_of, need_of
from scaling.predict.cost.memory_odds import KERNELS, kernel_columns
from scaling.predict.cost.model import axis_values
from scaling.predict.fit.coverage import settings_of
from scaling.predict.fit.fitting import fit_cautiously, fit_memory, fit_time, moved
from scaling.predict.fit.folds import FEWEST_TO_FOLD, held_back_errors
from scaling.predict.read.calibration import (
    DATA_SHEET_BAND,
    Band,
    Calibration,
    StackCalibration,
)
from scaling.predict.read.features import Group, Points
from scaling.predict.read.observed import Observed
from scaling.predict.read.trust import (
    UNTESTED,
)

_OUTCOME_FOLDS = 3
_FEWEST_OUTCOMES = 10  # that ran, and that did not: below it the prior says more
# Before any outcome: the offset and what a kernel adds to it, ln(need); ln(sigma) and its width.
_OFFSET_BEFORE, _KERNEL_BEFORE = 0.05, 0.06
_LOG_SIGMA_BEFORE, _LOG_SIGMA_WIDTH = float(np.log(0.1)), 0.4


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
    prints = columns.strings("stack_fingerprint", "")
    for group in points.groups:
        found = sorted(set(prints[group.rows].tolist()) - {""})
        if len(found) > 1:
            raise InputError(
                f"{columns.source}: stack_fingerprint: {group.key} has {len(found)} of them; "
                f"choose one with --where \"stack_fingerprint = '{found[0]}'\""
            )


def _calibrate_stack(group: Group, seen: Observed, points: Points, bands: bool) -> StackCalibration:
    memory = fit_memory(group, seen, group.start)
    start = moved(group.start, memory)
    time = fit_time(group, seen, start)
    cautious = fit_cautiously(group, seen, start, moved(start, time))
    time = {
        name: dataclasses.replace(fitted, cautious=cautious[name]) for name, fitted in time.items()
    }
    timed = seen.timed
    axes = {axis: values[timed] for axis, values in axis_values(points, group).items()}
    held_back: dict[str, Any] = {"bands": {"interpolation": _prior_band()}}
    if bands:  # too few rows for a fold: nothing bears the fit out where a row is new
        held_back |= {"trust": {UNTESTED: 0.0}, "sheet_error": 0.0}
    if bands and timed.sum() >= FEWEST_TO_FOLD:
        settings = _settings(points, group)[timed]
        held_back = held_back_errors(group, seen, start, time, axes, settings)
    return StackCalibration(
        framework=group.framework,
        cluster=group.cluster_name,
        generation=group.gpu.generation,
        rows_timed=int(timed.sum()),
        rows_out_of_memory=int(seen.out_of_memory.sum()),
        rows_with_peak_memory=int(np.isfinite(seen.peak_memory_bytes).sum()),
        parameters={**memory, **time},
        seen={axis: tuple(sorted(set(values.tolist()))) for axis, values in axes.items()}
        | (layout_ranges(group.features.take(np.flatnonzero(timed))) if timed.any() else {}),
        **held_back,
        outcomes=fit_outcomes(group, seen, group.start) if bands else {},
    )


def _prior_band() -> Band:
    """A handful of rows halves the data sheet's error, as far as published tables tell."""
    low, high = 0.6 * DATA_SHEET_BAND[0], 0.6 * DATA_SHEET_BAND[1]
    return Band(low=low, high=high, rows=0, own=0.055, shared=0.06)


def _settings(points: Points, group: Group) -> Strings:
    """What rows of a stack must share to be rivals at one size, as words (n,)."""
    settings: Strings = np.full(len(points), "", dtype=object)
    for key, rows in settings_of(points, np.ones(len(points), dtype=bool)).items():
        settings[rows] = "|".join(map(str, key))
    return settings[group.rows]


def fit_outcomes(group: Group, seen: Observed, start: Mapping[str, float]) -> dict[str, float]:
    """How need tells what fits, of rows held back from fits of memory: a probit with a prior.

    Maximum a posteriori of `sigma`, `offset` and of KERNELS (cost/memory_odds.py); empty where
    fewer than 10 rows ran or ran out of memory.
    """
    rows = np.flatnonzero(seen.ran | seen.out_of_memory)
    out = seen.out_of_memory[rows]
    if min(out.sum(), (~out).sum()) < _FEWEST_OUTCOMES:
        return {}
    need: Floats = np.zeros(len(rows))
    fold = np.random.default_rng(0).permutation(len(rows)) % _OUTCOME_FOLDS
    for one in range(_OUTCOME_FOLDS):
        held, rest = rows[fold == one], rows[fold != one]
        features = group.features
        part = dataclasses.replace(group, rows=group.rows[rest], features=features.take(rest))
        p = moved(start, fit_memory(part, seen.take(rest), start))
        need[fold == one] = need_of(memory_of(group, features.take(held), p), p)
    used = np.log(need / group.capacity_bytes)
    kernels = kernel_columns(group.features.take(rows))
    side = np.where(out, -1.0, 1.0)

    def loss(x: npt.NDArray[np.float64]) -> float:
        odds = log_ndtr(side * (x[1] + kernels @ x[2:] - used) / np.exp(x[0])).sum()
        before = ((x[0] - _LOG_SIGMA_BEFORE) / _LOG_SIGMA_WIDTH) ** 2
        before += (x[1] / _OFFSET_BEFORE) ** 2 + ((x[2:] / _KERNEL_BEFORE) ** 2).sum()
        return float(before / 2 - odds)

    x = minimize(loss, np.array([_LOG_SIGMA_BEFORE, 0.0, *(0.0 for _ in KERNELS)])).x.tolist()
    return {"sigma": float(np.exp(x[0])), "offset": x[1], **dict(zip(KERNELS, x[2:], strict=True))}
