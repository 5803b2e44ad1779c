"""Odds that one layout is faster than another, and the gain to expect from measuring it.

Layouts of one model, software and cluster share most of their error, and what they share cancels in
a ratio. At one size ln(a / b) has the standard deviation sqrt(own_a^2 + own_b^2), between sizes
sqrt(own_a^2 + own_b^2 + size_a^2 + size_b^2) (`predicted_own_sigma`, `predicted_size_sigma`).
Odds take the error to be Student's with 3 degrees of freedom, gains take it to be normal, both with
the same central 80 %. Of pairs of published layouts with odds of 99.8 % 98.9 % hold, as many as of
those that a normal error puts at 99.9 % (docs/prediction_accuracy.md).
"""

import math

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.cost.interval import normal_cdf

_STUDENT_3 = 1.6377 / 1.2816 / math.sqrt(3)  # its 90 % point over that of a normal error
# Layouts that differ on few axes share part of their own errors. Factor by the number of axes, from
# held-out residuals of published sweeps: on one axis 0.5 to 0.85 of the difference between far
# layouts, on two 0.85 to 1.
_NEAR = {0: 0.5, 1: 0.75, 2: 0.93}


def ratio_sigma(
    own_a: Floats | float, own_b: Floats | float, *, axes_apart: int | None = None
) -> Floats:
    """Standard deviation of ln(a / b)'s error, of two layouts of one size.

    Args:
        own_a: `predicted_own_sigma` of a.
        own_b: of b.
        axes_apart: on how many axes the layouts differ, where that is known.
    """
    near = _NEAR.get(axes_apart, 1.0) if axes_apart is not None else 1.0
    return np.asarray(np.sqrt(near**2 * (np.square(own_a) + np.square(own_b))))


def expected_gain(step_a_s: Floats | float, step_b_s: float, sigma: Floats) -> Floats:
    """What measuring a gains over b on average: the mean of max(0, ln(b / a)).

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
    """P(a is faster than b), which is P(ln(a / b) < 0).

    Args:
        step_a_s: predicted seconds a step of a.
        step_b_s: of b.
        sigma: of ln(a / b), `ratio_sigma`.
    """
    apart = np.log(np.asarray(step_b_s, dtype=np.float64) / step_a_s)
    x = _STUDENT_3 * apart / np.maximum(sigma, 1e-12)
    # closed form of Student's distribution function with 3 degrees of freedom
    return np.asarray(0.5 + (x / (1 + x**2) + np.arctan(x)) / math.pi)
