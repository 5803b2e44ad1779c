"""Plan a study: expand its grid, refuse points that cannot fit, and predict what it will cost.

A point is refused before launch only if its predicted memory is far beyond the GPU's: without a
calibration on this cluster, the prediction rests on data sheets alone.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.cluster.hardware import Cluster
from scaling.errors import InputError
from scaling.predict.advise.spend import Spend, memory_refusals, spend_of
from scaling.predict.cost.model import Prediction
from scaling.predict.read.features import Points
from scaling.probe.plan import ProbePlan, probe_plan
from scaling.run import predictions
from scaling.run.choices import refusal_columns, setting_key
from scaling.study import grid, plan_file
from scaling.study.grid import Plan, Refusal
from scaling.study.plan_file import CONFIG, Allocation
from scaling.study.point import Point, can_be_short, random_fraction
from scaling.study.short_steps import Accumulation, total_micro_batches
from scaling.study.study import Study, load_study, replication_queries
from scaling.study.time_limits import point_limits

# Start-up and clean-up of a point, and of a probe, on top of its own limit.
STARTUP_MINUTES = 5
PROBE_STARTUP_MINUTES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """A loaded study and its plan; `made_from` is the digest of everything the plan depends on."""

    study: Study
    plan: Plan
    spend: Spend | None
    probe_plan: ProbePlan | None
    made_from: str


def plan_study(study: str, *, mode: str | None = None, cluster: str | None = None) -> StudyPlan:
    """Plan a study without writing anything.

    Raises:
        InputError: the study is wrong, or no point of it can run.
    """
    path = plan_file.study_path(study)
    # before the files are read: if one is edited meanwhile, this plan must count as stale
    made_from = plan_file.inputs_digest(path, CONFIG, mode=mode, cluster=cluster)
    loaded = load_study(path, mode=mode, cluster=cluster)
    replication_queries(loaded)  # report a wrong name before anything runs
    plan, spend = fitting_plan_and_spend(loaded)
    return StudyPlan(
        study=loaded,
        plan=plan,
        spend=spend,
        probe_plan=plan_probe(loaded, plan),
        made_from=made_from,
    )


def fitting_plan_and_spend(study: Study) -> tuple[Plan, Spend | None]:
    """The plan, and what measuring it is predicted to cost (None: nothing runs or is predictable).

    Raises:
        InputError: as `fitting_plan`.
    """
    planned, kept, predicted = _fitting(study)
    if predicted is None:
        return planned, None
    points, prediction = predicted
    # repeats of contenders are not counted: they are added as needed
    only_contenders = study.measure.repeats.only
    counted = {
        row: point
        for row, point in zip(kept, planned.points, strict=True)
        if not (only_contenders and point.repeat)
    }
    rows, run_s = list(counted), prediction.step_time_s.copy()
    run_s[rows] = predictions.predict_run_s(study, list(counted.values()), run_s[rows])
    return planned, spend_of(points, prediction, run_s=run_s, rows=rows)


def fitting_plan(study: Study) -> Plan:
    """The study's plan, without points that cannot fit unless it says `measure_oom: true`.

    Raises:
        InputError: the grid is empty, all of it is refused, or it exceeds `max_points`.
    """
    return _fitting(study)[0]


def _fitting(study: Study) -> tuple[Plan, list[int], tuple[Points, Prediction] | None]:
    """The plan, the rows of the grid that it kept, and the grid's prediction if it has one."""
    planned = grid.expand_grid(study)
    if study.mode == "predict":
        return planned, [], None  # there, what does not fit is part of the answer
    if not study.is_predictable:
        return _with_full_runs(study, planned), [], None
    points, prediction = predictions.predict_points(study, planned.points)
    reasons = {} if study.measure.measure_oom else memory_refusals(points, prediction)
    rows = [row for row in range(len(planned.points)) if row not in reasons]
    kept = [planned.points[row] for row in rows]
    for index, row in enumerate(rows):
        if prediction.predicted[row]:
            kept[index] = _with_time_limit(study, kept[index], float(prediction.step_time_s[row]))
    refused = [
        Refusal(
            **refusal_columns(planned.points[row]),
            reason=f"{reason}; measure_oom: true runs it all the same",
        )
        for row, reason in reasons.items()
        if planned.points[row].repeat == 0
    ]
    fitting = Plan(points=tuple(kept), refusals=(*planned.refusals, *refused))
    grid.require_points(study, kept, fitting.refusals)
    ranked_s = predictions.ranking_times(prediction)
    fitting = _with_full_runs(study, fitting, [ranked_s[row] for row in rows])
    return fitting, rows, (points, prediction)


def _with_full_runs(
    study: Study, planned: Plan, ranked_s: Sequence[float | None] | None = None
) -> Plan:
    """The plan with those short points marked that run in full as well, to check the others."""
    in_full = rows_in_full(study, planned.points, ranked_s)
    points = [
        dataclasses.replace(point, accumulation="both") if row in in_full else point
        for row, point in enumerate(planned.points)
    ]
    return dataclasses.replace(planned, points=tuple(points))


def rows_in_full(
    study: Study,
    points: Sequence[Point],
    ranked_s: Sequence[float | None] | None = None,
    *,
    every: bool = False,
) -> set[int]:
    """Rows of short points that run in full as well, to measure the error of the extension.

    `in_full: advised` takes the predicted best of each size and setting, and one of each size drawn
    by the seed. A share draws that many of each size, at least one. `ranked_s` are
    `predictions.ranking_times`, None without predictions. `every` treats all points as short.
    """
    share = study.measure.in_full
    by_size: dict[int, list[int]] = {}
    best: dict[tuple[object, ...], tuple[float, int]] = {}  # by size and setting: time and row
    for row, point in enumerate(points):
        short = can_be_short(study, point.layout) if every else point.accumulation == "short"
        if not short or point.repeat:
            continue
        by_size.setdefault(point.world_size, []).append(row)
        if ranked_s is not None and (seconds := ranked_s[row]) is not None:
            setting = (point.world_size, setting_key(point))
            best[setting] = min(best.get(setting, (seconds, row)), (seconds, row))
    if share == 0:
        return set()
    chosen = {row for _, row in best.values()} if share == "advised" else set()
    for rows in by_size.values():
        count = 1 if isinstance(share, str) else max(1, round(share * len(rows)))
        rows.sort(
            key=lambda row: random_fraction(study.measure.seed, points[row].point_id, "in full")
        )
        chosen |= set(rows[:count])
    return chosen


def _with_time_limit(study: Study, point: Point, step_time_s: float) -> Point:
    """The point with its predicted step time, to three digits, and the time limit from it."""
    expected_step_s = float(f"{step_time_s:.3g}")
    warmup, layout = point.warmup_steps, point.layout
    # a short point may have to run in full as well
    kind: Accumulation = "full" if point.accumulation == "full" else "both"
    total = total_micro_batches(layout, kind, warmup=warmup, steps=point.measured_steps)
    steps = -(-total // layout.gradient_accumulation_steps)
    limit_s, _ = point_limits(expected_step_s, warmup, steps - warmup, study.measure.time_limit_s)
    return dataclasses.replace(point, expected_step_s=expected_step_s, time_limit_s=limit_s)


def plan_probe(study: Study, planned: Plan) -> ProbePlan | None:
    """Plan what is probed before anything is measured; None if nothing is.

    Raises:
        InputError: `probe.world_size` is no possible allocation of this cluster.
    """
    if study.mode == "predict" or study.probe.enabled is False:
        return None
    first = planned.points[0]
    if study.probe.enabled is None and first.gpu == "cpu":
        return None
    largest = max(point.world_size for point in planned.points)
    world_size = study.probe.world_size or largest
    cluster = study.clusters[first.cluster]
    per_node = cluster.gpus_per_node
    if world_size > per_node * cluster.nodes or (world_size > per_node and world_size % per_node):
        raise InputError(
            f"{study.path}: probe.world_size={world_size}: must be at most {per_node} or whole "
            f"nodes of {per_node}, up to the {per_node * cluster.nodes} of cluster {first.cluster}"
        )
    return probe_plan(planned.points, world_size=world_size, time_limit_s=study.probe.time_limit_s)


def allocation_of(task: Point | ProbePlan) -> Allocation:
    """The nodes and minutes that a point or probe requests, minutes of start-up included.

    Start-up is mostly imports, possibly from a network file system.
    """
    ranks_per_node = min(task.world_size, task.gpus_per_node)
    startup_minutes = STARTUP_MINUTES if isinstance(task, Point) else PROBE_STARTUP_MINUTES
    return Allocation(
        world_size=task.world_size,
        nodes=task.world_size // ranks_per_node,
        ranks_per_node=ranks_per_node,
        minutes=int(task.time_limit_s // 60) + startup_minutes,
        repeat=task.repeat if isinstance(task, Point) else 0,
    )


def allocated_gpu_hours(allocation: Allocation, cluster: Cluster) -> float:
    """GPU-hours (rank-hours on a CPU) of an allocation that uses all of its minutes.

    Where the site's jobs are exclusive, whole nodes count, however few of their GPUs a point uses.
    """
    exclusive = cluster.slurm.exclusive
    gpus = allocation.nodes * cluster.gpus_per_node if exclusive else allocation.world_size
    return gpus * allocation.minutes / 60


def points_to_measure(study: Study, planned: Plan) -> tuple[Point, ...]:
    """The points that are to leave a row: none in a study that only predicts."""
    return planned.points if study.mode == "measure" else ()
