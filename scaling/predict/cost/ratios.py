"""What predictions say of one layout against another: odds, shares, returns and crossovers.

Errors of layouts of one model, software and cluster are largely common, and what is common cancels
in a ratio: at one size ln(a / b) has the standard deviation sqrt(own_a^2 + own_b^2), between sizes
sqrt(own_a^2 + own_b^2 + size_a^2 + size_b^2) (`predicted_own_sigma`, `predicted_size_sigma`).
Errors are taken as normal with the width that holds 8 in 10.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.cost.interval import EIGHTY, below

# Layouts that differ on one axis, or on two, share part of what is otherwise each one's own:
# held-out residuals of published sweeps differ by 0.5 to 0.85 (on one axis) and 0.85 to 1 (on two)
# of what far layouts differ by.
_NEAR = {0: 0.5, 1: 0.75, 2: 0.93}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A predicted number and the bounds it lies between 8 times in 10; None: beyond the data."""

    value: float
    low: float | None
    high: float | None


def ratio_sigma(
    own_a: Floats | float,
    own_b: Floats | float,
    *,
    size_a: Floats | float = 0.0,
    size_b: Floats | float = 0.0,
    axes_apart: int | None = None,
) -> Floats:
    """Standard deviation of ln(a / b)'s error.

    Args:
        own_a: `predicted_own_sigma` of a.
        own_b: of b.
        size_a: `predicted_size_sigma` of a, if b is of another size.
        size_b: of b, if a is of another size.
        axes_apart: on how many axes the layouts differ, where that is known.
    """
    near = _NEAR.get(axes_apart, 1.0) if axes_apart is not None else 1.0
    own = near**2 * (np.square(own_a) + np.square(own_b))
    return np.asarray(np.sqrt(own + np.square(size_a) + np.square(size_b)))


def expected_gain(step_a_s: Floats | float, step_b_s: float, sigma: Floats) -> Floats:
    """What is gained on b by measuring a, on average: the mean of max(0, ln(b / a)).

    The expected improvement of a normal error, s (phi(z) + z Phi(z)) with z = ln(b / a) / s
    (Jones, Schonlau and Welch, Journal of Global Optimization 13, 1998, eq. 15).

    Args:
        step_a_s: predicted seconds a step of a.
        step_b_s: of b, which is known.
        sigma: standard deviation of ln(a)'s error, above 0.
    """
    z = np.log(step_b_s / np.asarray(step_a_s)) / sigma
    density = np.exp(-np.square(z) / 2) / math.sqrt(2 * math.pi)
    return np.asarray(sigma * (density + z * below(z)))


def chance_faster(step_a_s: Floats | float, step_b_s: Floats | float, sigma: Floats) -> Floats:
    """P(a is faster than b): that ln(a / b) is below 0.

    Args:
        step_a_s: predicted seconds a step of a.
        step_b_s: of b.
        sigma: of ln(a / b), `ratio_sigma`.
    """
    apart = np.log(np.asarray(step_b_s, dtype=np.float64) / step_a_s)
    return np.asarray(below(apart / np.maximum(sigma, 1e-12)))


def share_of(step_a_s: float, step_best_s: float, sigma: float) -> Estimate:
    """Which share of the best layout's speed another reaches, best / a: a ratio, may exceed 1.

    Args:
        step_a_s: predicted seconds a step.
        step_best_s: of the best.
        sigma: of ln(a / best).
    """
    share = step_best_s / step_a_s
    factor = math.exp(EIGHTY * sigma)
    return Estimate(value=share, low=share / factor, high=share * factor)


def return_of(
    tokens_per_s: tuple[float, float], gpus: tuple[float, float], sigma: float
) -> Estimate:
    """What more GPUs return: ln(rate ratio) / ln(GPU ratio), 1 where doubling doubles the rate.

    Args:
        tokens_per_s: predicted at the smaller and at the larger size.
        gpus: of the two, different.
        sigma: of ln(ratio of the step times), with what sizes do not share.
    """
    doublings = math.log(gpus[1] / gpus[0])
    value = math.log(tokens_per_s[1] / tokens_per_s[0]) / doublings
    reach = EIGHTY * sigma / abs(doublings)
    return Estimate(value=value, low=value - reach, high=value + reach)


def crossover_of(
    gpus: Sequence[float],
    step_a_s: Sequence[float],
    step_b_s: Sequence[float],
    sigma: Sequence[float],
) -> Estimate | None:
    """From which number of GPUs on a is faster than b, None where it never changes.

    Read off ln(a / b) over log2 GPUs, straight between sizes. A layout's own error goes with it
    from size to size, so the bounds are where ln(a / b) crosses plus and minus 1.28 sigma; None
    where that lies outside of the sizes given.

    Args:
        gpus: sizes, rising.
        step_a_s: predicted seconds of a at each.
        step_b_s: of b.
        sigma: of ln(a / b) at each, of the own parts.
    """
    x = np.log2(np.asarray(gpus, dtype=np.float64))
    apart = np.log(np.asarray(step_a_s, dtype=np.float64) / np.asarray(step_b_s))
    if apart[0] < 0:  # from b's side it is the same crossing
        apart = -apart
    reach = EIGHTY * np.asarray(sigma, dtype=np.float64)
    value = _first_below(x, apart)
    if value is None:
        return None
    early, late = _first_below(x, apart - reach), _first_below(x, apart + reach)
    inside = None if early is None or apart[0] - reach[0] < 0 else 2**early
    return Estimate(value=2**value, low=inside, high=None if late is None else 2**late)


def _first_below(x: Floats, y: Floats) -> float | None:
    """Where y first falls below 0, between points on a straight line; None if it does not."""
    below = np.flatnonzero(y < 0)
    if not below.size:
        return None
    at = int(below[0])
    if at == 0:
        return float(x[0])
    share = y[at - 1] / (y[at - 1] - y[at])
    return float(x[at - 1] + share * (x[at] - x[at - 1]))
