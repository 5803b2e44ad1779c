"""Predict what measuring a study costs, as it is written and with the cheapest keys."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analyse.next_points import Plan, estimate, next_points
from scaling.analyse.posterior import Runs
from scaling.arrays import Flags, Floats
from scaling.predict.read.features import Points
from scaling.run import planning, predictions
from scaling.run.rounds import contest_of
from scaling.run.sweep import KEEP, SPREAD
from scaling.study.grid import Plan as Grid
from scaling.study.grid import expand_grid
from scaling.study.point import Point, micro_batch_twins
from scaling.study.schema import Measure
from scaling.study.study import Study
from scaling.study.time_limits import TYPICAL_STARTUP_S

# The cheapest keys of `measure`, by replays of published sweeps.
CHEAPEST: Mapping[str, object] = {
    "measured_steps": {"at_least": 5, "at_most": 50, "until": 0.01},
    "accumulation": "short",
    "repeats": {"at_most": 3, "for": "contenders"},
    "guided": True,
}
_SIMULATIONS = 3  # of a guided sweep; their prices differ by about a third


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The predicted price of measuring a study, in GPU-hours.

    `unpredicted`: a reason for each point that cannot be predicted, and so is not counted.
    """

    points: int
    step_gpu_hours: float
    startup_gpu_hours: float
    usd: float | None  # None if the cluster has no price
    unpredicted: tuple[str, ...] = ()

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of steps and start-up."""
        return self.step_gpu_hours + self.startup_gpu_hours


def price_of(study: Study, planned: Grid) -> Price | None:
    """The price of a study as it is written; None if nothing can be predicted.

    Repeats of contenders come on top. A point that is predicted not to fit takes its start-up. It
    takes nothing if its twin with a smaller micro-batch does not fit either.
    """
    if study.mode == "predict" or not study.is_predictable:
        return None
    measure = study.measure
    once = [point for point in planned.points if point.repeat == 0]
    points, prediction = predictions.predict_points(study, once)
    runs = np.asarray(prediction.predicted & prediction.fits)
    run_s = np.where(runs, predictions.predict_run_s(study, once, prediction.step_time_s), 0.0)
    share = np.ones(len(points))  # of the times that a point starts
    misfits = np.asarray(prediction.predicted & ~prediction.fits)
    rows = {point.point_id: row for row, point in enumerate(once)}
    for twins in micro_batch_twins(once).values():
        share[[row for twin in twins if misfits[row := rows[twin.point_id]]][1:]] = 0.0
    repeats = 1 if measure.repeats.only else measure.repeats.at_most
    if measure.is_guided:
        gpu_s = repeats * points.world_size * (TYPICAL_STARTUP_S + run_s)
        share *= _simulated(study, once, points, gpu_s, runs)
    hours = repeats * share * points.world_size / 3600
    steps = float((hours * run_s).sum())
    startup = float(hours[runs | misfits].sum()) * TYPICAL_STARTUP_S
    # a study that measures has only one cluster
    usd_per_hour = study.clusters[once[0].cluster].usd_per_gpu_hour
    return Price(
        points=round(repeats * float(share[runs].sum())),
        step_gpu_hours=steps,
        startup_gpu_hours=startup,
        usd=usd_per_hour and usd_per_hour * (steps + startup),
        unpredicted=tuple(points.note[~prediction.predicted].tolist()),
    )


def cheapest_price(study: Study) -> Price | None:
    """The price with the keys of `CHEAPEST`; None if the study has some, or nothing would run."""
    own = study.measure
    if study.mode == "predict" or not study.is_predictable:
        return None
    if own.is_guided or own.accumulation == "short":
        return None
    given = Measure.model_validate(CHEAPEST)
    measure = own.model_copy(update={name: getattr(given, name) for name in CHEAPEST})
    cheap = dataclasses.replace(study, measure=measure)
    priced = price_of(cheap, planning.fit(cheap, expand_grid(cheap)))
    return priced if priced is not None and priced.gpu_hours else None


def _simulated(
    study: Study, once: Sequence[Point], points: Points, gpu_s: Floats, fits: Flags
) -> Floats:
    """The share of simulated guided sweeps that measure each point, (n,).

    The rates of a simulation are drawn from the errors of the predictions. Rates as predicted would
    make it dear: the best of many that differ is farther ahead than the best prediction.
    """
    budget_gpu_s = 3600 * (study.measure.budget_gpu_hours or math.inf)
    labels = [point.layout.label for point in once]
    contest, _ = contest_of(points, None, labels, weak=study.kind == "weak")
    nothing, none = np.zeros(len(points), dtype=bool), np.empty(0, dtype=int)
    drawn = estimate(contest, Runs(np.empty(0), np.empty(0), none, none), nothing).rates
    measured = np.zeros(len(points))
    for truth in drawn.T[:_SIMULATIONS]:
        tried = nothing.copy()
        while True:
            ran = np.flatnonzero(tried & fits)
            runs = Runs(truth[ran], np.full(len(ran), np.nan), ran, np.full(len(ran), -1))
            plan = Plan(gpu_s, np.where(tried, 0, 1), KEEP, SPREAD)
            left_s = budget_gpu_s - float(gpu_s[tried].sum())
            chosen = next_points(estimate(contest, runs, tried), plan, left_s).cells
            if not chosen:
                break
            tried[chosen] = True
        measured += tried / _SIMULATIONS
    return measured
