"""How far a calibration is trusted for each row: from 0 (data sheet alone) to 1 (the whole fit)."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.read.calibration import AXES, Z_80, StackCalibration
from scaling.predict.read.features import BLOCK
from scaling.predict.read.parameters import MEMORY, TIME
from scaling.predict.read.residual import STALLED, mean_error

# Trust is a position between sets of parameters, on a logarithmic scale: their start values (0),
# the cautious fit (CAUTIOUS) and the whole fit (1).
TRUSTS = (0.0, 0.25, 0.5, 0.75, 1.0)
CAUTIOUS = 0.5
# Axes along which extrapolation is trusted less than interpolation. Folds mostly leave out values
# between others, so outside the calibrated range trust is at most halfway between that of the axis
# and that of untested axes.
_EXTRAPOLATED = ("seq_length", "hidden_size", "gemm_peak")
# Keys of `StackCalibration.trust` beside those of AXES.
UNTESTED, LAYOUT = "untested", "layout"
# Trust for layouts with another count or switch than the one of all calibrated rows, at most: the
# rows do not tell its cost from others.
_CONFOUNDED = 0.25
# Trusted fully when no fold could test them, unlike other axes.
UNTESTED_IN_FULL = ("world_size", LAYOUT)
# Axes along which a calibration is followed only if it surely helped: the cost of another model is
# least like that of the calibrated ones.
_MUST_HELP = ("model", "hidden_size")
# Lower trust must reduce the error by more than this share: there are few folds.
_WORTH = 0.05


def new_values(
    stack: StackCalibration, axes: Mapping[str, npt.NDArray[np.generic]], distance_beyond: Floats
) -> dict[str, Flags]:
    """Masks, (n,) each, of rows whose value was not calibrated, by names of AXES and LAYOUT.

    Args:
        stack: the calibration.
        axes: the rows' values by names of AXES, (n,) each.
        distance_beyond: how far their layouts lie outside all calibrated ones, (n,).
    """
    new = {
        axis: ~np.isin(axes[axis].astype(str), np.array(stack.seen[axis]).astype(str))
        for axis in AXES
    }
    return {**new, LAYOUT: distance_beyond > 0}


def trust_of_rows(
    stack: StackCalibration,
    axes: Mapping[str, npt.NDArray[np.generic]],
    new: Mapping[str, Flags],
    confounded: Flags,
) -> Floats:
    """Trust in the fit for each row, (n,): the least over the axes in which it is `new`.

    It is at most _CONFOUNDED for rows in `confounded`, (n,).
    """
    untested = stack.trust.get(UNTESTED, CAUTIOUS)
    trust = np.where(confounded, min(untested, _CONFOUNDED), 1.0)
    for axis, is_new in new.items():
        of_axis = stack.trust.get(axis, 1.0 if axis in UNTESTED_IN_FULL else untested)
        trust = np.where(is_new, np.minimum(trust, of_axis), trust)
    for axis in _EXTRAPOLATED:
        if axis in axes and axis in stack.seen:
            calibrated = np.array(stack.seen[axis], dtype=np.float64)
            values = axes[axis].astype(np.float64)
            above = values > calibrated.max(initial=0.0)
            below = values < calibrated.min(initial=np.inf)
            halfway = (stack.trust.get(axis, untested) + untested) / 2
            trust = np.where(above | below, np.minimum(trust, halfway), trust)
    return trust


def james_stein_trust(sheet_error: float, unfitted: Floats) -> Floats:
    """Trust for rows that depend on parameters no calibrated row depends on, (n,).

    A fit corrects the combined error of all data-sheet values, so using only some of its parameters
    may be worse than none. The rule follows the positive part of James and Stein's estimator
    (1961): 1 minus the squared unknown error (its 80 % bound) over the squared error that the fit
    removed, rounded down to one of TRUSTS.

    Args:
        sheet_error: data-sheet error on the calibrated rows, log scale.
        unfitted: standard deviation of ln(step) from parameters that no calibrated row depends on.
    """
    doubt = np.square(Z_80 * unfitted) / max(sheet_error**2, 1e-12)
    quarters = len(TRUSTS) - 1
    return np.asarray(np.floor(quarters * np.maximum(1 - doubt, 0.0)) / quarters)


def parameters_at_trust(
    fitted: Mapping[str, float],
    start: Mapping[str, float],
    trust: float,
    cautious: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Parameters interpolated from `start` to `fitted`; memory parameters arrive at CAUTIOUS.

    Time parameters pass through `cautious`; without it (older files), through the geometric mean.
    """
    if trust == 1.0:
        return dict(fitted)
    memory_share = min(1.0, trust / CAUTIOUS)
    trust_band = {
        q.name: start[q.name] * (fitted[q.name] / start[q.name]) ** memory_share for q in MEMORY
    }
    for q in TIME:
        first, last = start[q.name], fitted[q.name]
        middle = (cautious or {}).get(q.name, (first * last) ** 0.5)
        if trust <= CAUTIOUS:
            trust_band[q.name] = first * (middle / first) ** (2 * trust)
        else:
            trust_band[q.name] = middle * (last / middle) ** (2 * trust - 1)
    return trust_band


def expected_residual(
    stack: StackCalibration, new: Mapping[str, Flags], trust: Floats, places: Floats
) -> Floats:
    """Expected ln(measured / predicted) of rows at `places`, scaled by their trust, (n,).

    0 for rows `new` in an axis in which folds did not confirm the residual.
    """
    expected = np.zeros(len(trust))
    residual = stack.residual
    if residual is None:
        return expected
    confirmed = np.full(len(trust), "interpolation" in residual.holds_in)
    for axis, is_new in new.items():
        confirmed &= ~is_new | (axis in residual.holds_in)
    rows = np.flatnonzero(confirmed)
    for first in range(0, len(rows), BLOCK):
        block = rows[first : first + BLOCK]
        expected[block] = trust[block] * residual.at(places[block])
    return expected


def trust_band(trust: float) -> str:
    """The key in `StackCalibration.bands` of random folds predicted at this trust."""
    return f"interpolation at {trust:g}"


def chosen_trust(axis: str, folds: Sequence[Sequence[Floats]]) -> float:
    """The highest of TRUSTS whose mean error is within 5 % of the smallest.

    It is 0 along `_MUST_HELP` unless the error that it saves exceeds the standard error of that,
    folds being what may differ by chance; so one fold shows nothing.

    Args:
        axis: whose values the folds left out.
        folds: ln(measured / predicted) of held-out rows at each of TRUSTS, by fold.
    """
    errors = [mean_error(np.concatenate(parts)) for parts in zip(*folds, strict=True)]
    good_enough = min(errors) * (1 + _WORTH)
    best = max(i for i, error in enumerate(errors) if error <= good_enough)
    if axis in _MUST_HELP:
        rows = np.array([len(fold[0]) for fold in folds])
        saved = rows * [mean_error(fold[0]) - mean_error(fold[best]) for fold in folds]
        scatter = saved - rows * saved.sum() / rows.sum()
        if len(folds) < 2 or saved.sum() <= np.sqrt((scatter**2).sum() / (1 - 1 / len(folds))):
            return 0.0
    return TRUSTS[best]


def untested_trust(tested: Collection[float]) -> float:
    """Trust for axes in which the calibrated rows do not vary: at most CAUTIOUS.

    Never above the trust of any axis that folds could test (`tested`), and 0 if they could test
    none: nothing has refuted the data sheet.
    """
    return min(CAUTIOUS, *tested) if tested else 0.0


def clipped_rms(log_residual: Floats) -> float:
    """Root mean square of errors, each clipped so that one stalled step does not decide."""
    return float(np.sqrt(np.mean(np.minimum(np.abs(log_residual), STALLED) ** 2)))
