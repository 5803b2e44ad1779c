"""The confidence interval of a median step time, and when enough steps have been measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

_LEVEL = 0.95
_RESAMPLES = 2000
_AT_ONCE = 1 << 20  # values drawn at a time, which bounds memory
_SEED = 20_200  # fixed, so that the same steps give the same interval

MOST_DROPPED = 0.5  # share of the steps; where MSER would drop more, there are too few to judge
_CHECK_GROWTH = 0.1  # check after each tenth more steps; frequent checks stop too early by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianInterval:
    """A median and its percentile interval, in the unit of the values."""

    median: float
    low: float | None  # None for a single value, which has no spread
    high: float | None


def median_interval(values: Sequence[float]) -> MedianInterval:
    """Compute the median of one run and its 95 % percentile interval by a moving-block bootstrap.

    Neighbouring steps are correlated (a throttled clock, other traffic on the network), so blocks
    of neighbours are drawn instead of single steps (Kuensch, Annals of Statistics 17, 1989), 2000
    times; the time this takes is linear in the steps. The interval describes this run only;
    differences between runs need repeats. Its real coverage is 95 % for five independent steps or
    more (79 % for three, 50 % for two). With a correlation of 0.7 it is about 85 % from 100 steps
    on. It is 65 % for 20 steps, which are too few to estimate the correlation.

    Raises:
        ValueError: the list is empty.
    """
    if not values:
        raise ValueError("the median of no values is undefined")
    numbers = np.asarray(values, dtype=float)
    median = float(np.median(numbers))
    if len(numbers) == 1:
        return MedianInterval(median=median, low=None, high=None)
    random, length = np.random.default_rng(_SEED), block_length(numbers)
    at_once = max(1, _AT_ONCE // len(numbers))
    medians = [
        np.median(numbers[drawn_blocks(len(numbers), length, count, random)], axis=1)
        for at in range(0, _RESAMPLES, at_once)
        if (count := min(at_once, _RESAMPLES - at))
    ]
    low, high = np.quantile(np.concatenate(medians), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    # blocks draw the first and last steps less often; keep the median inside all the same
    return MedianInterval(median=median, low=min(float(low), median), high=max(float(high), median))


def drawn_blocks(
    n: int, length: int, count: int, random: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw blocks of neighbours from n values: the indices of `count` resamples, (count, n)."""
    starts = random.integers(n - length + 1, size=(count, -(-n // length)))
    return (starts[:, :, None] + np.arange(length)).reshape(count, -1)[:, :n]


def block_length(values: Values) -> int:
    """Choose the steps per block as Politis and White do, at most a third of the steps.

    Econometric Reviews 23 (2004), with the correction of Patton, Politis and White, 28 (2009):
    b = (2 G^2 / D)^(1/3) n^(1/3) with D = 4/3 g^2; g = sum of w(k/M) R(k) and G = sum of
    w(k/M) |k| R(k); lags k go from -M to M; R is the autocovariance, w the flat-top window. M is
    twice the lag after which max(5, sqrt(log10 n)) correlations in a row are below
    2 sqrt(log10 n / n). The length is 1
    if no correlation is found.
    """
    n = len(values)
    centred = values - values.mean()
    variance = float(centred @ centred) / n
    if n < 9 or variance <= (1e-12 * float(np.abs(values).max())) ** 2:
        return 1
    quiet = max(5, math.ceil(math.sqrt(math.log10(n))))
    most = min(n - 1, math.ceil(math.sqrt(n)) + quiet)
    covariance = np.array([float(centred[: n - k] @ centred[k:]) / n for k in range(most + 1)])
    small = np.abs(covariance[1:] / variance) < 2 * math.sqrt(math.log10(n) / n)
    last = next((lag for lag in range(most) if small[lag : lag + quiet].all()), most)
    reach = min(2 * max(last, 1), most)
    lags = np.arange(1, reach + 1)
    window = np.minimum(1, 2 * (1 - lags / reach))
    spectrum = covariance[0] + 2 * float(window @ covariance[1 : reach + 1])
    slope = 2 * float((window * lags) @ covariance[1 : reach + 1])
    if last == 0 or spectrum <= 0:
        return 1
    best = (2 * slope**2 / (4 / 3 * spectrum**2)) ** (1 / 3) * n ** (1 / 3)
    return min(max(1, math.ceil(float(best))), n // 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsVerdict:
    """Whether the steps measured so far suffice.

    dropped: first steps that still belong to the warm-up.
    steady: whether a steady state follows them.
    enough: whether it does, and the interval of its median is as narrow as asked.
    """

    dropped: int
    steady: bool
    enough: bool


def warm_up(step_times_s: Sequence[float]) -> int | None:
    """Count the first steps that are not yet steady; None if no steady state can be seen.

    The marginal standard error rule, MSER (White, Simulation 69, 1997; the best of those compared
    by Hoad, Robinson and Davies, J. Oper. Res. Soc. 61, 2010): drop the number d of steps for which
    the sum of squared deviations of the rest over (n - d)^2, the error of their mean, is smallest.
    If that drops half of the steps or more, the series is too short or drifts; a straight line
    without noise gives this at any length.
    """
    times = np.asarray(step_times_s, dtype=float)
    n = len(times)
    most = int(n * MOST_DROPPED)
    errors = [
        float(((rest - rest.mean()) ** 2).sum()) / len(rest) ** 2
        for dropped in range(most + 1)
        if len(rest := times[dropped:]) > 1
    ]
    if not errors:
        return None
    best = int(np.argmin(errors))
    return best if best < max(1, most) else None


def judge_steps(step_times_s: Sequence[float], *, at_least: int, until: float) -> StepsVerdict:
    """Decide whether these steps suffice.

    Args:
        step_times_s: seconds of the slowest rank, after the configured warm-up.
        at_least: steps to measure in any case.
        until: the wanted precision: half the 95 % interval of the median over the median.
    """
    dropped = warm_up(step_times_s)
    enough = False
    if dropped is not None and len(step_times_s) - dropped >= at_least:
        interval = median_interval(step_times_s[dropped:])
        if interval.low is not None and interval.high is not None:
            enough = (interval.high - interval.low) / 2 <= until * interval.median
    return StepsVerdict(dropped=dropped or 0, steady=dropped is not None, enough=enough)


def is_check_due(steps: int, at_least: int) -> bool:
    """Whether to judge the steps now: after `at_least` steps, then after each tenth more."""
    check = at_least
    while check < steps:
        check += max(1, int(check * _CHECK_GROWTH))
    return check == steps
