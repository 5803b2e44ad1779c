"""When steps have been measured for long enough: which were warm-up, and when to stop."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.record.interval import median_interval

MOST_DROPPED = 0.5  # of the steps: beyond it MSER says that there are too few to judge by
_LOOKS = 0.1  # a look each time the steps have grown by a tenth: looking often stops too early


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
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


def judged(step_times_s: Sequence[float], *, at_least: int, until: float) -> Verdict:
    """Whether these steps, the slowest rank's behind the warm-up that was asked for, suffice.

    `at_least` are measured whatever they say; `until` is a ratio, half the 95 % interval of the
    median (scaling/record/interval.py) over it.
    """
    dropped = warm_up(step_times_s)
    if dropped is None or len(step_times_s) - dropped < at_least:
        return Verdict(dropped=dropped or 0, steady=dropped is not None, precise=False)
    interval = median_interval(step_times_s[dropped:])
    has_ends = interval.low is not None and interval.high is not None
    width = (interval.high - interval.low) / 2 if has_ends else float("inf")  # type: ignore[operator]
    return Verdict(dropped=dropped, steady=True, precise=width <= until * interval.median)


def is_a_look(steps: int, at_least: int) -> bool:
    """Whether the ranks ask after this many steps: at the least, then after each tenth more."""
    look = at_least
    while look < steps:
        look += max(1, int(look * _LOOKS))
    return look == steps
