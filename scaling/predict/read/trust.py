"""How far a fit is followed where a row is new: all the way, or part of it from the data sheet."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.read.calibration import AXES, Z_80, StackCalibration
from scaling.predict.read.features import BLOCK
from scaling.predict.read.parameters import MEMORY, TIME

# Shares of the way, in logarithms of every parameter, from where a fit began (0) over what it says
# cautiously (0.5) to where it ended (1).
TRUSTS = (0.0, 0.25, 0.5, 0.75, 1.0)
CAUTIOUS = 0.5
# Where no fold could leave a value out a size never seen is followed all of the way, and so is a
# layout; any other value as far as `untested_trust` says. Folds leave out values that have
# neighbours: beyond all of them less is known, and that of these axes is followed no further than
# halfway between the two.
_EXTRAPOLATED = ("seq_length", "hidden_size", "gemm_peak")
UNTESTED, LAYOUT = "untested", "layout"
# A fold's error counts up to this: one stalled step must not decide.
_LARGEST_ERROR = 0.5
# Less trust has to be better by this share: folds are few.
_WORTH = 0.05


def trust_band(share: float) -> str:
    """The name of the band of rows held back at random, predicted with that trust."""
    return f"interpolation at {share:g}"


def parameters_at_trust(
    fitted: Mapping[str, float],
    start: Mapping[str, float],
    trust: float,
    cautious: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Parameters that share of the way from `start` to `fitted`; those of memory twice as fast.

    Without `cautious` (older files) the way is straight.
    """
    if trust == 1.0:
        return dict(fitted)
    of_memory = min(1.0, trust / CAUTIOUS)
    near = {q.name: start[q.name] * (fitted[q.name] / start[q.name]) ** of_memory for q in MEMORY}
    for q in TIME:
        began, ended = start[q.name], fitted[q.name]
        halfway = (cautious or {}).get(q.name, (began * ended) ** 0.5)
        if trust <= CAUTIOUS:
            near[q.name] = began * (halfway / began) ** (2 * trust)
        else:
            near[q.name] = halfway * (ended / halfway) ** (2 * trust - 1)
    return near


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


def untested_trust(tested: Collection[float]) -> float:
    """How far a fit is followed in what none of its rows varies: as far as what it says cautiously.

    No further than where folds could test it in something else (`tested`), and not at all where
    they could in nothing: a data sheet that nothing refutes is not given up.
    """
    return min(CAUTIOUS, *tested) if tested else 0.0


def clipped_rms(log_residual: Floats) -> float:
    """Root mean square of errors, each counted up to what decides nothing alone."""
    return float(np.sqrt(np.mean(np.minimum(np.abs(log_residual), _LARGEST_ERROR) ** 2)))


def james_stein_trust(sheet_error: float, unfitted: Floats) -> Floats:
    """What share of a fit is followed where it knows a row in part, (n,), one of TRUSTS.

    A fit mends what data sheets are off by in all their numbers together, so half of it may be
    worse than none. As the positive part of James and Stein's estimate has it (1961): 1 less the
    square of what is unknown, as 80 % of it has it, over that of what was mended; rounded down.

    Args:
        sheet_error: what data sheets are off by on the calibrated rows, log scale.
        unfitted: standard deviation of ln(step) by parameters that no calibrated row depends on.
    """
    doubt = np.square(Z_80 * unfitted) / max(sheet_error**2, 1e-12)
    quarters = len(TRUSTS) - 1
    return np.asarray(np.floor(quarters * np.maximum(1 - doubt, 0.0)) / quarters)


def new_values(
    stack: StackCalibration, axes: Mapping[str, npt.NDArray[np.generic]], beyond: Floats
) -> dict[str, npt.NDArray[np.bool_]]:
    """Which rows have a value that was not calibrated, (n,) each, by names of AXES and LAYOUT.

    Args:
        stack: the calibration.
        axes: the rows' values by names of AXES, (n,) each.
        beyond: how far their layouts are beyond all calibrated ones, (n,).
    """
    new = {
        axis: ~np.isin(axes[axis].astype(str), np.array(stack.seen[axis]).astype(str))
        for axis in AXES
    }
    return {**new, LAYOUT: beyond > 0}


def expected_residual(
    stack: StackCalibration,
    new: Mapping[str, Flags],
    trust: npt.NDArray[np.float64],
    places: Floats,
) -> npt.NDArray[np.float64]:
    """ln(measured / predicted) to expect of each row by its neighbours, (n,).

    0 where a row is new (`new_values`) in something in which folds did not confirm it; elsewhere
    followed as far as the fit is, `trust`.
    """
    residual = stack.residual
    if residual is None:
        return np.zeros(len(trust))
    holds = np.full(len(trust), "interpolation" in residual.holds_in)
    for axis, of_axis in new.items():
        holds &= ~of_axis | (axis in residual.holds_in)
    rows = np.flatnonzero(holds)
    expected = np.zeros(len(trust))
    for block in range(0, len(rows), BLOCK):
        some = rows[block : block + BLOCK]
        expected[some] = trust[some] * residual.at(places[some])
    return expected


def trust_of_rows(
    stack: StackCalibration, axes: Mapping[str, npt.NDArray[np.generic]], new: Mapping[str, Flags]
) -> npt.NDArray[np.float64]:
    """Trust in the fit for each row, (n,): the least of those in what it is `new_values`."""
    trust = np.ones(len(axes[AXES[0]]))
    untested = stack.trust.get(UNTESTED, CAUTIOUS)
    for axis, of_axis in new.items():
        tested = stack.trust.get(axis, 1.0 if axis in ("world_size", LAYOUT) else untested)
        trust = np.where(of_axis, np.minimum(trust, tested), trust)
    for axis in _EXTRAPOLATED:
        if axis in axes and axis in stack.seen:
            seen = np.array(stack.seen[axis], dtype=np.float64)
            values = axes[axis].astype(np.float64)
            outside = (values > seen.max(initial=0.0)) | (values < seen.min(initial=np.inf))
            halfway = (stack.trust.get(axis, untested) + untested) / 2
            trust = np.where(outside, np.minimum(trust, halfway), trust)
    return trust
