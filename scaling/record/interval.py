"""How sure a median of one run is, and when its steps have been measured for long enough."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

_LEVEL = 0.95
_RESAMPLES = 2000
_AT_ONCE = 1 << 20  # values drawn in one go: memory does not grow with steps
_SEED = 20_200  # fixed: a row read twice gives one interval

MOST_DROPPED = 0.5  # of the steps: beyond it MSER says that there are too few to judge by
_LOOKS = 0.1  # a look each time the steps have grown by a tenth: looking often stops too early


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianInterval:
    """A median and its percentile interval, in the unit of the values."""

    median: float
    low: float | None  # None: a single value says nothing about its spread
    high: float | None


def median_interval(values: Sequence[float]) -> MedianInterval:
    """The median of one run with its 95 % percentile interval, by a moving-block bootstrap.

    Steps that follow each other are alike (a clock that is held down, a neighbour on the network),
    so blocks of neighbouring steps are drawn and not single ones (Kuensch, Annals of Statistics 17,
    1989), 2000 times, in time that grows with the steps and not faster. It is an interval of this
    run: what differs between runs only repeats can tell. Of steps that follow each other with a
    correlation of 0.7 it covers about 85 % from 100 steps on, and 65 % of the time with 20, which
    are too few to show how alike they are; of independent steps 95 %.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("the median of no values is undefined")
    numbers = np.asarray(values, dtype=float)
    median = float(np.median(numbers))
    if len(numbers) == 1:
        return MedianInterval(median=median, low=None, high=None)
    medians = resampled_medians(numbers, _RESAMPLES, np.random.default_rng(_SEED))
    low, high = np.quantile(medians, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    # blocks count the first and last steps less often, which must not push the median out
    return MedianInterval(median=median, low=min(float(low), median), high=max(float(high), median))


def resampled_medians(values: Values, count: int, random: np.random.Generator) -> Values:
    """Medians of `count` series of blocks drawn from `values`, each of as many values, (count,)."""
    length = block_length(values)
    medians = np.empty(count)
    step = max(1, _AT_ONCE // len(values))
    for at in range(0, count, step):
        chosen = drawn_blocks(len(values), length, min(step, count - at), random)
        medians[at : at + step] = np.median(values[chosen], axis=1)
    return medians


def drawn_blocks(
    n: int, length: int, count: int, random: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Which of n values each of `count` resamples holds, (count, n): blocks of neighbours."""
    starts = random.integers(n - length + 1, size=(count, -(-n // length)))
    return (starts[:, :, None] + np.arange(length)).reshape(count, -1)[:, :n]


def block_length(values: Values) -> int:
    """Steps of a block: the automatic choice of Politis and White, at most a third of the steps.

    Econometric Reviews 23 (2004), with the correction of Patton, Politis and White, 28 (2009):
    b = (2 G^2 / D)^(1/3) n^(1/3), D = 4/3 g^2, g = sum of w(k/M) R(k), G = sum of w(k/M) |k| R(k)
    over lags k from -M to M, R the autocovariance, w the flat-top window. M is twice the lag behind
    which max(5, sqrt(log10 n)) correlations in a row are below 2 sqrt(log10 n / n). Of steps that
    are not seen to be alike it is 1.
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
    """What the steps so far say.

    dropped: steps at the beginning that were warm-up still.
    steady: whether what follows them is seen to be.
    precise: whether the interval of its median is as narrow as asked.
    """

    dropped: int
    steady: bool
    precise: bool

    @property
    def enough(self) -> bool:
        """Whether no further step is needed."""
        return self.steady and self.precise


def warm_up(step_times_s: Sequence[float]) -> int | None:
    """Steps at the beginning that are not yet like the rest; None if none of them can be.

    The marginal standard error rule, MSER (White, Simulation 69, 1997; compared with others by
    Hoad, Robinson and Davies, J. Oper. Res. Soc. 61, 2010, who found it the best): of all numbers d
    of steps to drop the one with the smallest sum of squared deviations of the rest over (n - d)^2,
    which is the error of the mean of what is kept. Where it would drop half of the steps or more,
    the series is too short to say, or drifts; so it does for a line without noise at any length.
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
    """Whether these steps, the slowest rank's behind the warm-up that was asked for, suffice.

    `at_least` are measured whatever they say; `until` is a ratio, half the 95 % interval of the
    median over it.
    """
    dropped = warm_up(step_times_s)
    if dropped is None or len(step_times_s) - dropped < at_least:
        return StepsVerdict(dropped=dropped or 0, steady=dropped is not None, precise=False)
    interval = median_interval(step_times_s[dropped:])
    has_ends = interval.low is not None and interval.high is not None
    width = (interval.high - interval.low) / 2 if has_ends else float("inf")  # type: ignore[operator]
    return StepsVerdict(dropped=dropped, steady=True, precise=width <= until * interval.median)


def is_check_due(steps: int, at_least: int) -> bool:
    """Whether the ranks ask after this many steps: at the least, then after each tenth more."""
    look = at_least
    while look < steps:
        look += max(1, int(look * _LOOKS))
    return look == steps
