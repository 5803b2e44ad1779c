"""Calibrate on measured rows: fit each stack, and refit without some rows to learn its errors."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import log_ndtr
from threadpoolctl import threadpool_limits

from scaling.errors import InputError
from scaling.foreign.arrays import Flags, Floats, Strings
from scaling.foreign.columns import Columns
from scaling.predict.cost.interval import layout_ranges
from scaling.predict.cost.memory import memory_of, need_of
from scaling.predict.cost.memory_odds import KERNELS, kernel_columns
from scaling.predict.cost.model import axis_values
from scaling.predict.fit.fitting import fit_cautiously, fit_memory, fit_time, with_fitted
from scaling.predict.fit.folds import FEWEST_TO_FOLD, held_out_errors
from scaling.predict.fit.rivals import rows_by_setting
from scaling.predict.read.calibration import DATA_SHEET_BAND, Band, Calibration, StackCalibration
from scaling.predict.read.features import Group, Points
from scaling.predict.read.observed import Observed
from scaling.predict.read.trust import UNTESTED, UNTESTED_IN_FULL

_OUTCOME_FOLDS = 3
_FEWEST_OUTCOMES = 10  # of rows that ran, and of rows that did not
# Priors of the probit, normal: widths of the offset and of each kernel's addition to it, in
# ln(need); centre and width of ln(sigma).
_OFFSET_WIDTH, _KERNEL_WIDTH = 0.05, 0.06
_LOG_SIGMA_CENTRE, _LOG_SIGMA_WIDTH = float(np.log(0.1)), 0.4


def calibrate(
    points: Points,
    observed: Observed,
    *,
    source: str,
    bands: bool = True,
    probes: Mapping[str, Mapping[str, float]] | None = None,
) -> Calibration:
    """Fit every stack of a table: memory first, then step time given memory.

    Args:
        points: what was run.
        observed: its measurements, row for row.
        source: where the rows are from, kept in the file.
        bands: whether to refit without parts of the rows to learn the error to expect; without,
            bands are those of data sheets.
        probes: parameters from microbenchmarks, by cluster. The fit starts from them, and keeps
            them where the rows say nothing.
    """
    stacks = {}
    for group in points.groups:
        probed = (probes or {}).get(group.cluster_name, {})
        group = dataclasses.replace(group, start={**group.start, **probed})
        rows = observed.take(group.rows)
        if rows.tells.any():
            # on matrices so small threads only wait for each other, and their number changes digits
            with threadpool_limits(1, "blas"):
                stacks[group.key] = _calibrate_stack(group, rows, points, bands)
    return Calibration(source=source, stacks=stacks)


def one_fingerprint_per_stack(columns: Columns, points: Points, observed: Observed) -> None:
    """Refuse to average over different software. Rows that tell nothing to a fit may be of any.

    Raises:
        InputError: rows of one framework and cluster have different stack fingerprints.
    """
    for key, rows in _rows_by_fingerprint(columns, points, observed).items():
        if len(rows) > 1:
            raise InputError(
                f"{columns.source}: stack_fingerprint: {key} has {len(rows)} of them; "
                f"choose one with --where \"stack_fingerprint = '{min(rows)}'\""
            )


def of_commonest_fingerprints(columns: Columns, points: Points, observed: Observed) -> Flags:
    """Mask, (n,): all rows but those that would be averaged with more rows of other software."""
    kept = np.ones(len(columns), dtype=bool)
    for rows in _rows_by_fingerprint(columns, points, observed).values():
        commonest = max(sorted(rows), key=lambda name: len(rows[name]), default="")
        for name in rows.keys() - {commonest}:
            kept[rows[name]] = False
    return kept


def _rows_by_fingerprint(
    columns: Columns, points: Points, observed: Observed
) -> dict[str, dict[str, list[int]]]:
    """Row numbers that tell something to a fit, by stack and stated fingerprint."""
    if "stack_fingerprint" not in columns:
        return {}
    fingerprints = columns.strings("stack_fingerprint", "")
    stacks: dict[str, dict[str, list[int]]] = {}
    for group in points.groups:
        of_stack = stacks.setdefault(group.key, {})
        for row in group.rows[observed.take(group.rows).tells].tolist():
            if fingerprints[row]:
                of_stack.setdefault(fingerprints[row], []).append(row)
    return stacks


def _calibrate_stack(
    group: Group, observed: Observed, points: Points, bands: bool
) -> StackCalibration:
    memory = fit_memory(group, observed, group.start)
    start = with_fitted(group.start, memory)
    time = fit_time(group, observed, start)
    cautious = fit_cautiously(group, observed, start, with_fitted(start, time))
    time = {
        name: dataclasses.replace(fitted, cautious=cautious[name]) for name, fitted in time.items()
    }
    timed = observed.timed
    axes = {axis: values[timed] for axis, values in axis_values(points, group).items()}
    errors: dict[str, Any] = {"bands": {"interpolation": _prior_band()}}
    if bands and timed.sum() >= FEWEST_TO_FOLD:
        settings = _settings(points, group)[timed]
        errors = held_out_errors(group, observed, start, time, axes, settings)
    elif bands:  # without folds nothing supports the fit where a row is new
        errors |= {"trust": dict.fromkeys((UNTESTED, *UNTESTED_IN_FULL), 0.0), "sheet_error": 0.0}
    return StackCalibration(
        framework=group.framework,
        cluster=group.cluster_name,
        generation=group.gpu.generation,
        rows_timed=int(timed.sum()),
        rows_out_of_memory=int(observed.out_of_memory.sum()),
        rows_with_peak_memory=int(np.isfinite(observed.peak_memory_bytes).sum()),
        parameters={**memory, **time},
        seen={axis: tuple(sorted(set(values.tolist()))) for axis, values in axes.items()}
        | (layout_ranges(group.features.take(np.flatnonzero(timed))) if timed.any() else {}),
        **errors,
        outcomes=fit_outcomes(group, observed, group.start) if bands else {},
    )


def _prior_band() -> Band:
    """The band without folds: a handful of published rows halves the data sheet's error."""
    low, high = 0.6 * DATA_SHEET_BAND[0], 0.6 * DATA_SHEET_BAND[1]
    return Band(low=low, high=high, rows=0, own=0.055, shared=0.06)


def _settings(points: Points, group: Group) -> Strings:
    """Words, (n,), equal for rows of a stack that are rivals at one size."""
    settings: Strings = np.full(len(points), "", dtype=object)
    for key, rows in rows_by_setting(points, np.ones(len(points), dtype=bool)).items():
        settings[rows] = "|".join(map(str, key))
    return settings[group.rows]


def fit_outcomes(group: Group, observed: Observed, start: Mapping[str, float]) -> dict[str, float]:
    """Fit which memory needs run: a probit with priors, on rows held out of memory fits.

    Maximum a posteriori of `sigma`, `offset` and KERNELS (cost/memory_odds.py). Empty if fewer than
    `_FEWEST_OUTCOMES` rows ran, or ran out of memory.
    """
    rows = np.flatnonzero(observed.ran | observed.out_of_memory)
    out = observed.out_of_memory[rows]
    if min(out.sum(), (~out).sum()) < _FEWEST_OUTCOMES:
        return {}
    features = group.features
    need: Floats = np.zeros(len(rows))
    fold = np.random.default_rng(0).permutation(len(rows)) % _OUTCOME_FOLDS
    for one in range(_OUTCOME_FOLDS):
        held, rest = rows[fold == one], rows[fold != one]
        part = dataclasses.replace(group, rows=group.rows[rest], features=features.take(rest))
        p = with_fitted(start, fit_memory(part, observed.take(rest), start))
        need[fold == one] = need_of(memory_of(group, features.take(held), p), p)
    used = np.log(need / group.capacity_bytes)
    kernels = kernel_columns(features.take(rows))
    side = np.where(out, -1.0, 1.0)

    def loss(x: npt.NDArray[np.float64]) -> float:
        log_sigma, offset, of_kernels = x[0], x[1], x[2:]
        likelihood = log_ndtr(side * (offset + kernels @ of_kernels - used) / np.exp(log_sigma))
        prior = ((log_sigma - _LOG_SIGMA_CENTRE) / _LOG_SIGMA_WIDTH) ** 2
        prior += (offset / _OFFSET_WIDTH) ** 2 + ((of_kernels / _KERNEL_WIDTH) ** 2).sum()
        return float(prior / 2 - likelihood.sum())

    x = minimize(loss, np.array([_LOG_SIGMA_CENTRE, 0.0, *(0.0 for _ in KERNELS)])).x.tolist()
    return {"sigma": float(np.exp(x[0])), "offset": x[1], **dict(zip(KERNELS, x[2:], strict=True))}
