"""80 % intervals: how wrong the fit was on rows like this one when they were held back."""

import numpy as np

from scaling.foreign.arrays import Floats, Words
from scaling.predict.read.calibration import AXES, DATA_SHEET_BAND, Band, StackCalibration

# A band narrower than repeats of one layout would claim more than a measurement can.
_NARROWEST = 0.02
# An axis no fold could test: what leaving one out cost on published tables, about 10 %.
_UNTESTED = 0.10


def interval_of(
    step_s: Floats,
    stack: StackCalibration | None,
    *,
    world_size: Floats,
    seq_length: Floats,
    model: Words,
    hidden_size: Floats,
) -> tuple[Floats, Floats]:
    """Seconds between which a measured step lies 8 times in 10, (n,) each.

    Rows with a world_size, seq_length, model or hidden_size that was not calibrated take the band
    of the folds that left such a value out; per doubling beyond the largest calibrated world size
    the band grows by half of itself. Without a calibration the band is that of data sheets.
    """
    if stack is None:
        return step_s * np.exp(DATA_SHEET_BAND[0]), step_s * np.exp(DATA_SHEET_BAND[1])
    base = stack.bands["interpolation"]
    low, high = np.full(len(step_s), base.low), np.full(len(step_s), base.high)
    values = {
        "world_size": world_size,
        "seq_length": seq_length,
        "model": model,
        "hidden_size": hidden_size,
    }
    for axis in AXES:
        new = ~np.isin(values[axis].astype(str), np.array(stack.seen[axis]).astype(str))
        band = stack.bands.get(axis) or Band(
            low=base.low - _UNTESTED, high=base.high + _UNTESTED, rows=0
        )
        factor = np.ones(len(step_s))
        if axis == "world_size":
            largest = max((float(size) for size in stack.seen["world_size"]), default=1.0)
            factor = 1 + 0.5 * np.maximum(np.log2(world_size / largest), 0)
        low = np.where(new, np.minimum(low, band.low * factor), low)
        high = np.where(new, np.maximum(high, band.high * factor), high)
    return (
        step_s * np.exp(np.minimum(low, -_NARROWEST)),
        step_s * np.exp(np.maximum(high, _NARROWEST)),
    )


def band_of(log_residuals: Floats) -> Band:
    """The band of held-back residuals; few rows widen it (a t-like factor 1 + 2 / n)."""
    n = len(log_residuals)
    low, high = np.quantile(log_residuals, [0.1, 0.9])
    factor = 1 + 2 / n
    return Band(low=float(low) * factor, high=float(high) * factor, rows=n)
