"""How far a fit is followed where a row is new: all the way, or part of it from the data sheet."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Floats
from scaling.predict.read.calibration import AXES, StackCalibration
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


def trust_in(
    stack: StackCalibration, axes: Mapping[str, npt.NDArray[np.generic]]
) -> npt.NDArray[np.float64]:
    """Trust in the fit for each row, (n,): the least of the axes in which it is new.

    Args:
        stack: the calibration.
        axes: the rows' values by names of AXES, (n,) each.
    """
    trust = np.ones(len(axes[AXES[0]]))
    for axis in AXES:
        new = ~np.isin(axes[axis].astype(str), np.array(stack.seen[axis]).astype(str))
        tested = stack.trust.get(axis, UNTESTED[axis])
        trust = np.where(new, np.minimum(trust, tested), trust)
        if axis in _EXTRAPOLATED:
            # folds leave out values that have neighbours: beyond all of them less is known
            seen = np.array(stack.seen[axis], dtype=np.float64)
            values = axes[axis].astype(np.float64)
            beyond = (values > seen.max(initial=0.0)) | (values < seen.min(initial=np.inf))
            trust = np.where(beyond, np.minimum(trust, UNTESTED[axis]), trust)
    return trust
