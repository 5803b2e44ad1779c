"""What a study will run: its grid, less the points that cannot fit, and what that will cost.

A point is refused before launch only if its predicted memory is far beyond the GPU's, because the
prediction rests on data-sheet numbers and nobody has calibrated it on this cluster yet.
"""

import dataclasses
from collections.abc import Sequence

from scaling.cluster.hardware import Cluster
from scaling.errors import InputError
from scaling.predict.advise.spend import Spend, memory_refusals, spend_of
from scaling.predict.cost.model import Prediction, predict
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.features import Points
from scaling.predict.read.inputs import inputs_of_layouts
from scaling.predict.read.points import points_from
from scaling.probe.plan import ProbePlan, probe_plan
from scaling.run.choices import refusal_columns, same_setting
from scaling.study import grid
from scaling.study.grid import Plan, Refusal
from scaling.study.plan_file import Allocation
from scaling.study.point import Point, can_be_short, random_fraction
from scaling.study.short_steps import Accumulation, total_micro_batches
from scaling.study.study import Study
from scaling.study.time_limits import point_limits

# Start-up and clean-up of a point, and of a probe, on top of its own limit.
STARTUP_MINUTES = 5
PROBE_STARTUP_MINUTES = 10


def fitting_plan_and_spend(study: Study) -> tuple[Plan, Spend | None]:
    """The plan and what measuring it is predicted to take, None if nothing runs or is known.

    Raises:
        InputError: as `fitting_plan`.
    """
    planned, rows, predicted = _fitting(study)
    if predicted is None:
        return planned, None
    from scaling.run.price import run_s

    points, prediction = predicted
    # repeats of contenders come as they are needed
    only_once = study.measure.repeats.only
    each = zip(rows, planned.points, strict=True)
    wanted = {row: point for row, point in each if not (only_once and point.repeat)}
    at, seconds = list(wanted), prediction.step_time_s.copy()
    seconds[at] = run_s(study, list(wanted.values()), seconds[at])
    return planned, spend_of(points, prediction, run_s=seconds, rows=at)


def fitting_plan(study: Study) -> Plan:
    """The study's plan; with `measure_oom: true` what cannot fit is run all the same.

    Raises:
        InputError: the grid is empty, all of it is refused, or it exceeds `max_points`.
    """
    return _fitting(study)[0]


def _fitting(study: Study) -> tuple[Plan, list[int], tuple[Points, Prediction] | None]:
    """The plan, which rows of the grid it kept, and the grid as predicted; None if it is not."""
    planned = grid.expand_grid(study)
    if study.mode == "predict":
        return planned, [], None  # what does not fit is an answer there
    if not study.is_predictable:
        return _checked_in_full(study, planned), [], None
    points, prediction = predict_points(study, planned.points)
    reasons = {} if study.measure.measure_oom else memory_refusals(points, prediction)
    rows = [row for row in range(len(planned.points)) if row not in reasons]
    kept = [planned.points[row] for row in rows]
    for place, row in enumerate(rows):
        if prediction.predicted[row]:
            kept[place] = _limited(study, kept[place], float(prediction.step_time_s[row]))
    refused = [
        Refusal(
            **refusal_columns(planned.points[row]),
            reason=f"{reason}; measure_oom: true runs it all the same",
        )
        for row, reason in reasons.items()
        if planned.points[row].repeat == 0
    ]
    whole = Plan(points=tuple(kept), refusals=(*planned.refusals, *refused))
    grid.require_points(study, kept, whole.refusals)
    ranked_s = ranked_of(prediction)
    fitting = _checked_in_full(study, whole, [ranked_s[row] for row in rows])
    return fitting, rows, (points, prediction)


def ranked_of(prediction: Prediction) -> list[float | None]:
    """By what points are ranked, predicted seconds of a step; None where one does not fit."""
    pairs = zip(prediction.risk_adjusted_s, prediction.fits, strict=True)
    return [float(seconds) if fits else None for seconds, fits in pairs]


def _checked_in_full(
    study: Study, planned: Plan, ranked_s: Sequence[float | None] | None = None
) -> Plan:
    """The plan in which the short points that check the others run in full as well."""
    chosen = in_full(study, planned.points, ranked_s)
    points = [
        dataclasses.replace(point, accumulation="both") if row in chosen else point
        for row, point in enumerate(planned.points)
    ]
    return dataclasses.replace(planned, points=tuple(points))


def in_full(
    study: Study,
    points: Sequence[Point],
    ranked_s: Sequence[float | None] | None = None,
    *,
    every: bool = False,
) -> set[int]:
    """Which short points run in full as well, so that the extension's error is a number.

    `in_full: advised` takes the predicted best of each size and setting, and one of each size that
    the seed draws; a share takes so many of each size, at least one, all drawn.

    With `every`, points that are not short are asked about as if they were. For `ranked_s` see
    `ranked_of`; None where nothing is predicted.
    """
    share = study.measure.in_full
    sizes: dict[int, list[int]] = {}
    best: dict[tuple[object, ...], tuple[float, int]] = {}
    for row, point in enumerate(points):
        short = can_be_short(study, point.layout) if every else point.accumulation == "short"
        if not short or point.repeat:
            continue
        sizes.setdefault(point.world_size, []).append(row)
        if ranked_s is not None and (seconds := ranked_s[row]) is not None:
            setting = (point.world_size, same_setting(point))
            best[setting] = min(best.get(setting, (seconds, row)), (seconds, row))
    if share == 0:
        return set()
    chosen = {row for _, row in best.values()} if share == "advised" else set()
    for of_size in sizes.values():
        count = 1 if isinstance(share, str) else max(1, round(share * len(of_size)))
        of_size.sort(
            key=lambda row: random_fraction(study.measure.seed, points[row].point_id, "in full")
        )
        chosen |= set(of_size[:count])
    return chosen


def _limited(study: Study, point: Point, step_time_s: float) -> Point:
    """The point with the limit that its predicted step time says, of three digits."""
    expected_step_s = float(f"{step_time_s:.3g}")
    warmup, layout = point.warmup_steps, point.layout
    # a short point may have to run in full as well
    kind: Accumulation = "full" if point.accumulation == "full" else "both"
    run_through = total_micro_batches(layout, kind, warmup=warmup, steps=point.measured_steps)
    steps = -(-run_through // layout.gradient_accumulation_steps)
    limit_s, _ = point_limits(expected_step_s, warmup, steps - warmup, study.measure.time_limit_s)
    return dataclasses.replace(point, expected_step_s=expected_step_s, time_limit_s=limit_s)


def probe_of(study: Study, planned: Plan) -> ProbePlan | None:
    """What is probed before anything is measured; None if nothing is.

    Raises:
        InputError: `probe.world_size` is no allocation of this cluster.
    """
    if study.mode == "predict" or study.probe.enabled is False:
        return None
    one = planned.points[0]
    if study.probe.enabled is None and one.gpu == "cpu":
        return None
    largest = max(point.world_size for point in planned.points)
    world_size = study.probe.world_size or largest
    cluster = study.clusters[one.cluster]
    per_node = cluster.gpus_per_node
    if world_size > per_node * cluster.nodes or (world_size > per_node and world_size % per_node):
        raise InputError(
            f"{study.path}: probe.world_size={world_size}: must be at most {per_node} or whole "
            f"nodes of {per_node}, up to the {per_node * cluster.nodes} of cluster {one.cluster}"
        )
    return probe_plan(planned.points, world_size=world_size, time_limit_s=study.probe.time_limit_s)


def allocation(task: Point | ProbePlan) -> Allocation:
    """What a point or probe asks for, its start-up's minutes (imports, maybe over NFS) included."""
    ranks_per_node = min(task.world_size, task.gpus_per_node)
    startup_minutes = STARTUP_MINUTES if isinstance(task, Point) else PROBE_STARTUP_MINUTES
    return Allocation(
        world_size=task.world_size,
        nodes=task.world_size // ranks_per_node,
        ranks_per_node=ranks_per_node,
        minutes=int(task.time_limit_s // 60) + startup_minutes,
        repeat=task.repeat if isinstance(task, Point) else 0,
    )


def hours(allocation: Allocation, cluster: Cluster) -> float:
    """GPU-hours (rank-hours on a CPU) that are paid for if all of an allocation's minutes pass.

    Whole nodes are, where the site's jobs are exclusive, whatever a point uses of them.
    """
    exclusive = cluster.slurm.exclusive
    gpus = allocation.nodes * cluster.gpus_per_node if exclusive else allocation.world_size
    return gpus * allocation.minutes / 60


def predict_points(
    study: Study, points: Sequence[Point], calibration: Calibration | None = None
) -> tuple[Points, Prediction]:
    """Points as the predictor has them, and its prediction; data-sheet numbers by default."""
    inputs = inputs_of_layouts(
        [point.layout for point in points],
        [point.shape for point in points],
        models=[point.model for point in points],
        clusters=[point.cluster for point in points],
        gpus_per_node=[point.gpus_per_node for point in points],
        point_id=[point.point_id for point in points],
    )
    checked = points_from(inputs, study.clusters)
    return checked, predict(checked, calibration)


def to_measure(study: Study, planned: Plan) -> tuple[Point, ...]:
    """The points that shall leave a row: none in a study that only predicts."""
    return planned.points if study.mode == "measure" else ()
