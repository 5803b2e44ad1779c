"""Which points of one size are worth measuring: near the predicted best, and a spread of others.

Pure, on arrays. Sizes come small first: what the smaller ones measured has calibrated the
predictions that choose here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.model import Prediction
from scaling.predict.fit.coverage import settings_of
from scaling.predict.read.features import Points

# Seconds from an allocation to the first step before any row has told: imports, connections, model.
STARTUP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """What a study says about what to measure.

    keep: ratio; points are measured whose predicted time exceeds the best of their size and setting
        by no more. None: all of them, as far as the budget goes.
    spread: share of the other points that are measured all the same, evenly from the fastest to the
        slowest, at least one per setting: a calibration that saw only winners knows nothing else.
    budget_gpu_s: GPU-seconds for all sizes together. None: no bound.
    steps: optimizer steps a point runs, warm-up included.
    run_s: seconds of all the steps of one run of each point, where they are not `steps` full ones.
    repeats: times each point runs.
    startup_s: seconds before the first step.
    """

    keep: float | None
    spread: float
    budget_gpu_s: float | None
    steps: int
    repeats: int = 1
    startup_s: float = STARTUP_S
    run_s: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One point of the size: whether it is measured, and if not, why not, in one sentence."""

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

    What is left of the budget is shared out over this size and the larger ones in proportion to
    what their wanted points are predicted to take, so that small sizes cannot use it up.

    Args:
        points: of the whole study, each once whatever its repeats.
        prediction: of these points, calibrated on what the smaller sizes measured.
        world_size: the size to choose for.
        guide: what the study says.
        spent_gpu_s: GPU-seconds already spent.
    """
    cost = gpu_s(points, prediction, guide)
    rows = [row for *_, row in _wanted(points, prediction, world_size, guide)]
    share = _share(points, prediction, world_size, guide, cost, spent_gpu_s)
    chosen = set(affordable(rows, cost, share))
    best = _best(points, prediction, points.world_size == world_size)
    choices = []
    for row in np.flatnonzero(points.world_size == world_size).tolist():
        reason = None
        if row not in chosen:
            over_budget = row in rows
            reason = (
                _over_budget(guide, world_size, share, float(cost[row]))
                if over_budget
                else _not_near(prediction, row, float(best[row]), guide)
            )
        known = bool(prediction.predicted[row])
        choices.append(
            Choice(
                row=row,
                chosen=row in chosen,
                reason=reason,
                predicted_step_time_s=float(prediction.step_time_s[row]) if known else None,
                best_step_time_s=float(best[row]) if known and np.isfinite(best[row]) else None,
            )
        )
    return choices


def _wanted(
    points: Points, prediction: Prediction, world_size: float, guide: Guide
) -> list[tuple[int, int, int]]:
    """Points near the best of their setting (0), those nobody can predict (1), and the spread (2).

    Each as its kind, its place among those of its setting, and its row, first come first.
    """
    here = points.world_size == world_size
    wanted = [(1, 0, row) for row in np.flatnonzero(here & ~prediction.predicted).tolist()]
    for rows in settings_of(points, here & prediction.predicted).values():
        at = np.array(rows)
        time, startable = prediction.risk_adjusted_s[at], ~prediction.likely_oom[at]
        limit = math.inf
        if guide.keep is not None:
            limit = (1 + guide.keep) * float(time[startable].min(initial=math.inf))
        near = startable & (time <= limit)
        order = np.argsort(time[near], kind="stable")
        wanted += [(0, place, row) for place, row in enumerate(at[near][order].tolist())]
        others = at[~near][np.argsort(time[~near], kind="stable")]
        wanted += [(2, place, row) for place, row in enumerate(_spread(others, guide).tolist())]
    return sorted(wanted, key=lambda one: one[:2])


def _spread(others: Floats, guide: Guide) -> Floats:
    """Evenly from the fastest to the slowest, in the middle of equal parts."""
    count = min(len(others), max(1, math.ceil(guide.spread * len(others)))) if guide.spread else 0
    if not count:
        return others[:0]
    places = (np.arange(count) + 0.5) * len(others) / count
    return others[places.astype(np.int64)]


def gpu_s(points: Points, prediction: Prediction, guide: Guide) -> Floats:
    """GPU-seconds of each point, all its repeats; one that does not fit ends at its start."""
    run_s = guide.steps * prediction.step_time_s if guide.run_s is None else guide.run_s
    steps = np.where(prediction.fits, run_s, 0.0)
    steps = np.where(prediction.predicted, steps, 0.0)
    return np.asarray(points.world_size * guide.repeats * (steps + guide.startup_s))


def _share(
    points: Points,
    prediction: Prediction,
    world_size: int,
    guide: Guide,
    cost: Floats,
    spent_gpu_s: float,
) -> float:
    """GPU-seconds for this size, of what is left for it and the larger ones; no bound: infinite."""
    if guide.budget_gpu_s is None:
        return math.inf
    left = max(0.0, guide.budget_gpu_s - spent_gpu_s)
    sizes = sorted({size for size in points.world_size.tolist() if size >= world_size})
    asked = {
        size: sum(float(cost[row]) for *_, row in _wanted(points, prediction, size, guide))
        for size in sizes
    }
    return left * asked[world_size] / max(sum(asked.values()), 1e-9)


def reserved_gpu_s(
    points: Points, prediction: Prediction, world_size: float, guide: Guide
) -> float:
    """GPU-seconds of the predicted best of each setting of the larger sizes."""
    cost = gpu_s(points, prediction, guide)
    larger = {size for size in points.world_size.tolist() if size > world_size}
    wanted = [one for size in larger for one in _wanted(points, prediction, size, guide)]
    return math.fsum(float(cost[row]) for *order, row in wanted if order == [0, 0])


def affordable(rows: Sequence[int], cost: Floats, bound: float) -> list[int]:
    """From the most wanted on, leaving out what no longer fits into the bound, in GPU-seconds."""
    taken, used = [], 0.0
    for row in rows:
        if used + float(cost[row]) <= bound * (1 + 1e-9):
            taken.append(row)
            used += float(cost[row])
    return taken


def _best(points: Points, prediction: Prediction, here: Flags) -> Floats:
    """The predicted time of the best startable point of each row's setting, NaN where none is."""
    best = np.full(len(points), np.nan)
    for rows in settings_of(points, here & prediction.predicted).values():
        at = np.array(rows)
        startable = at[~prediction.likely_oom[at]]
        if startable.size:
            best[at] = prediction.step_time_s[
                startable[np.argmin(prediction.risk_adjusted_s[startable])]
            ]
    return best


def _over_budget(guide: Guide, world_size: int, share: float, cost: float) -> str:
    assert guide.budget_gpu_s is not None
    return (
        f"budget_gpu_hours={guide.budget_gpu_s / 3600:.3g}: of the {share / 3600:.3g} GPU-hours "
        f"left for world_size={world_size} too few remained for the {cost / 3600:.3g} of this point"
    )


def _not_near(prediction: Prediction, row: int, best: float, guide: Guide) -> str:
    need = float(prediction.need_bytes[row] / prediction.capacity_bytes[row])
    if prediction.likely_oom[row]:
        return f"predicted memory is {need:.0%} of a GPU's"
    time = float(prediction.step_time_s[row])
    said = f"predicted {time:.3g} s a step, {time / best - 1:.0%} more than the best of its size"
    if prediction.risk_adjusted_s[row] > time * 1.001:
        said += f", or more: its memory is predicted {need:.0%} full"
    assert guide.keep is not None
    return f"{said} (keep={guide.keep:g})"
