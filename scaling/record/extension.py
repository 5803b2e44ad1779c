"""A full step from short ones: what a step does once, and what each further micro-batch adds."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from scaling.record.interval import block_length, drawn_blocks

Values = npt.NDArray[np.float64]

_RESAMPLES = 2000
_SEED = 20_200  # fixed: a row read twice gives one interval, and ranks agree
LEVEL = 0.80
_SURE = 0.99  # that three accumulations disagree, before a point is run in full for it
_BENT = 0.02  # of the full step: a bend that matters less is left alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A full step as short ones say it. Seconds; low and high are an 80 % interval.

    linear: whether the accumulations lie on one line, as far as their noise can tell.
    """

    step_time_s: float
    low_s: float
    high_s: float
    fixed_s: float
    micro_batch_s: float
    linear: bool

    @property
    def half_width(self) -> float:
        """Half the interval as a share of the step."""
        return (self.high_s - self.low_s) / 2 / self.step_time_s


def estimate_full_step(
    accumulations: Sequence[int], step_times_s: Sequence[float], full: int
) -> Extension | None:
    """The step of `full` micro-batches, from steps of fewer ones that took turns.

    A step lasts F + m s: s seconds for each of its m micro-batches, and F for what happens once
    (the optimizer, the exchange of gradients and weights) together with the filling and draining
    of a pipeline, which lasts as many slots whatever m is: p - 1 of them under 1F1B, (p - 1) / v
    interleaved with v chunks, (p - 1) / 3 under zero-bubble H1 (arXiv 2104.04473 section 2.2,
    2401.10241 section 2.3); those in the shape of a V, ZBV and DualPipeV, have constants of their
    own, as pairs of chunks meet at the turn. That holds from m = 2 p on, where filling and
    draining do not meet; so the schedule's count of slots is m + constant, which is in F.

    The line is fitted by weighted least squares to one value per accumulation: the mean of the
    middle half of its steps. A mean, because seconds add up in means and not in medians, and
    because a median's bootstrap interval is too wide where neighbouring steps are alike. The weight
    is 1 / m: the variance of a sum of m independent micro-batches grows with m (on CPU ranks it
    grew with m^1.5, benchmarks/short_steps.py).

    The interval is a bootstrap of whole rounds, or of blocks of rounds where neighbours are alike,
    so that a slow round moves F and s together. It is widened as Student's t is wider than the
    normal distribution, since few rounds show less than their spread. It describes this run only.

    `accumulations` are the micro-batches of each step, rounds of the same ones in any order. None
    if there are fewer than two rounds or two accumulations.
    """
    kinds = sorted(set(accumulations))
    rounds = len(accumulations) // len(kinds) if kinds else 0
    if rounds < 2 or len(kinds) < 2:
        return None
    used = rounds * len(kinds)
    turns = np.asarray(accumulations[:used]).reshape(rounds, len(kinds))
    assert (np.sort(turns) == kinds).all()
    times = np.asarray(step_times_s[:used], dtype=float).reshape(rounds, len(kinds))
    times = np.take_along_axis(times, np.argsort(turns), axis=1)
    counts = np.asarray(kinds, dtype=float)
    centres = _centres(times)
    slope, fixed = _line(counts, centres[None])
    value = float(fixed[0] + full * slope[0])
    # as a share of each accumulation's own level, so that a slow round shows whatever it held
    length = block_length((times / np.median(times, axis=0)).mean(axis=1))
    drawn_rounds = drawn_blocks(rounds, length, _RESAMPLES, np.random.default_rng(_SEED))
    drawn = _centres(times[drawn_rounds])
    slopes, fixeds = _line(counts, drawn)
    off = (fixeds + full * slopes - value) * _widened(rounds, LEVEL)
    low, high = np.quantile(off, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Extension(
        step_time_s=value,
        low_s=value + min(float(low), 0.0),
        high_s=value + max(float(high), 0.0),
        fixed_s=float(fixed[0]),
        micro_batch_s=float(slope[0]),
        linear=_is_linear(counts, centres, drawn, full, value, _widened(rounds, _SURE)),
    )


def _centres(times: Values) -> Values:
    """Of each accumulation the mean of the middle half of its rounds, (..., rounds, kinds)."""
    rounds = times.shape[-2]
    left_out = -(-(rounds - 1) // 4)  # at either end; of three rounds the median is left
    middle = np.sort(times, axis=-2)[..., left_out : rounds - left_out, :]
    return np.asarray(middle.mean(axis=-2))


def _line(counts: Values, times: Values) -> tuple[Values, Values]:
    """Slope and intercept of the line through (counts, each row of times), each weighing 1 / m."""
    weights = 1 / counts
    weights /= weights.sum()
    middle = float(weights @ counts)
    away = weights * (counts - middle)
    slope = times @ away / float(away @ counts)
    return slope, times @ weights - slope * middle


def _widened(rounds: int, level: float) -> float:
    """What a bootstrap of so few rounds falls short by: Student's t over the normal's quantile.

    t by its expansion of Cornish and Fisher (Abramowitz and Stegun 26.7.5): 1.529 for 80 % and 4
    degrees of freedom, where it is 1.533.
    """
    z, free = NormalDist().inv_cdf((1 + level) / 2), rounds - 1
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    t = z + first / free + second / free**2
    return t / z


def _is_linear(
    counts: Values, centres: Values, drawn: Values, full: int, value: float, widened: float
) -> bool:
    """Whether the line through the first two and that through the last two say the same.

    What they differ by at the full step must be both beyond the noise and worth a full run.
    """
    if len(counts) < 3:
        return True

    def bend(rows: Values) -> Values:
        ends = []
        for at in (slice(0, 2), slice(len(counts) - 2, len(counts))):
            slope, fixed = _line(counts[at], rows[:, at])
            ends.append(fixed + full * slope)
        return np.asarray(ends[1] - ends[0])

    seen = float(bend(centres[None])[0])
    low, high = widened * np.quantile(bend(drawn) - seen, [(1 - _SURE) / 2, (1 + _SURE) / 2])
    surely = not low <= -seen <= high
    return not (surely and abs(seen) > _BENT * value)
