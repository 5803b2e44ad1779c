"""Choosing again within a size: which points its measurements make worth measuring too."""

from dataclasses import dataclass

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.predict.advise.guide import Guide, affordable, gpu_s, reserved_gpu_s
from scaling.predict.cost.model import Prediction
from scaling.predict.cost.ratios import expected_gain, ratio_sigma
from scaling.predict.fit.rivals import rows_by_setting
from scaling.predict.read.features import Points

# How often a size is chosen for again: surprises in the second choice lead to a third.
TURNS = 2
# A setting is left alone once all that is left of it is expected to gain less than this ratio on
# the best measured point: about what runs of one layout differ by.
_WORTH_A_RUN = 0.01
# Share of a setting's points that one turn adds at most; it may always add one.
_MOST_OF_A_SETTING = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What was measured of a study's points so far, (n,): `step_time_s` is NaN where none ran."""

    measured: Flags
    step_time_s: Floats


def choose_again(
    points: Points,
    prediction: Prediction,
    progress: Progress,
    world_size: float,
    guide: Guide,
    *,
    spent_gpu_s: float = 0.0,
) -> list[int]:
    """More rows of a size to measure, most promising first; none where little can be gained.

    In each setting these are the points that are expected to gain most on the best measured one, by
    predictions that have learned from those measured, until the rest together is expected to gain
    too little. (The rest gains at most the sum of its points' gains, however alike their errors
    are.) Of a budget they may take all that is left, except for the predicted best of each setting
    of the larger sizes, even if their steps take as long as they may (`high`). The order is by gain
    per GPU-second.

    Args:
        points: of the whole study.
        prediction: of these points, calibrated on what this size has measured too.
        progress: what was measured.
        world_size: the size.
        guide: what the study says.
        spent_gpu_s: GPU-seconds already spent.
    """
    promising: list[tuple[float, int]] = []
    cost = gpu_s(points, prediction, guide)
    startable = prediction.predicted & ~prediction.likely_oom
    for rows in rows_by_setting(points, points.world_size == world_size).values():
        at = np.array(rows)
        times = progress.step_time_s[at[progress.measured[at]]]
        times = times[times > 0]
        left = at[~progress.measured[at] & startable[at]]
        gains: Floats = np.full(len(left), np.inf)
        if times.size:
            # the best one is measured, so only the other's error counts
            sigma = ratio_sigma(prediction.own_sigma[left], 0.0)
            gains = expected_gain(prediction.risk_adjusted_s[left], float(times.min()), sigma)
        order = np.lexsort((prediction.risk_adjusted_s[left], -gains))
        gain_of_rest = np.cumsum(gains[order][::-1])[::-1]
        worth = order[gain_of_rest >= _WORTH_A_RUN][: _most_added(len(at))]
        promising += [(-float(gains[i] / cost[left[i]]), int(left[i])) for i in worth.tolist()]
    reserved = reserved_gpu_s(points, prediction, world_size, guide)
    bound = _budget(guide) - spent_gpu_s - reserved
    at_most = cost * prediction.high / prediction.step_time_s
    return affordable([row for _, row in sorted(promising)], at_most, bound)


def most_again(points: Points, prediction: Prediction, chosen: Flags, guide: Guide) -> list[int]:
    """The most that choosing again could add, for a price: in each setting the fastest not chosen.

    As many as all turns may add, within what is left of the budget.

    Args:
        points: of the whole study.
        prediction: of these points.
        chosen: what is measured without a surprise.
        guide: what the study says.
    """
    rows: list[int] = []
    for at in map(np.array, rows_by_setting(points, prediction.predicted).values()):
        left = at[~chosen[at] & ~prediction.likely_oom[at]]
        fastest = left[np.argsort(prediction.risk_adjusted_s[left], kind="stable")]
        rows += fastest[: TURNS * _most_added(len(at))].tolist()
    cost = gpu_s(points, prediction, guide)
    return affordable(rows, cost, _budget(guide) - float(cost[chosen].sum()))


def _budget(guide: Guide) -> float:
    return np.inf if guide.budget_gpu_s is None else guide.budget_gpu_s


def _most_added(setting_size: int) -> int:
    """Points that one turn adds at most in a setting of so many."""
    return max(1, int(_MOST_OF_A_SETTING * setting_size))
