"""What measuring a study is predicted to take: in full, guided, in short steps, and both."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling.predict.advise.guide import STARTUP_S, Guide, choose, gpu_s
from scaling.predict.advise.surprise import most_again
from scaling.predict.cost.model import Prediction
from scaling.predict.read.features import Points
from scaling.run import planning
from scaling.study.grid import Plan
from scaling.study.point import Point, can_be_short
from scaling.study.schema import Measure
from scaling.study.short_steps import Accumulation, short_step_rounds, short_step_sizes
from scaling.study.study import Study

Floats = npt.NDArray[np.float64]

KEEP = 0.15  # what `scaling plan` shows of a guided sweep where a study is none
# The cheapest keys of `measure`, replayed on published sweeps (docs/prediction_accuracy.md).
CHEAPEST = {
    "measured_steps": {"at_least": 5, "at_most": 50, "until": 0.01},
    "accumulation": "short",
    "repeats": {"at_most": 3, "for": "contenders"},
    "keep": 0.1,
    "spread": 0.02,
}
BUDGET_SHARE = 0.7  # of what these take without a budget: of the same replays


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One way to measure a study. GPU-hours; usd is null where the cluster has no price.

    `surprise_points`, `surprise_gpu_hours`: what a guided sweep adds on top at most, where each
    time that a size is chosen for again its rows make as many points worth it as may be.
    `slow_node_gpu_hours`: what each node that is named as slow adds, if points are spread evenly
    over the cluster: those on it run once more.
    """

    way: str  # full | guided | short | both
    points: int
    step_gpu_hours: float
    startup_gpu_hours: float
    usd: float | None
    surprise_points: int = 0
    surprise_gpu_hours: float = 0.0
    slow_node_gpu_hours: float = 0.0

    @property
    def gpu_hours(self) -> float:
        """Of the steps and the start-up of each point."""
        return self.step_gpu_hours + self.startup_gpu_hours


def run_s(
    study: Study, points: Sequence[Point], step_time_s: npt.NDArray[Any], short: bool | None = None
) -> Floats:
    """Predicted seconds of all the steps of one run of each point, without its start.

    A short step is predicted as what it is, a step of a smaller batch. Of steps that stop by
    themselves the least are counted: on a quiet GPU they suffice, and a limit bounds the others.

    `step_time_s` is predicted, of full steps; `short` says whether steps are short, None: as each
    point says.
    """
    measure = study.measure
    warmup, steps = measure.warmup_steps, measure.measured_steps.at_least
    seconds: Floats = np.asarray((warmup + steps) * step_time_s, dtype=np.float64)
    kinds = [_kind(study, point, short) for point in points]
    rows = [row for row, kind in enumerate(kinds) if kind != "full"]
    if not rows:
        return seconds
    turns = []
    for turn in range(3):
        shorter = []
        for point in [points[row] for row in rows]:
            count = short_step_sizes(point.layout)[turn]
            layout = dataclasses.replace(point.layout, gradient_accumulation_steps=count)
            shorter.append(dataclasses.replace(point, layout=layout))
        turns.append(planning.predict_points(study, shorter)[1].step_time_s)
    of_rounds = short_step_rounds(steps) * np.sum(turns, axis=0)
    also_full = np.array([kinds[row] == "both" for row in rows])
    seconds[rows] = np.where(also_full, seconds[rows] + of_rounds, of_rounds + warmup * turns[0])
    return seconds


def _kind(study: Study, point: Point, short: bool | None) -> Accumulation:
    if short is None:
        return point.accumulation
    if not short or not can_be_short(study, point.layout):
        return "full"
    return "both" if point.accumulation == "both" else "short"


WAYS = ("full", "guided", "short", "both")


def prices(study: Study, planned: Plan, which: Sequence[str] = WAYS) -> list[Price]:
    """Full, guided, short, both; none where nothing runs or nothing is known about it.

    Each counts repeats that every point has; those of contenders come on top. A guided sweep is
    played through on data-sheet predictions, without what its small sizes will teach it.
    """
    if study.mode == "predict" or not study.is_predictable:
        return []
    once = [point for point in planned.points if point.repeat == 0]
    points, prediction = planning.predict_points(study, once)
    in_full = planning.in_full(study, once, planning.ranked_of(prediction), every=True)
    candidates = [
        dataclasses.replace(point, accumulation="both" if row in in_full else "short")
        for row, point in enumerate(once)
    ]
    repeats = 1 if study.measure.repeats.only else study.measure.repeats.at_most
    counted = prediction.predicted & prediction.fits
    on_a_node = on_one_node(study, once)
    gpu_hours = repeats * points.world_size / 3600  # of a second of each point
    ways = []
    for way in which:
        guided, short = way in ("guided", "both"), way in ("short", "both")
        seconds = run_s(study, candidates, prediction.step_time_s, short)
        rows, surprising = counted.copy(), np.zeros(len(points), dtype=bool)
        if guided:
            guide = guide_of(study, STARTUP_S, seconds, keep=KEEP)
            chosen = _chosen(points, prediction, guide)
            surprising[most_again(points, prediction, chosen, guide)] = True
            rows, surprising = rows & chosen, surprising & counted
        spent = gpu_hours * np.where(rows, seconds, 0.0)
        startup = gpu_hours * np.where(rows, STARTUP_S, 0.0)
        added = gpu_hours * np.where(surprising, seconds + STARTUP_S, 0.0)
        ways.append(
            Price(
                way=way,
                points=repeats * int(rows.sum()),
                step_gpu_hours=float(spent.sum()),
                startup_gpu_hours=float(startup.sum()),
                usd=_usd(points, spent + startup),
                surprise_points=repeats * int(surprising.sum()),
                surprise_gpu_hours=float(added.sum()),
                slow_node_gpu_hours=float((on_a_node * (spent + startup)).sum()) / repeats,
            )
        )
    return ways


def on_one_node(study: Study, points: Sequence[Point]) -> Floats:
    """The chance of each point to be on one node of its cluster, if points are spread evenly."""
    nodes = study.clusters[points[0].cluster].nodes
    return np.array([min(1.0, planning.allocation(point).nodes / nodes) for point in points])


def cheapest(study: Study, planned: Plan) -> tuple[dict[str, Any], Price] | None:
    """The keys of `measure` that make a study cheap, with a budget, and what it takes then.

    None where the study is guided or short itself, or nothing is known about its price.
    """
    measure = study.measure
    if measure.guided or measure.accumulation == "short":
        return None

    def priced(keys: dict[str, Any]) -> Price | None:
        given = Measure.model_validate(keys)
        cheap = measure.model_copy(update={name: getattr(given, name) for name in keys})
        ways = prices(dataclasses.replace(study, measure=cheap), planned, ("both",))
        return ways[0] if ways else None

    unbounded = priced(CHEAPEST)
    if unbounded is None:
        return None
    budget = float(f"{BUDGET_SHARE * unbounded.gpu_hours:.2g}")
    keys = {**CHEAPEST, "budget_gpu_hours": int(budget) if budget.is_integer() else budget}
    bounded = priced(keys)
    return None if bounded is None else (keys, bounded)


def _chosen(points: Points, prediction: Prediction, guide: Guide) -> npt.NDArray[np.bool_]:
    """The points that a guided sweep would measure, size after size."""
    cost = gpu_s(points, prediction, guide)
    chosen = np.zeros(len(points), dtype=bool)
    for size in sorted(set(points.world_size.tolist())):
        spent = float(cost[chosen].sum())
        choices = choose(points, prediction, size, guide, spent_gpu_s=spent)
        chosen[[choice.row for choice in choices if choice.chosen]] = True
    return chosen


def _usd(points: Points, gpu_hours: Floats) -> float | None:
    """At the clusters' prices; None where one has none."""
    prices = [group.cluster.usd_per_gpu_hour for group in points.groups]
    hours = [float(gpu_hours[group.rows].sum()) for group in points.groups]
    spent = [of * price for of, price in zip(hours, prices, strict=True) if price is not None]
    total = math.fsum(spent)
    return total if len(spent) == len(prices) and math.isfinite(total) else None


def guide_of(study: Study, startup_s: float, run_s: Floats, *, keep: float | None = None) -> Guide:
    """What the study says about what to measure; `keep` holds where it chooses nothing.

    A point takes `startup_s` seconds to its first step; `run_s` are predicted for all its steps.
    """
    measure = study.measure
    hours = budget_gpu_hours(study)
    return Guide(
        keep=measure.keep if measure.guided else keep,
        spread=measure.spread,
        budget_gpu_s=None if hours is None else hours * 3600,
        run_s=run_s,
        steps=measure.warmup_steps + measure.measured_steps.at_most,
        repeats=1 if measure.repeats.only else measure.repeats.at_most,
        startup_s=startup_s,
    )


def budget_gpu_hours(study: Study) -> float | None:
    """The budget of a guided sweep in GPU-hours, money at its cluster's price."""
    measure = study.measure
    if measure.budget_usd is None:
        return measure.budget_gpu_hours
    names = {name for block in study.layouts for name in {**study.axes, **block}["cluster"]}
    prices = [study.clusters[name].usd_per_gpu_hour for name in names]
    bought = [measure.budget_usd / price for price in prices if price]
    return min([*bought, *([measure.budget_gpu_hours] if measure.budget_gpu_hours else [])])
