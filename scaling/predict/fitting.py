"""Robust least squares on log memory and log step time, one stack at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from scaling.predict.columns import Flags, Floats
from scaling.predict.features import Group
from scaling.predict.memory import memory_of
from scaling.predict.parameters import MEMORY, TIME, Parameter
from scaling.predict.step import step_of

# Repeats of one layout differ by about this much (published repeats: 0.3 to 5 %), log scale.
TIME_NOISE = 0.03
MEMORY_NOISE = 0.05
# How sharply the allocator decides between fit and out of memory, log scale.
FIT_NOISE = 0.02
# An informative posterior is narrower than this share of the prior.
IDENTIFIED_BELOW = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was measured of a group's rows, (n,), NaN where it was not."""

    step_time_s: Floats
    peak_memory_bytes: Floats
    fitted: Flags  # the row ran
    out_of_memory: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One parameter after calibration; `low` and `high` bound 95 % of its posterior."""

    value: float
    low: float
    high: float
    identified: bool
    reason: str  # why it is not identified, empty if it is


def fit_memory(group: Group, seen: Observed, start: Mapping[str, float]) -> dict[str, Fitted]:
    """Memory parameters from peaks, and from which rows ran and which ran out of memory.

    A row with a peak pulls the prediction to it; one without pushes it to its side of the capacity.
    """
    peak = seen.peak_memory_bytes
    has_peak = np.isfinite(peak) & (peak > 0)
    judged = (seen.fitted & ~has_peak) | seen.out_of_memory
    log_peak = np.log(np.where(has_peak, peak, 1.0))
    capacity = group.capacity_bytes

    def residuals(p: Mapping[str, float]) -> Floats:
        memory = memory_of(group, group.features, p)
        shown = memory.first_stage if group.stack.peak_of_first_rank else memory.total
        off = np.where(has_peak, np.log(shown) - log_peak, 0.0) / MEMORY_NOISE
        used = np.log(memory.total * p["fragmentation"] / capacity) / FIT_NOISE
        side = np.where(seen.out_of_memory, -used, used)
        wrong = np.where(judged, np.logaddexp(0.0, np.clip(side, -200, 200) + 0.5), 0.0)
        return _robust(off) + _robust(wrong)

    return _solve(MEMORY, residuals, start, bool((has_peak | judged).any()))


def fit_time(group: Group, seen: Observed, start: Mapping[str, float]) -> dict[str, Fitted]:
    """Time parameters from measured steps, with memory already fitted in `start`."""
    timed = seen.fitted & np.isfinite(seen.step_time_s) & (seen.step_time_s > 0)
    rows = np.flatnonzero(timed)
    f = group.features.take(rows)
    log_measured = np.log(seen.step_time_s[rows])
    used = memory_of(group, f, start).total / group.capacity_bytes

    def residuals(p: Mapping[str, float]) -> Floats:
        return _robust((np.log(step_of(group, f, p, used).total) - log_measured) / TIME_NOISE)

    return _solve(TIME, residuals, start, bool(rows.size))


def _robust(r: Floats) -> Floats:
    """Residuals whose squares are a Cauchy loss of width 3: a stalled step must not decide a fit."""
    return np.sign(r) * 3.0 * np.sqrt(np.log1p((r / 3.0) ** 2))


def _solve(
    parameters: tuple[Parameter, ...],
    residuals: Callable[[Mapping[str, float]], Floats],
    start: Mapping[str, float],
    any_rows: bool,
) -> dict[str, Fitted]:
    """Maximum a posteriori in log space; intervals from the Gauss-Newton curvature at it."""
    names = [q.name for q in parameters]
    prior = np.log([start[name] for name in names])
    spread = np.array([q.spread for q in parameters])
    low = np.log([q.low for q in parameters]) - 1e-9
    high = np.log([q.high for q in parameters]) + 1e-9
    if not any_rows:
        return {q.name: _unseen(q, start[q.name]) for q in parameters}

    def everything(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        p = {**start, **dict(zip(names, np.exp(x).tolist(), strict=True))}
        return np.concatenate([residuals(p), (x - prior) / spread])

    solution = least_squares(
        everything,
        np.clip(prior, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        x_scale=np.maximum(spread, 0.05),
        max_nfev=60,
    )
    covariance = np.linalg.pinv(solution.jac.T @ solution.jac)
    posterior = np.sqrt(np.diag(covariance))
    found = {}
    for i, q in enumerate(parameters):
        at, width = float(solution.x[i]), 1.96 * float(posterior[i])
        on_bound = min(at - low[i], high[i] - at) < 1e-3
        narrow = posterior[i] < IDENTIFIED_BELOW * q.spread
        reason = "on its bound" if on_bound else "" if narrow else "no wider data: prior kept"
        found[q.name] = Fitted(
            value=float(np.clip(np.exp(at), q.low, q.high)),
            low=float(np.clip(np.exp(at - width), q.low, q.high)),
            high=float(np.clip(np.exp(at + width), q.low, q.high)),
            identified=not reason,
            reason=reason,
        )
    return found


def _unseen(q: Parameter, value: float) -> Fitted:
    return Fitted(value=value, low=q.low, high=q.high, identified=False, reason="no rows")


def values_of(fitted: Mapping[str, Fitted]) -> dict[str, float]:
    """The values alone."""
    return {name: parameter.value for name, parameter in fitted.items()}
