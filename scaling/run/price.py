"""Predict what measuring a study costs: in full, guided, in short steps, and both."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analyse.next_points import Plan, estimate, next_points
from scaling.analyse.posterior import Runs
from scaling.arrays import Flags, Floats
from scaling.predict.cost.model import Prediction
from scaling.predict.read.features import Points
from scaling.run import planning, predictions
from scaling.run.plan_writer import StudyPlan
from scaling.run.rounds import budget_gpu_hours, contest_of
from scaling.study.grid import Plan as Grid
from scaling.study.point import Point, micro_batch_twins
from scaling.study.schema import Measure
from scaling.study.short_steps import is_worth_shortening
from scaling.study.study import Study
from scaling.study.time_limits import TYPICAL_STARTUP_S

# The cheapest keys of `measure`, by replays of published sweeps.
CHEAPEST = {
    "measured_steps": {"at_least": 5, "at_most": 50, "until": 0.01},
    "accumulation": "short",
    "repeats": {"at_most": 3, "for": "contenders"},
    "guided": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The predicted price of one way to measure a study, in GPU-hours."""

    way: str  # full | guided | short | both
    points: int
    step_gpu_hours: float
    startup_gpu_hours: float
    usd: float | None  # None where the cluster has no price

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


def costs_of(planned: StudyPlan, *, implied: bool = True) -> Costs:
    """The costs of a study that is measured; see `prices` for `implied`."""
    ways = prices(planned.study, planned.plan, implied=implied)
    return Costs(
        ways=ways, cheapest=cheapest_settings(planned.study, planned.plan) if ways else None
    )


WAYS = ("full", "guided", "short", "both")


def prices(
    study: Study, planned: Grid, ways: Sequence[str] = WAYS, *, implied: bool = True
) -> list[Price]:
    """The price of each way; none where nothing runs or nothing can be predicted.

    Counts repeats that every point has; repeats of contenders come on top. Guided sweeps are
    simulated: the rows are the predictions from data sheets, which no calibration narrows. A
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
    # a study that measures has only one cluster
    usd_per_hour = study.clusters[once[0].cluster].usd_per_gpu_hour or math.nan
    hours_per_s = repeats * points.world_size / 3600  # GPU-hours per second of each point
    full_s, short_s = (
        predictions.predict_run_s(study, of_way, prediction.step_time_s) for of_way in (full, short)
    )
    priced = []
    for way in ways:
        run_s = short_s if way in ("short", "both") else full_s
        chosen = np.ones(len(points), dtype=bool)
        if way in ("guided", "both"):
            seconds = TYPICAL_STARTUP_S + np.where(counted, run_s, 0.0)
            gpu_s = repeats * points.world_size * seconds
            chosen = _simulated(study, once, points, gpu_s)
        runs = counted & chosen
        steps = hours_per_s * np.where(runs, run_s, 0.0)
        started = runs | (misfits & chosen)
        startup = hours_per_s * np.where(started, TYPICAL_STARTUP_S, 0.0)
        usd = usd_per_hour * float((steps + startup).sum())
        priced.append(
            Price(
                way=way,
                points=repeats * int(runs.sum()),
                step_gpu_hours=float(steps.sum()),
                startup_gpu_hours=float(startup.sum()),
                usd=usd if math.isfinite(usd) else None,
            )
        )
    return priced


def _misfits_that_start(points: Sequence[Point], prediction: Prediction, *, implied: bool) -> Flags:
    """Points predicted not to fit that are started all the same, (n,)."""
    misfits = np.asarray(prediction.predicted & ~prediction.fits)
    if implied:
        rows = {point.point_id: row for row, point in enumerate(points)}
        for twins in micro_batch_twins(points).values():
            larger = [row for twin in twins if misfits[row := rows[twin.point_id]]][1:]
            misfits[larger] = False
    return misfits


def cheapest_settings(study: Study, planned: Grid) -> tuple[Mapping[str, object], Price] | None:
    """The keys of `measure` that make a study cheap, and the price with them.

    None where the study is guided or short already, or nothing is predicted to run.
    """
    measure = study.measure
    if measure.is_guided or measure.accumulation == "short":
        return None
    given = Measure.model_validate(CHEAPEST)
    cheap = measure.model_copy(update={name: getattr(given, name) for name in CHEAPEST})
    (price,) = prices(dataclasses.replace(study, measure=cheap), planned, ("both",))
    return (CHEAPEST, price) if price.gpu_hours else None


def _simulated(study: Study, once: Sequence[Point], points: Points, gpu_s: Floats) -> Flags:
    """The points that a guided sweep would measure if all predictions were right, (n,)."""
    measure, hours = study.measure, budget_gpu_hours(study)
    labels = [point.layout.label for point in once]
    contest, prediction = contest_of(points, None, labels, weak=study.kind == "weak")
    tried = np.zeros(len(points), dtype=bool)
    while True:
        ran = np.flatnonzero(tried & prediction.predicted & prediction.fits)
        runs = Runs(contest.predicted[ran], np.full(len(ran), np.nan), ran, np.full(len(ran), -1))
        plan = Plan(gpu_s, np.where(tried, 0, 1), measure.keep, measure.spread)
        left_s = math.inf if hours is None else 3600 * hours - float(gpu_s[tried].sum())
        chosen = next_points(estimate(contest, runs, tried), plan, left_s).cells
        if not chosen:
            return tried
        tried[chosen] = True
