"""Predict what measuring a study costs: in full, guided, in short steps, and both."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling.predict.advise.guide import STARTUP_S, Guide, choose, gpu_s
from scaling.predict.advise.surprise import most_again
from scaling.predict.cost.model import Prediction
from scaling.predict.read.features import Points
from scaling.run import planning, predictions
from scaling.run.plan_writer import StudyPlan
from scaling.run.predictions import Floats
from scaling.run.sweep import Sweep
from scaling.study.grid import Plan
from scaling.study.point import Point, micro_batch_twins
from scaling.study.schema import Measure
from scaling.study.short_steps import is_worth_shortening
from scaling.study.study import Study

SHOWN_KEEP = 0.15  # the `keep` by which `scaling plan` prices guiding a study that is not guided
# The cheapest keys of `measure`, by replays of published sweeps.
CHEAPEST = {
    "measured_steps": {"at_least": 5, "at_most": 50, "until": 0.01},
    "accumulation": "short",
    "repeats": {"at_most": 3, "for": "contenders"},
    "keep": 0.1,
    "spread": 0.02,
}
BUDGET_SHARE = 0.7  # of the price without a budget, from the same replays


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The predicted price of one way to measure a study, in GPU-hours."""

    way: str  # full | guided | short | both
    points: int
    step_gpu_hours: float
    startup_gpu_hours: float
    usd: float | None  # None where the cluster has no price
    # at most what a guided sweep adds when it chooses for a size again
    surprise_points: int = 0
    surprise_gpu_hours: float = 0.0
    # for each node found slow: its points run once more, if points spread evenly over the cluster
    slow_node_gpu_hours: float = 0.0

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of steps and start-up."""
        return self.step_gpu_hours + self.startup_gpu_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The price of measuring a study, as `scaling plan` shows it."""

    ways: Sequence[Price] = ()  # to measure it, the full one first
    # keys of `measure` that make it cheap, and the price with them
    cheapest: tuple[Mapping[str, object], Price] | None = None
    points_on_a_node: float = 0.0  # expected; they run once more where that node is found slow


def costs_of(planned: StudyPlan, *, implied: bool = True) -> Costs:
    """The costs of a study that is measured; see `prices` for `implied`."""
    study, points = planned.study, planned.plan.points
    ways = prices(study, planned.plan, implied=implied)
    has_reruns = Sweep(study, points, planned.folder).has_reruns
    return Costs(
        ways=ways,
        cheapest=cheapest_settings(study, planned.plan) if ways else None,
        points_on_a_node=float(chance_on_node(study, points).sum()) if has_reruns else 0.0,
    )


WAYS = ("full", "guided", "short", "both")


def prices(
    study: Study, planned: Plan, ways: Sequence[str] = WAYS, *, implied: bool = True
) -> list[Price]:
    """The price of each way; none where nothing runs or nothing can be predicted.

    Counts repeats that every point has; repeats of contenders come on top. Guided sweeps are
    simulated with data-sheet predictions, without the calibration that small sizes will bring. A
    point predicted not to fit takes its start-up, unless it is `implied`: its twin with a smaller
    micro-batch does not fit either.
    """
    if study.mode == "predict" or not study.is_predictable:
        return []
    measure = study.measure
    once = [point for point in planned.points if point.repeat == 0]
    points, prediction = predictions.predict_points(study, once)
    full = [dataclasses.replace(point, accumulation="full") for point in once]
    short: Sequence[Point] = [
        dataclasses.replace(point, accumulation="short")
        if is_worth_shortening(
            point.layout, warmup=measure.warmup_steps, steps=measure.measured_steps.at_least
        )
        else point
        for point in full
    ]
    short = planning.with_full_runs(study, short, predictions.ranking_times(prediction))
    repeats = 1 if measure.repeats.only else measure.repeats.at_most
    counted = prediction.predicted & prediction.fits
    misfits = _misfits_that_start(once, prediction, implied=implied)
    on_a_node = chance_on_node(study, once)
    # a study that measures has only one cluster
    usd_per_hour = study.clusters[once[0].cluster].usd_per_gpu_hour or math.nan
    hours_per_s = repeats * points.world_size / 3600  # GPU-hours per second of each point
    full_s, short_s = (
        predictions.predict_run_s(study, of_way, prediction.step_time_s) for of_way in (full, short)
    )
    priced = []
    for way in ways:
        run_s = short_s if way in ("short", "both") else full_s
        runs, surprising = counted.copy(), np.zeros(len(points), dtype=bool)
        if way in ("guided", "both"):
            guide = guide_of(study, STARTUP_S, run_s, keep=SHOWN_KEEP)
            chosen = _simulate_choices(points, prediction, guide)
            surprising[most_again(points, prediction, chosen, guide)] = True
            runs, surprising = runs & chosen, surprising & counted
        steps = hours_per_s * np.where(runs, run_s, 0.0)
        started = runs | (misfits & (way in ("full", "short")))
        startup = hours_per_s * np.where(started, STARTUP_S, 0.0)
        added = hours_per_s * np.where(surprising, run_s + STARTUP_S, 0.0)
        usd = usd_per_hour * float((steps + startup).sum())
        priced.append(
            Price(
                way=way,
                points=repeats * int(runs.sum()),
                step_gpu_hours=float(steps.sum()),
                startup_gpu_hours=float(startup.sum()),
                usd=usd if math.isfinite(usd) else None,
                surprise_points=repeats * int(surprising.sum()),
                surprise_gpu_hours=float(added.sum()),
                slow_node_gpu_hours=float((on_a_node * (steps + startup)).sum()) / repeats,
            )
        )
    return priced


def _misfits_that_start(
    points: Sequence[Point], prediction: Prediction, *, implied: bool
) -> npt.NDArray[np.bool_]:
    """Points predicted not to fit that are started all the same, (n,)."""
    misfits = np.asarray(prediction.predicted & ~prediction.fits)
    if implied:
        rows = {point.point_id: row for row, point in enumerate(points)}
        for twins in micro_batch_twins(points).values():
            larger = [row for twin in twins if misfits[row := rows[twin.point_id]]][1:]
            misfits[larger] = False
    return misfits


def chance_on_node(study: Study, points: Sequence[Point]) -> Floats:
    """The chance of each point to run on a given node, if points are spread evenly, (n,)."""
    nodes = study.clusters[points[0].cluster].nodes
    return np.array([min(1.0, point.allocation.nodes / nodes) for point in points])


def cheapest_settings(study: Study, planned: Plan) -> tuple[dict[str, Any], Price] | None:
    """The keys of `measure` that make a study cheap, with a budget, and the price with them.

    None where the study is guided or short already, or nothing is predicted to run.
    """
    measure = study.measure
    if measure.guided or measure.accumulation == "short":
        return None

    def priced(keys: dict[str, Any]) -> Price:
        given = Measure.model_validate(keys)
        cheap = measure.model_copy(update={name: getattr(given, name) for name in keys})
        (price,) = prices(dataclasses.replace(study, measure=cheap), planned, ("both",))
        return price

    unbounded = priced(CHEAPEST).gpu_hours
    if not unbounded:
        return None
    budget = float(f"{BUDGET_SHARE * unbounded:.2g}")
    keys = {**CHEAPEST, "budget_gpu_hours": int(budget) if budget.is_integer() else budget}
    return keys, priced(keys)


def _simulate_choices(
    points: Points, prediction: Prediction, guide: Guide
) -> npt.NDArray[np.bool_]:
    """The points that a guided sweep would measure, size after size, (n,)."""
    cost = gpu_s(points, prediction, guide)
    chosen = np.zeros(len(points), dtype=bool)
    for size in sorted(set(points.world_size.tolist())):
        spent = float(cost[chosen].sum())
        choices = choose(points, prediction, size, guide, spent_gpu_s=spent)
        chosen[[choice.row for choice in choices if choice.chosen]] = True
    return chosen


def guide_of(study: Study, startup_s: float, run_s: Floats, *, keep: float | None = None) -> Guide:
    """The guide that the study's `measure` describes; `keep` is used where it is not guided.

    A point takes `startup_s` seconds until its first step, and `run_s` predicted for all its steps.
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
    """The budget of a guided sweep in GPU-hours, converting money at its cluster's price."""
    measure = study.measure
    if measure.budget_usd is None:
        return measure.budget_gpu_hours
    names = {name for block in study.layouts for name in {**study.axes, **block}["cluster"]}
    prices = [study.clusters[name].usd_per_gpu_hour for name in names]
    bought = [measure.budget_usd / price for price in prices if price]
    return min([*bought, *([measure.budget_gpu_hours] if measure.budget_gpu_hours else [])])
