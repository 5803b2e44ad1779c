"""How sure a median is: a bootstrap interval, the same for the same numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 2000
_SEED = 20_200  # fixed: a row read twice gives one interval


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianInterval:
    """A median and its percentile interval, in the unit of the values."""

    median: float
    low: float | None  # None: a single value says nothing about its spread
    high: float | None


def median_interval(values: Sequence[float], *, level: float = 0.95) -> MedianInterval:
    """The median with its percentile bootstrap interval (Efron, 1979), 2000 resamples.

    Steps of one run are not independent (a slow node slows all of them), so the interval describes
    this run; repeats describe the layout.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("the median of no values is undefined")
    known = np.asarray(values, dtype=float)
    median = float(np.median(known))
    if len(known) == 1:
        return MedianInterval(median=median, low=None, high=None)
    random = np.random.default_rng(_SEED)
    chosen = random.integers(len(known), size=(_RESAMPLES, len(known)))
    medians = np.median(known[chosen], axis=1)
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return MedianInterval(median=median, low=float(low), high=float(high))
