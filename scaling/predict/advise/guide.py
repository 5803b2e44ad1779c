"""Which points of one size are worth measuring: those near the predicted best, and some others.

Pure functions on arrays. Sizes are chosen from small to large: the measurements of smaller sizes
have calibrated the predictions that choose here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaling.arrays import Flags, Floats
from scaling.predict.cost.model import Prediction
from scaling.predict.fit.rivals import rows_by_setting
from scaling.predict.read.features import Points

# Seconds from an allocation to the first step, before any row was measured: imports, connections,
# building the model.
STARTUP_S = 60.0

# Kinds of wanted points, the most wanted first.
_NEAR_BEST, _UNPREDICTED, _SPREAD = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """What a study says about what to measure.

    keep: measure points whose predicted time exceeds the best of their size and setting by at most
        this ratio. None: all points, as far as the budget goes.
    spread: share of the other points to measure all the same, evenly from the fastest to the
        slowest, at least one per setting: a calibration that saw only winners knows nothing else.
    budget_gpu_s: GPU-seconds for all sizes together. None: no bound.
    steps: optimizer steps that a point runs, warm-up included.
    run_s: seconds of all steps of one run of each point, where these are not `steps` full ones.
    repeats: times that each point is yet to run, one number or (n,).
    startup_s: seconds before the first step.
    """

    keep: float | None
    spread: float
    budget_gpu_s: float | None
    steps: int
    repeats: int | npt.NDArray[np.int64] = 1
    startup_s: float = STARTUP_S
    run_s: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Whether one point of the size is measured, and if not, the reason in one sentence."""

    row: int
    chosen: bool
    reason: str | None
    predicted_step_time_s: float | None
    best_step_time_s: float | None  # predicted, of its size and setting


def choose(
    points: Points,
    prediction: Prediction,
    world_size: int,
    guide: Guide,
    *,
    spent_gpu_s: float = 0.0,
) -> list[Choice]:
    """Choose among the points of one size.

    What is left of the budget is divided among this size and the larger ones in proportion to the
    predicted time of their wanted points, so that small sizes cannot use it up.

    Args:
        points: of the whole study, each once whatever its repeats.
        prediction: of these points, calibrated on what the smaller sizes measured.
        world_size: the size to choose for.
        guide: what the study says.
        spent_gpu_s: GPU-seconds already spent.
    """
    cost = gpu_s(points, prediction, guide)
    wanted = [row for *_, row in _wanted(points, prediction, world_size, guide)]
    share = _budget_of_size(points, prediction, world_size, guide, cost, spent_gpu_s)
    chosen = set(affordable(wanted, cost, share))
    left_out = set(wanted) - chosen
    best = _best_of_setting(points, prediction, points.world_size == world_size)
    likely_oom = prediction.likely_oom
    choices = []
    for row in np.flatnonzero(points.world_size == world_size).tolist():
        reason = None
        if row in left_out:
            reason = _over_budget(guide, world_size, share, float(cost[row]))
        elif row not in chosen:
            reason = _not_near(prediction, row, float(best[row]), guide, bool(likely_oom[row]))
        predicted = bool(prediction.predicted[row])
        choices.append(
            Choice(
                row=row,
                chosen=row in chosen,
                reason=reason,
                predicted_step_time_s=float(prediction.step_time_s[row]) if predicted else None,
                best_step_time_s=float(best[row]) if predicted and np.isfinite(best[row]) else None,
            )
        )
    return choices


def _wanted(
    points: Points, prediction: Prediction, world_size: float, guide: Guide
) -> list[tuple[int, int, int]]:
    """The size's wanted points as (kind, rank among those of its setting, row), most wanted first.

    They are points near the best of their setting, points that cannot be predicted, and a spread of
    the others.
    """
    of_size = points.world_size == world_size
    unpredicted = np.flatnonzero(of_size & ~prediction.predicted).tolist()
    wanted = [(_UNPREDICTED, 0, row) for row in unpredicted]
    for rows in rows_by_setting(points, of_size & prediction.predicted).values():
        at = np.array(rows)
        time, startable = prediction.risk_adjusted_s[at], ~prediction.likely_oom[at]
        limit = math.inf
        if guide.keep is not None:
            limit = (1 + guide.keep) * float(time[startable].min(initial=math.inf))
        near = startable & (time <= limit)
        fastest_first = at[near][np.argsort(time[near], kind="stable")]
        wanted += [(_NEAR_BEST, rank, row) for rank, row in enumerate(fastest_first.tolist())]
        others = at[~near][np.argsort(time[~near], kind="stable")]
        spread = _evenly_spread(others, guide.spread)
        wanted += [(_SPREAD, rank, row) for rank, row in enumerate(spread.tolist())]
    return sorted(wanted, key=lambda point: point[:2])


def _evenly_spread(rows: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.int64]:
    """That share of the rows, at least one unless it is 0: the middles of equal parts."""
    count = min(len(rows), max(1, math.ceil(share * len(rows)))) if share else 0
    if not count:
        return rows[:0]
    places = (np.arange(count) + 0.5) * len(rows) / count
    return rows[places.astype(np.int64)]


def gpu_s(points: Points, prediction: Prediction, guide: Guide) -> Floats:
    """GPU-seconds of what points are yet to run, (n,); one that does not fit ends at its start."""
    run_s = guide.steps * prediction.step_time_s if guide.run_s is None else guide.run_s
    run_s = np.where(prediction.fits & prediction.predicted, run_s, 0.0)
    return np.asarray(points.world_size * guide.repeats * (run_s + guide.startup_s))


def _budget_of_size(
    points: Points,
    prediction: Prediction,
    world_size: int,
    guide: Guide,
    cost: Floats,
    spent_gpu_s: float,
) -> float:
    """This size's GPU-seconds of what is left for it and the larger ones; infinite if unbound."""
    if guide.budget_gpu_s is None:
        return math.inf
    left = max(0.0, guide.budget_gpu_s - spent_gpu_s)
    sizes = sorted({size for size in points.world_size.tolist() if size >= world_size})
    wanted = {
        size: sum(float(cost[row]) for *_, row in _wanted(points, prediction, size, guide))
        for size in sizes
    }
    return left * wanted[world_size] / max(sum(wanted.values()), 1e-9)


def reserved_gpu_s(
    points: Points, prediction: Prediction, world_size: float, guide: Guide
) -> float:
    """GPU-seconds of the predicted best of each setting of the larger sizes."""
    cost = gpu_s(points, prediction, guide)
    larger = {size for size in points.world_size.tolist() if size > world_size}
    wanted = [point for size in larger for point in _wanted(points, prediction, size, guide)]
    return math.fsum(
        float(cost[row]) for kind, rank, row in wanted if (kind, rank) == (_NEAR_BEST, 0)
    )


def affordable(rows: Sequence[int], cost: Floats, bound: float) -> list[int]:
    """Take rows in their order, leaving out those that no longer fit into `bound` GPU-seconds."""
    taken, used = [], 0.0
    for row in rows:
        if used + float(cost[row]) <= bound * (1 + 1e-9):
            taken.append(row)
            used += float(cost[row])
    return taken


def _best_of_setting(points: Points, prediction: Prediction, rows: Flags) -> Floats:
    """Predicted time of the best startable point of each row's setting, NaN without one, (n,)."""
    best = np.full(len(points), np.nan)
    for of_setting in rows_by_setting(points, rows & prediction.predicted).values():
        at = np.array(of_setting)
        startable = at[~prediction.likely_oom[at]]
        if startable.size:
            first = startable[np.argmin(prediction.risk_adjusted_s[startable])]
            best[at] = prediction.step_time_s[first]
    return best


def _over_budget(guide: Guide, world_size: int, share: float, cost: float) -> str:
    assert guide.budget_gpu_s is not None
    return (
        f"budget_gpu_hours={guide.budget_gpu_s / 3600:.3g}: of the {share / 3600:.3g} GPU-hours "
        f"left for world_size={world_size} too few remained for the {cost / 3600:.3g} of this point"
    )


def _not_near(prediction: Prediction, row: int, best: float, guide: Guide, likely_oom: bool) -> str:
    need = float(prediction.need_bytes[row] / prediction.capacity_bytes[row])
    if likely_oom:
        return f"predicted memory is {need:.0%} of a GPU's"
    time = float(prediction.step_time_s[row])
    reason = f"predicted {time:.3g} s a step, {time / best - 1:.0%} more than the best of its size"
    if prediction.risk_adjusted_s[row] > time * 1.001:
        reason += f", or more: its memory is predicted {need:.0%} full"
    assert guide.keep is not None
    return f"{reason} (keep={guide.keep:g})"
