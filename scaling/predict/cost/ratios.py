"""Odds that one layout is faster than another.

The common error of layouts of one model, software and cluster cancels in a ratio. At one size ln(a
/ b) has the standard deviation sqrt(own_a^2 + own_b^2), with own the layout's part and the rest.
"""

import numpy as np

from scaling.arrays import Floats
from scaling.predict.cost.interval import normal_cdf


def ratio_sigma(own_a: Floats | float, own_b: Floats | float) -> Floats:
    """Standard deviation of ln(a / b)'s error, of two layouts of one size."""
    return np.hypot(own_a, own_b)


def chance_faster(step_a_s: Floats | float, step_b_s: Floats | float, sigma: Floats) -> Floats:
    """P(a is faster than b), which is P(ln(a / b) < 0), with `ratio_sigma`."""
    apart = np.log(np.asarray(step_b_s, dtype=np.float64) / step_a_s)
    return normal_cdf(apart / np.maximum(sigma, 1e-12))
