"""Choosing again within a size: what a measurement beyond its interval makes worth measuring."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.advise.guide import Guide, affordable, gpu_s
from scaling.predict.cost.model import Prediction
from scaling.predict.cost.ratios import chance_faster, ratio_sigma
from scaling.predict.fit.validation import settings_of
from scaling.predict.read.features import Points

# Times that a size is chosen for again: a surprise among the second choice still finds a third.
TURNS = 2
# A layout is worth a run if its odds to beat the best measured one are at least this.
_WORTH_A_RUN = 0.1
# So many of a setting's points are added at most, and one always may be.
_MOST_OF_A_SETTING = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the points of a study have shown so far, (n,): `step_time_s` NaN where none ran."""

    measured: Flags
    step_time_s: Floats
    out_of_memory: Flags


def surprises(prediction: Prediction, seen: Seen) -> Flags:
    """Measured points that are not as was foretold, bool (n,).

    A step outside of its 80 % interval, or out of memory what was likelier to fit by far.

    Args:
        prediction: of before they were measured.
        seen: what was measured since.
    """
    timed = seen.measured & (seen.step_time_s > 0)
    outside = (seen.step_time_s < prediction.low) | (seen.step_time_s > prediction.high)
    failed = seen.measured & seen.out_of_memory & (prediction.fits_chance > 0.9)
    return np.asarray(timed & outside | failed)


def choose_again(
    points: Points,
    prediction: Prediction,
    surprised: Flags,
    seen: Seen,
    world_size: float,
    guide: Guide,
    *,
    spent_gpu_s: float = 0.0,
) -> list[int]:
    """More points of a size to measure, most promising first; none where nothing surprised.

    Of each setting that held a surprise: the points not measured yet whose odds to beat the best
    one measured there are at least a tenth, by predictions that have learned of the surprise. Of a
    budget they may take all that is left: what the model is most wrong about comes first.

    Args:
        points: of the whole study.
        prediction: of these points, calibrated on what this size has measured too.
        surprised: of `surprises`.
        seen: what was measured.
        world_size: the size.
        guide: what the study says.
        spent_gpu_s: GPU-seconds already spent.
    """
    promising: list[tuple[float, int]] = []
    for rows in settings_of(points, points.world_size == world_size).values():
        at = np.array(rows)
        if not surprised[at].any():
            continue
        times = seen.step_time_s[at][seen.measured[at] & (seen.step_time_s[at] > 0)]
        left = at[~seen.measured[at] & prediction.predicted[at] & ~prediction.passed_over[at]]
        odds: Floats = np.ones(len(left))
        if times.size:
            # the best one is measured: only the other's error counts
            sigma = ratio_sigma(prediction.own_sigma[left], 0.0)
            odds = chance_faster(prediction.ranked_s[left], float(times.min()), sigma)
        order = np.lexsort((prediction.ranked_s[left], -odds))[: _most(at)]
        promising += [
            (-float(odds[i]), int(left[i])) for i in order.tolist() if odds[i] >= _WORTH_A_RUN
        ]
    rows = [row for _, row in sorted(promising)]
    return affordable(rows, gpu_s(points, prediction, guide), _budget(guide) - spent_gpu_s)


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
        left = at[~chosen[at] & ~prediction.passed_over[at]]
        fastest = left[np.argsort(prediction.ranked_s[left], kind="stable")]
        rows += fastest[: TURNS * _most(at)].tolist()
    cost = gpu_s(points, prediction, guide)
    return affordable(rows, cost, _budget(guide) - float(cost[chosen].sum()))


def _budget(guide: Guide) -> float:
    return np.inf if guide.budget_gpu_s is None else guide.budget_gpu_s


def _most(setting: npt.NDArray[np.int64]) -> int:
    """Points of a setting that one turn adds at most."""
    return max(1, int(_MOST_OF_A_SETTING * len(setting)))
