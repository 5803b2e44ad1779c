"""Choosing again within a size: what its measurements make worth measuring too."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.advise.guide import Guide, affordable, gpu_s, reserved_gpu_s
from scaling.predict.cost.model import Prediction
from scaling.predict.cost.ratios import expected_gain, ratio_sigma
from scaling.predict.fit.coverage import settings_of
from scaling.predict.read.features import Points

# Times that a size is chosen for again: what surprises among the second choice finds a third.
TURNS = 2
# A setting is left alone once all that is left of it is expected to gain less than this on the best
# measured one, as a ratio: about what runs of one layout differ by.
_WORTH_A_RUN = 0.01
# So many of a setting's points are added at most, and one always may be.
_MOST_OF_A_SETTING = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the points of a study have shown so far, (n,): `step_time_s` NaN where none ran."""

    measured: Flags
    step_time_s: Floats


def choose_again(
    points: Points,
    prediction: Prediction,
    seen: Seen,
    world_size: float,
    guide: Guide,
    *,
    spent_gpu_s: float = 0.0,
) -> list[int]:
    """More points of a size to measure, most promising first; none where little can be gained.

    Of each setting the points not measured yet that are expected to gain most on the best one
    measured there, by predictions that have learned of those measured, until the rest is expected
    to gain too little. What it gains is at most the sum of what each of it gains, however alike
    their errors are. Of a budget they may take all that is left but the predicted best of each
    setting of the larger sizes: where most can be gained for a GPU-second comes first.

    Args:
        points: of the whole study.
        prediction: of these points, calibrated on what this size has measured too.
        seen: what was measured.
        world_size: the size.
        guide: what the study says.
        spent_gpu_s: GPU-seconds already spent.
    """
    promising: list[tuple[float, int]] = []
    cost = gpu_s(points, prediction, guide)
    for rows in settings_of(points, points.world_size == world_size).values():
        at = np.array(rows)
        times = seen.step_time_s[at][seen.measured[at] & (seen.step_time_s[at] > 0)]
        left = at[~seen.measured[at] & prediction.predicted[at] & ~prediction.likely_oom[at]]
        gains: Floats = np.full(len(left), np.inf)
        if times.size:
            # the best one is measured: only the other's error counts
            sigma = ratio_sigma(prediction.own_sigma[left], 0.0)
            gains = expected_gain(prediction.risk_adjusted_s[left], float(times.min()), sigma)
        order = np.lexsort((prediction.risk_adjusted_s[left], -gains))
        with_the_rest = np.cumsum(gains[order][::-1])[::-1]
        worth = order[with_the_rest >= _WORTH_A_RUN][: _most(at)]
        promising += [(-float(gains[i] / cost[left[i]]), int(left[i])) for i in worth.tolist()]
    rows = [row for _, row in sorted(promising)]
    reserved = reserved_gpu_s(points, prediction, world_size, guide)
    return affordable(rows, cost, _budget(guide) - spent_gpu_s - reserved)


def most_again(points: Points, prediction: Prediction, chosen: Flags, guide: Guide) -> list[int]:
    """What surprises everywhere would add: of each setting the predicted fastest not chosen.

    A bound for a price: as many as may be chosen again, within what is left of the budget.

    Args:
        points: of the whole study.
        prediction: of these points.
        chosen: what is measured without a surprise.
        guide: what the study says.
    """
    rows: list[int] = []
    for at in map(np.array, settings_of(points, prediction.predicted).values()):
        left = at[~chosen[at] & ~prediction.likely_oom[at]]
        fastest = left[np.argsort(prediction.risk_adjusted_s[left], kind="stable")]
        rows += fastest[: TURNS * _most(at)].tolist()
    cost = gpu_s(points, prediction, guide)
    return affordable(rows, cost, _budget(guide) - float(cost[chosen].sum()))


def _budget(guide: Guide) -> float:
    return np.inf if guide.budget_gpu_s is None else guide.budget_gpu_s


def _most(setting: npt.NDArray[np.int64]) -> int:
    """Points of a setting that one turn adds at most."""
    return max(1, int(_MOST_OF_A_SETTING * len(setting)))
