"""Estimate a full step from short ones: a fixed cost plus a cost per micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from scaling.record.bootstrap import block_length, drawn_blocks

Values = npt.NDArray[np.float64]

_RESAMPLES = 2000
_SEED = 20_200  # fixed, so that all ranks get the same interval
LEVEL = 0.80
_SURE = 0.99  # confidence that accumulations are not on a line, before full steps are run
_LARGEST_BEND = 0.02  # share of the full step; a smaller deviation from the line is accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A full step estimated from short ones. Seconds; low and high are an 80 % interval.

    linear: whether the step times lie on one line over the accumulations, within their noise.
    """

    step_time_s: float
    low_s: float
    high_s: float
    fixed_s: float
    micro_batch_s: float
    linear: bool

    @property
    def half_width(self) -> float:
        """Half the interval, as a share of the step."""
        return (self.high_s - self.low_s) / 2 / self.step_time_s


def estimate_full_step(
    accumulations: Sequence[int], step_times_s: Sequence[float], full: int
) -> Extension | None:
    """Estimate the time of a step with `full` micro-batches from steps with fewer.

    A step takes F + m s: s seconds for each of its m micro-batches, and F for what happens once
    (the optimizer, the exchange of gradients and weights). Filling and draining a pipeline belongs
    to F: it takes the same number of slots for any m: p - 1 under 1F1B, (p - 1) / v interleaved
    with v chunks, (p - 1) / 3 under zero-bubble H1 (arXiv 2104.04473 section 2.2, 2401.10241
    section 2.3); the V-shaped schedules ZBV and DualPipeV have constants of their own. This holds
    from m = 2 p on, where filling and draining do not overlap.

    The line is fitted by weighted least squares to one value per accumulation: the mean of the
    middle half of its steps. Means add up and medians do not, and a median's bootstrap interval is
    too wide where neighbouring steps are correlated. The weight is 1 / m, because the variance of a
    sum of m independent micro-batches grows with m (on CPU ranks it grew with m^1.5).

    The interval is a bootstrap of whole rounds, or of blocks of rounds if neighbours are
    correlated. So a slow round moves F and s together. It is widened by the ratio of Student's t to
    the normal quantile, because few rounds underestimate the spread. It describes this run only.

    Args:
        accumulations: micro-batches of each step: rounds of the same counts, in any order.
        step_times_s: seconds of each step.
        full: micro-batches of the full step.

    Returns:
        None if there are fewer than two rounds or fewer than two different accumulations.
    """
    distinct = sorted(set(accumulations))
    rounds = len(accumulations) // len(distinct) if distinct else 0
    if rounds < 2 or len(distinct) < 2:
        return None
    used = rounds * len(distinct)
    order = np.asarray(accumulations[:used]).reshape(rounds, len(distinct))
    assert (np.sort(order) == distinct).all()
    times = np.asarray(step_times_s[:used], dtype=float).reshape(rounds, len(distinct))
    times = np.take_along_axis(times, np.argsort(order), axis=1)
    counts = np.asarray(distinct, dtype=float)
    centres = _centres(times)
    slope, fixed = _line(counts, centres[None])
    step_time_s = float(fixed[0] + full * slope[0])
    # relative to the median of each accumulation, so that slow rounds show as such
    length = block_length((times / np.median(times, axis=0)).mean(axis=1))
    drawn_rounds = drawn_blocks(rounds, length, _RESAMPLES, np.random.default_rng(_SEED))
    drawn = _centres(times[drawn_rounds])
    slopes, fixeds = _line(counts, drawn)
    errors = (fixeds + full * slopes - step_time_s) * _widening(rounds, LEVEL)
    low, high = np.quantile(errors, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Extension(
        step_time_s=step_time_s,
        low_s=step_time_s + min(float(low), 0.0),
        high_s=step_time_s + max(float(high), 0.0),
        fixed_s=float(fixed[0]),
        micro_batch_s=float(slope[0]),
        linear=_is_linear(counts, centres, drawn, full, step_time_s, _widening(rounds, _SURE)),
    )


def _centres(times: Values) -> Values:
    """Mean of the middle half of the rounds: (..., rounds, n) -> (..., n), n accumulations."""
    rounds = times.shape[-2]
    left_out = -(-(rounds - 1) // 4)  # at either end; three rounds leave their median
    middle = np.sort(times, axis=-2)[..., left_out : rounds - left_out, :]
    return np.asarray(middle.mean(axis=-2))


def _line(counts: Values, times: Values) -> tuple[Values, Values]:
    """Slopes and intercepts of the lines through (counts, row of times), with weights 1 / m."""
    weights = 1 / counts
    weights /= weights.sum()
    centre = float(weights @ counts)
    deviations = weights * (counts - centre)
    slope = times @ deviations / float(deviations @ counts)
    return slope, times @ weights - slope * centre


def _widening(rounds: int, level: float) -> float:
    """How much too narrow a bootstrap of few rounds is: Student's t over the normal quantile.

    t by the expansion of Cornish and Fisher (Abramowitz and Stegun 26.7.5): 1.529 for 80 % and 4
    degrees of freedom, where it is 1.533.
    """
    z, free = NormalDist().inv_cdf((1 + level) / 2), rounds - 1
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    t = z + first / free + second / free**2
    return t / z


def _is_linear(
    counts: Values, centres: Values, drawn: Values, full: int, step_time_s: float, widening: float
) -> bool:
    """Whether the lines through the first two and the last two accumulations agree at `full`.

    They disagree if their difference there is both beyond the noise and worth a full run.
    """
    if len(counts) < 3:
        return True

    def bend(rows: Values) -> Values:
        ends = []
        for at in (slice(0, 2), slice(len(counts) - 2, len(counts))):
            slope, fixed = _line(counts[at], rows[:, at])
            ends.append(fixed + full * slope)
        return np.asarray(ends[1] - ends[0])

    measured = float(bend(centres[None])[0])
    low, high = widening * np.quantile(bend(drawn) - measured, [(1 - _SURE) / 2, (1 + _SURE) / 2])
    beyond_noise = not low <= -measured <= high
    return not (beyond_noise and abs(measured) > _LARGEST_BEND * step_time_s)
