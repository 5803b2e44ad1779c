"""Odds that one layout is faster than another, and the gain to expect from measuring it.

The common error of layouts of one model, software and cluster cancels in a ratio. At one size ln(a
/ b) has the standard deviation sqrt(own_a^2 + own_b^2), with own the layout's part and the rest.
"""

import math

import numpy as np

from scaling.arrays import Floats
from scaling.predict.cost.interval import normal_cdf


def ratio_sigma(own_a: Floats | float, own_b: Floats | float) -> Floats:
    """Standard deviation of ln(a / b)'s error, of two layouts of one size."""
    return np.hypot(own_a, own_b)


def expected_gain(step_a_s: Floats | float, step_b_s: float, sigma: Floats) -> Floats:
    """The mean gain of measuring a over b: the mean of max(0, ln(b / a)).

    The expected improvement of a normal error, s (phi(z) + z Phi(z)) with z = ln(b / a) / s
    (Jones, Schonlau and Welch, Journal of Global Optimization 13, 1998, eq. 15).

    Args:
        step_a_s: predicted seconds a step of a.
        step_b_s: of b, which is known.
        sigma: standard deviation of ln(a)'s error, above 0.
    """
    z = np.log(step_b_s / np.asarray(step_a_s)) / sigma
    density = np.exp(-np.square(z) / 2) / math.sqrt(2 * math.pi)
    return np.asarray(sigma * (density + z * normal_cdf(z)))


def chance_faster(step_a_s: Floats | float, step_b_s: Floats | float, sigma: Floats) -> Floats:
    """P(a is faster than b), which is P(ln(a / b) < 0), with `ratio_sigma`."""
    apart = np.log(np.asarray(step_b_s, dtype=np.float64) / step_a_s)
    return normal_cdf(apart / np.maximum(sigma, 1e-12))
