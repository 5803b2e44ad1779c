"""Robust least squares on log memory and log step time, one stack at a time."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.optimize import least_squares

from scaling.foreign.arrays import Floats
from scaling.predict.cost.memory import memory_of
from scaling.predict.cost.step import step_of
from scaling.predict.read.calibration import NO_ROW_DEPENDS, Fitted
from scaling.predict.read.features import Group
from scaling.predict.read.observed import Observed
from scaling.predict.read.parameters import MEMORY, TIME, Parameter
from scaling.predict.read.residual import correlation, places_of

# Repeats of one layout differ by about this much (published repeats: 0.3 to 5 %), log scale.
TIME_NOISE = 0.03
MEMORY_NOISE = 0.05
# What the formulas are off by themselves, log scale: of layouts near each other, of all alike, and
# of each layout. On rows of another width, length or precision 0.05 to 0.2, 0 to 0.1 and 0.06 to
# 0.2 are about as good on published tables; with 0, 0 and 0.03 a fit takes them at their word.
_FORMULAS_NEAR, _FORMULAS_ALL, _FORMULAS_EACH = 0.10, 0.05, 0.15
# How sharply the allocator decides between fit and out of memory, log scale.
FIT_NOISE = 0.02
ON_BOUND = "on its bound"
NARROWED = "rows push it to its bound: its prior was narrowed"
# A parameter on its bound is held by half the prior's width, and again, so many times at most.
_NARROWINGS = 5
# Of a logarithm, for its derivative.
_DIFFERENCE = 1e-6
# An informative posterior is narrower than this share of the prior.
IDENTIFIED_BELOW = 0.8


# Parameters by name: a number each, or one for each row of several copies of the rows side by side.
_Values = Mapping[str, Any]
# Residuals of so many copies of the rows, copy after copy: what a derivative asks for at once.
_Residuals = Callable[[_Values, int], Floats]


def fit_memory(group: Group, seen: Observed, start: Mapping[str, float]) -> dict[str, Fitted]:
    """Memory parameters from peaks, and from which rows ran and which ran out of memory.

    A row with a peak pulls the prediction to it; one without pushes it to its side of the capacity.
    """
    peak = seen.peak_memory_bytes
    has_peak = np.isfinite(peak) & (peak > 0)
    judged = (seen.ran & ~has_peak) | seen.out_of_memory
    log_peak = np.log(np.where(has_peak, peak, 1.0))
    capacity = group.capacity_bytes

    # rows that ran and rows that did not weigh alike, however many there are of each
    out = seen.out_of_memory
    of_class = np.where(out, out.sum(), judged.sum() - out.sum())
    weight: Floats = np.sqrt(judged.sum() / np.maximum(2 * of_class, 1))

    def residuals(p: _Values, copies: int) -> Floats:
        rows = _copied(len(peak), copies)
        memory = memory_of(group, group.features.take(rows), p)
        shown = memory.first_stage if group.stack.peak_of_first_rank else memory.total
        off = np.where(has_peak[rows], np.log(shown) - log_peak[rows], 0.0) / MEMORY_NOISE
        used = np.log(memory.total * p["fragmentation"] / capacity) / FIT_NOISE
        side = np.where(out[rows], -used, used)
        wrong = np.where(judged[rows], np.logaddexp(0.0, np.clip(side, -200, 200) + 0.5), 0.0)
        return np.asarray(_robust(off) + weight[rows] * _robust(wrong))

    rows = len(peak) if (has_peak | judged).any() else 0
    return _solve(MEMORY, residuals, start, rows)


def fit_time(
    group: Group,
    seen: Observed,
    start: Mapping[str, float],
    first_guess: Mapping[str, float] | None = None,
) -> dict[str, Fitted]:
    """Time parameters from measured steps, with memory already fitted in `start`.

    `first_guess` is where the search begins (the prior stays at `start`): a fold of rows already
    fitted is close to the whole, and a few iterations are enough.
    """
    off = _time_residuals(group, seen, start)

    def residuals(p: _Values, copies: int) -> Floats:
        return _robust(off(p, copies) / TIME_NOISE)

    return _solve(TIME, residuals, start, int(seen.timed.sum()), first_guess)


def fit_cautiously(
    group: Group,
    seen: Observed,
    start: Mapping[str, float],
    fitted: Mapping[str, float],
    first_guess: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Time parameters for layouts unlike the rows: only what differences between rows bear out.

    As `fit_time`, but the formulas may be off by something that near layouts share (a Gaussian
    process; Kennedy and O'Hagan 2001, https://doi.org/10.1111/1467-9868.00294): a hundred rows of
    one width that are all 10 % slow say little of which parameter makes them so. `fitted`: every
    parameter after `fit_time`, whose residuals say which rows stalled.
    """
    off = _time_residuals(group, seen, start)
    places = places_of(group.features.take(np.flatnonzero(seen.timed)))
    # a row weighs as in the Cauchy loss of `fit_time`
    own = _FORMULAS_EACH**2 + (off(fitted, 1) / _CAUCHY_WIDTH) ** 2
    covariance = np.diag(own) + _FORMULAS_NEAR**2 * correlation(places, places) + _FORMULAS_ALL**2
    root = np.linalg.cholesky(covariance)

    def residuals(p: _Values, copies: int) -> Floats:
        of_each = off(p, copies).reshape(copies, len(places))
        return np.asarray(solve_triangular(root, of_each.T, lower=True).T.ravel())

    cautious = _solve(TIME, residuals, start, len(places), first_guess)
    return {name: one.value for name, one in cautious.items()}


def _time_residuals(group: Group, seen: Observed, start: Mapping[str, float]) -> _Residuals:
    """ln(predicted / measured) of the timed rows, with memory as fitted in `start`."""
    timed = np.flatnonzero(seen.timed)
    f = group.features.take(timed)
    log_measured = np.log(seen.step_time_s[timed])
    used = memory_of(group, f, start).total / group.capacity_bytes

    def off(p: _Values, copies: int) -> Floats:
        rows = _copied(len(timed), copies)
        return np.asarray(
            np.log(step_of(group, f.take(rows), p, used[rows]).total) - log_measured[rows]
        )

    return off


def _copied(rows: int, copies: int) -> npt.NDArray[np.int64]:
    return np.tile(np.arange(rows), copies)


_CAUCHY_WIDTH = 3.0


def _robust(r: Floats) -> Floats:
    """Residuals whose squares are a Cauchy loss of width 3: a stalled step decides no fit."""
    return np.asarray(np.sign(r) * _CAUCHY_WIDTH * np.sqrt(np.log1p((r / _CAUCHY_WIDTH) ** 2)))


def _solve(
    parameters: tuple[Parameter, ...],
    residuals: _Residuals,
    start: Mapping[str, float],
    rows: int,
    first_guess: Mapping[str, float] | None = None,
) -> dict[str, Fitted]:
    """Maximum a posteriori in log space; intervals from the Gauss-Newton curvature at it."""
    if not rows:
        return {q.name: _unseen(q, start, "no rows") for q in parameters}
    felt = _felt(parameters, residuals, start, rows)
    fitted = {q.name: _unseen(q, start, NO_ROW_DEPENDS) for q in parameters if q not in felt}
    spread = {q.name: q.spread for q in felt}
    rounds = _NARROWINGS if first_guess is None else 1
    for _ in range(rounds if felt else 0):
        searched = _search(felt, spread, residuals, start, rows, first_guess)
        first_guess = {name: fitted.value for name, fitted in searched.items()}
        pushed = [q for q in felt if _pushed(q, searched[q.name], start)]
        if not pushed:
            break
        spread |= {q.name: spread[q.name] / 2 for q in pushed}
    if felt:
        fitted |= searched
    return {q.name: fitted[q.name] for q in parameters}


def _pushed(q: Parameter, fitted: Fitted, start: Mapping[str, float]) -> bool:
    """Whether rows pushed it to a bound, away from where it began: they ask for something else."""
    return fitted.reason == ON_BOUND and abs(np.log(fitted.value / start[q.name])) > 1e-3


def _at(
    names: list[str], values: Floats, start: Mapping[str, float], residuals: _Residuals, rows: int
) -> Floats:
    """Residuals (k, rows) at k sets of the named parameters, (k, len(names))."""
    several = {name: np.repeat(values[:, i], rows) for i, name in enumerate(names)}
    return residuals({**start, **several}, len(values)).reshape(len(values), rows)


def _felt(
    parameters: tuple[Parameter, ...], residuals: _Residuals, start: Mapping[str, float], rows: int
) -> list[Parameter]:
    """Those with which any residual moves between their bounds."""
    values = np.tile([start[q.name] for q in parameters], (2, len(parameters), 1))
    for i, q in enumerate(parameters):
        values[:, i, i] = q.low, q.high
    names = [q.name for q in parameters]
    low, high = (_at(names, ends, start, residuals, rows) for ends in values)
    moved = np.abs(high - low).max(axis=1) > 1e-3
    return [q for q, moves in zip(parameters, moved.tolist(), strict=True) if moves]


def _search(
    parameters: list[Parameter],
    spreads: Mapping[str, float],
    residuals: _Residuals,
    start: Mapping[str, float],
    rows: int,
    first_guess: Mapping[str, float] | None,
) -> dict[str, Fitted]:
    names = [q.name for q in parameters]
    prior = np.log([start[name] for name in names])
    spread = np.array([spreads[q.name] for q in parameters])
    low = np.log([q.low for q in parameters]) - 1e-9
    high = np.log([q.high for q in parameters]) + 1e-9

    def everything(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        of_rows = _at(names, np.exp(x)[None], start, residuals, rows)[0]
        return np.concatenate([of_rows, (x - prior) / spread])

    def slopes(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """All forward differences in one call: a tenth of the time of one after the other."""
        places = np.exp(x + _DIFFERENCE * np.eye(len(x) + 1, len(x), -1))
        here, *moved = _at(names, places, start, residuals, rows)
        of_rows = (np.array(moved) - here).T / _DIFFERENCE
        return np.concatenate([of_rows, np.diag(1 / spread)])

    guess = prior if first_guess is None else np.log([first_guess[name] for name in names])
    solution = least_squares(
        everything,
        np.clip(guess, low + 1e-6, high - 1e-6),
        jac=slopes,
        bounds=(low, high),
        x_scale=np.maximum(spread, 0.05),
        max_nfev=60 if first_guess is None else 12,
    )
    jacobian = np.asarray(solution.jac, dtype=np.float64)
    posterior = np.sqrt(np.diag(np.linalg.pinv(jacobian.T @ jacobian)))
    fitted = {}
    for i, q in enumerate(parameters):
        at, width = float(solution.x[i]), 1.96 * float(posterior[i])
        reasons = {
            ON_BOUND: min(at - low[i], high[i] - at) < 1e-3,
            NARROWED: spreads[q.name] < q.spread,
            "rows say no more than the prior": posterior[i] >= IDENTIFIED_BELOW * q.spread,
        }
        reason = next((reason for reason, holds in reasons.items() if holds), "")
        fitted[q.name] = Fitted(
            value=float(np.clip(np.exp(at), q.low, q.high)),
            low=float(np.clip(np.exp(at - width), q.low, q.high)),
            high=float(np.clip(np.exp(at + width), q.low, q.high)),
            identified=not reason,
            reason=reason,
            start=start[q.name],
        )
    return fitted


def _unseen(q: Parameter, start: Mapping[str, float], reason: str) -> Fitted:
    """The prior and its 95 %."""
    factor = float(np.exp(1.96 * q.spread))
    value = start[q.name]
    return Fitted(
        value=value,
        low=max(q.low, value / factor),
        high=min(q.high, value * factor),
        identified=False,
        reason=reason,
        start=value,
    )


def with_fitted(start: Mapping[str, float], fitted: Mapping[str, Fitted]) -> dict[str, float]:
    """Every parameter after a fit that moved some."""
    return {**start, **{name: one.value for name, one in fitted.items()}}
