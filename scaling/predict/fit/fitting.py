"""Fit the parameters of one stack: robust least squares on log memory and log step time."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares, minimize

from scaling.arrays import Floats
from scaling.predict.cost.interval import DATA_SHEETS
from scaling.predict.cost.memory import memory_of
from scaling.predict.cost.risk import (
    NEARLY_FULL,
    crosses_nodes,
    stall_terms,
    stalls_of,
)
from scaling.predict.cost.step import step_of
from scaling.predict.read.calibration import Fitted
from scaling.predict.read.features import Features, Group
from scaling.predict.read.observed import Observed
from scaling.predict.read.parameters import MEMORY, STALL_ODDS, TIME, Parameter
from scaling.predict.read.residual import NOISE, likeliest, places_of, represented

# Standard deviation of a row's ln(step time) around the best formulas: repeats of one layout differ
# by 0.3 to 5 %, and formulas leave as much.
TIME_NOISE = 0.06
MEMORY_NOISE = 0.05
# Layouts that are alike share what formulas leave: as much as data sheets' errors.
_SHARED_ERROR = math.sqrt(sum(sigma**2 for sigma in DATA_SHEETS[True].values()))
# Width of the allocator's transition from fit to out of memory, log scale.
FIT_NOISE = 0.02
ON_BOUND = "on its bound"
_DIFFERENCE = 1e-6  # step of finite differences, in ln(parameter)
# A parameter is identified if its posterior is narrower than this share of its prior.
_IDENTIFIED_BELOW = 0.8
# Width of the Cauchy loss, in standard deviations.
_CAUCHY_WIDTH = 3.0

# Parameters by name: a number, or an array with a value for each row of each copy.
_Values = Mapping[str, Any]
# Residuals of `copies` of the rows, one after the other, for several sets of parameters at once.
_Residuals = Callable[[_Values, int], Floats]


def fit_memory(group: Group, observed: Observed, start: Mapping[str, float]) -> dict[str, Fitted]:
    """Fit memory parameters to measured peaks, and to which rows ran or ran out of memory.

    A row with a peak pulls its prediction to it; one without pushes its prediction to its side of
    the capacity.
    """
    peak = observed.peak_memory_bytes
    has_peak = np.isfinite(peak) & (peak > 0)
    out = observed.out_of_memory
    has_outcome = (observed.ran & ~has_peak) | out
    log_peak = np.log(np.where(has_peak, peak, 1.0))
    # both outcomes have the same total weight, however many rows had each
    same_outcome = np.where(out, out.sum(), has_outcome.sum() - out.sum())
    weight: Floats = np.sqrt(has_outcome.sum() / np.maximum(2 * same_outcome, 1))

    def residuals(p: _Values, copies: int) -> Floats:
        rows = np.tile(np.arange(len(peak)), copies)
        total = memory_of(group, group.features.take(rows), p).total
        off = np.where(has_peak[rows], np.log(total) - log_peak[rows], 0.0) / MEMORY_NOISE
        used = np.log(total * p["fragmentation"] / group.capacity_bytes) / FIT_NOISE
        side = np.where(out[rows], -used, used)
        wrong = np.where(has_outcome[rows], np.logaddexp(0.0, np.clip(side, -200, 200) + 0.5), 0.0)
        return np.asarray(_robust(off) + weight[rows] * _robust(wrong))

    rows = len(peak) if (has_peak | has_outcome).any() else 0
    return _solve(MEMORY, residuals, start, rows)


def fit_time(group: Group, observed: Observed, start: Mapping[str, float]) -> dict[str, Fitted]:
    """Fit time parameters to measured steps, with memory already fitted in `start`.

    The prior is centred on `start`. Formulas err alike on layouts that are alike, so many rows of
    one kind tell little more than one. Generalised least squares take this into account, with the
    correlation of the residual process (read/residual.py). A robust fit that takes rows as
    independent comes first: rows far from it, which stalled, hardly count.
    """
    timed = np.flatnonzero(observed.timed)
    f = group.features.take(timed)
    log_measured = np.log(observed.step_time_s[timed])
    used = memory_of(group, f, start).total / group.capacity_bytes

    @functools.cache  # searches ask for few numbers of copies, again and again
    def copied(copies: int) -> tuple[Features, Floats, Floats]:
        rows = np.tile(np.arange(len(timed)), copies)
        return f.take(rows), used[rows], log_measured[rows]

    def off(p: _Values, copies: int) -> Floats:
        features, used_rows, log_rows = copied(copies)
        return np.asarray(np.log(step_of(group, features, p, used_rows).total) - log_rows)

    def independent(p: _Values, copies: int) -> Floats:
        return _robust(off(p, copies) / TIME_NOISE)

    fitted = _solve(TIME, independent, start, len(timed))
    if not len(timed):
        return fitted
    far = off(with_fitted(start, fitted), 1) / (TIME_NOISE * _CAUCHY_WIDTH)
    noise = _SHARED_ERROR * NOISE**0.5 * (1 + far**2)
    factor = _SHARED_ERROR * represented(places_of(f))[1] / noise[:, None]
    to_z = likeliest(factor)

    def correlated(p: _Values, copies: int) -> Floats:
        errors = off(p, copies).reshape(copies, -1) / noise
        z = errors @ to_z.T
        return np.concatenate([errors - z @ factor.T, z], axis=1)

    return _solve(TIME, correlated, start, len(timed))


def _robust(r: Floats) -> Floats:
    """Residuals whose squares are a Cauchy loss, so that stalled steps do not decide the fit."""
    return np.asarray(np.sign(r) * _CAUCHY_WIDTH * np.sqrt(np.log1p((r / _CAUCHY_WIDTH) ** 2)))


def _solve(
    parameters: tuple[Parameter, ...],
    residuals: _Residuals,
    start: Mapping[str, float],
    rows: int,
) -> dict[str, Fitted]:
    """Maximum a posteriori in log space, with intervals from the Gauss-Newton curvature."""
    prior = np.log([start[q.name] for q in parameters])
    spread = np.array([q.spread for q in parameters])
    low = np.log([q.low for q in parameters]) - 1e-9
    high = np.log([q.high for q in parameters]) + 1e-9

    def at(sets: Floats) -> Floats:
        """Residuals (k, rows) at k sets of ln(parameters)."""
        if not rows:
            return np.zeros((len(sets), 0))
        arrays = {q.name: np.repeat(np.exp(sets[:, i]), rows) for i, q in enumerate(parameters)}
        return residuals({**start, **arrays}, len(sets)).reshape(len(sets), -1)

    def rows_and_prior(x: Floats) -> Floats:
        return np.concatenate([at(x[None])[0], (x - prior) / spread])

    def jacobian_at(x: Floats) -> Floats:
        """All forward differences in one call, ten times as fast as one after the other."""
        at_x, *at_nudged = at(x + _DIFFERENCE * np.eye(len(x) + 1, len(x), -1))
        of_rows = (np.array(at_nudged) - at_x).T / _DIFFERENCE
        return np.concatenate([of_rows, np.diag(1 / spread)])

    solution = least_squares(
        rows_and_prior,
        np.clip(prior, low + 1e-6, high - 1e-6),
        jac=jacobian_at,
        bounds=(low, high),
        x_scale=np.maximum(spread, 0.05),
        max_nfev=60,
    )
    jacobian = np.asarray(solution.jac, dtype=np.float64)
    posterior = np.sqrt(np.diag(np.linalg.pinv(jacobian.T @ jacobian)))
    fitted = {}
    for q, at_most, narrowed in zip(parameters, solution.x, posterior / spread, strict=True):
        value, factor = float(np.exp(at_most)), float(np.exp(1.96 * narrowed * q.spread))
        reasons = {
            "rows say no more than the prior": narrowed >= _IDENTIFIED_BELOW,
            ON_BOUND: min(np.log(value / q.low), np.log(q.high / value)) < 1e-3,
        }
        reason = next((reason for reason, holds in reasons.items() if holds), "")
        fitted[q.name] = Fitted(
            value=float(np.clip(value, q.low, q.high)),
            low=max(q.low, value / factor),
            high=min(q.high, value * factor),
            identified=not reason,
            reason=reason,
            start=start[q.name],
        )
    return fitted


def with_fitted(start: Mapping[str, float], fitted: Mapping[str, Fitted]) -> dict[str, float]:
    """Every parameter at its fitted value, else at `start`."""
    return {**start, **{name: one.value for name, one in fitted.items()}}


def fit_stalls(
    group: Group, f: Features, step_time_s: Floats, p: Mapping[str, float], used: Floats
) -> dict[str, float]:
    """STALL_ODDS learned from timed rows, by logistic regression with a prior; empty without any.

    A row stalled if it took more than half of the stall longer than predicted without one, and at
    least a third longer. Rows of nearly full memory are left out: there the allocator stalls.
    """
    stalls = stalls_of(group, f, p)
    stall_s = stalls.seconds
    rows = np.flatnonzero(crosses_nodes(f) & (used < NEARLY_FULL) & (stall_s > 0))
    if not rows.size:
        return {}
    step_s = step_of(group, f, p, used).total - stalls.expected_s
    longer = (step_time_s - step_s)[rows]
    stalled = (longer > stall_s[rows] / 2) & (longer > step_s[rows] / 3)
    terms = np.stack([*stall_terms(f).values()])[:, rows]
    centre, spread = np.array([*STALL_ODDS.values()]).T
    side = np.where(stalled, -1.0, 1.0)

    def loss(x: npt.NDArray[np.float64]) -> float:
        wrong = np.logaddexp(0.0, side * (x @ terms)).sum()
        return float(wrong + (((x - centre) / spread) ** 2).sum() / 2)

    found = minimize(loss, centre).x.tolist()
    return dict(zip(STALL_ODDS, found, strict=True))
