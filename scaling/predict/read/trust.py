"""How far a fit is followed where a row is new: all the way, or part of it from the data sheet."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Floats
from scaling.predict.read.calibration import AXES, StackCalibration
from scaling.predict.read.features import BLOCK
from scaling.predict.read.parameters import TIME

# Shares of the way, in logarithms of every parameter, from where a fit began to where it ended.
TRUSTS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Where no fold could leave a value of an axis out. On published tables three quarters of the way
# was as good or better for a width, a model or a length never seen (2k to 8k tokens on A100: 5.5 %
# for 9.8), all of it for a size never seen.
UNTESTED: Mapping[str, float] = {
    "world_size": 1.0,
    "seq_length": 0.5,
    "model": 0.7,
    "hidden_size": 0.7,
}
# Nothing of it for sequences shorter than the only length calibrated: what one length says of
# attention and of all else cannot be told apart, and all else is most of a short sequence's step
# (8k to 2k tokens on A100: 11.1 % for 8.1 of the data sheet, and half of the way 10.3).
_SHORTER_THAN_THE_ONLY_ONE = 0.0
_EXTRAPOLATED = ("seq_length", "hidden_size")
# A fold's error counts up to this: one stalled step must not decide.
_LARGEST_ERROR = 0.5
# Less trust has to be better by this share: folds are few.
_WORTH = 0.05


def shrunk(
    fitted: Mapping[str, float], start: Mapping[str, float], trust: float
) -> dict[str, float]:
    """Parameters of time that share of the way from `start` to `fitted`, those of memory at it."""
    if trust == 1.0:
        return dict(fitted)
    near = {q.name: start[q.name] * (fitted[q.name] / start[q.name]) ** trust for q in TIME}
    return {**fitted, **near}


def chosen_trust(log_residuals: Sequence[Floats]) -> float:
    """The one of TRUSTS whose held-back errors are smallest; more of it unless less is better.

    Args:
        log_residuals: ln(measured / predicted) of the same rows for each of TRUSTS.
    """
    errors = [float(np.minimum(np.abs(r), _LARGEST_ERROR).mean()) for r in log_residuals]
    enough = [
        trust
        for trust, error in zip(TRUSTS, errors, strict=True)
        if error <= min(errors) * (1 + _WORTH)
    ]
    return max(enough)


def new_in(
    stack: StackCalibration, axes: Mapping[str, npt.NDArray[np.generic]]
) -> dict[str, npt.NDArray[np.bool_]]:
    """Which rows have a value that was not calibrated, (n,) each, by names of AXES."""
    return {
        axis: ~np.isin(axes[axis].astype(str), np.array(stack.seen[axis]).astype(str))
        for axis in AXES
    }


def residual_in(
    stack: StackCalibration,
    axes: Mapping[str, npt.NDArray[np.generic]],
    trust: npt.NDArray[np.float64],
    places: Floats,
) -> npt.NDArray[np.float64]:
    """ln(measured / predicted) to expect of each row by its neighbours, (n,).

    0 where a row is new in something in which folds did not confirm it; elsewhere followed as far
    as the fit is, `trust`.
    """
    residual = stack.residual
    if residual is None:
        return np.zeros(len(trust))
    holds = np.full(len(trust), "interpolation" in residual.holds_in)
    for axis, new in new_in(stack, axes).items():
        holds &= ~new | (axis in residual.holds_in)
    rows = np.flatnonzero(holds)
    expected = np.zeros(len(trust))
    for block in range(0, len(rows), BLOCK):
        some = rows[block : block + BLOCK]
        expected[some] = trust[some] * residual.at(places[some])
    return expected


def trust_in(
    stack: StackCalibration, axes: Mapping[str, npt.NDArray[np.generic]]
) -> npt.NDArray[np.float64]:
    """Trust in the fit for each row, (n,): the least of the axes in which it is new.

    Args:
        stack: the calibration.
        axes: the rows' values by names of AXES, (n,) each.
    """
    trust = np.ones(len(axes[AXES[0]]))
    for axis, new in new_in(stack, axes).items():
        tested = stack.trust.get(axis, UNTESTED[axis])
        trust = np.where(new, np.minimum(trust, tested), trust)
        if axis in _EXTRAPOLATED:
            # folds leave out values that have neighbours: beyond all of them less is known
            seen = np.array(stack.seen[axis], dtype=np.float64)
            values = axes[axis].astype(np.float64)
            beyond = (values > seen.max(initial=0.0)) | (values < seen.min(initial=np.inf))
            trust = np.where(beyond, np.minimum(trust, UNTESTED[axis]), trust)
            if axis == "seq_length" and len(seen) == 1:
                trust = np.where(values < seen[0], _SHORTER_THAN_THE_ONLY_ONE, trust)
    return trust
