"""Plan a study: expand its grid, refuse points that cannot fit, and predict what it will cost.

A point is refused before launch only if its predicted memory is far beyond the GPU's: without a
calibration on this cluster, the prediction rests on data sheets alone.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from scaling.check.rehearsed import rehearser
from scaling.errors import InputError
from scaling.predict.advise.rehearse import Rehearse, memory_refusals, none_rehearsed
from scaling.probe.plan import STARTUP_MINUTES, ProbePlan, probe_plan
from scaling.record.files import point_columns
from scaling.record.row import fields_of
from scaling.run import predictions
from scaling.run.plan_writer import StudyPlan, random_fraction
from scaling.study.grid import Plan, Refusal, expand_grid, nothing_runs
from scaling.study.inputs import inputs_digest, study_path
from scaling.study.load import load_study
from scaling.study.paths import CONFIG, RESULTS
from scaling.study.point import Point
from scaling.study.short_steps import Accumulation, total_micro_batches
from scaling.study.study import Study, replication_queries, study_folder
from scaling.study.time_limits import point_limits

_WORKER_MINUTES = 2  # which the executor adds to the minutes of a job


def plan_study(
    name: str,
    *,
    mode: str | None = None,
    cluster: str | None = None,
    say: Callable[[str], None] | None = None,
) -> StudyPlan:
    """Plan a study without writing anything.

    With `say`, which hears of each, layouts near the memory's limit are rehearsed; without it only
    what was rehearsed before is known.
    """
    path = study_path(name)
    # before the files are read: if one is edited meanwhile, this plan must count as stale
    made_from = inputs_digest(path, CONFIG, mode=mode, cluster=cluster)
    study = load_study(path, mode=mode, cluster=cluster)
    folder = study_folder(study, RESULTS)
    replication_queries(study)  # report a wrong name before anything runs
    plan, probe = expand_grid(study), None
    if study.mode == "measure":  # in a prediction, what does not fit is part of the answer
        with rehearser(say) as fullest_bytes:
            plan = fit(study, plan, fullest_bytes)
        probe = plan_probe(study, plan)
    return StudyPlan(
        study=study,
        folder=folder,
        plan=plan,
        probe_plan=probe,
        made_from=made_from,
    )


def fit(study: Study, planned: Plan, fullest_bytes: Rehearse[Point] = none_rehearsed) -> Plan:
    """The plan of what can fit, with time limits; everything if nothing can be predicted."""
    measure, points = study.measure, list(planned.points)
    prediction, ranked_s = None, None
    if study.is_predictable:
        known = none_rehearsed if measure.measure_oom else fullest_bytes
        _, prediction = predictions.predict_points(
            study, points, rehearse=lambda rows: known([planned.points[row] for row in rows])
        )
        ranked_s = [
            float(seconds) if fits else None
            for seconds, fits in zip(prediction.risk_adjusted_s, prediction.fits, strict=True)
        ]
        for row in np.flatnonzero(prediction.predicted).tolist():
            points[row] = _with_time_limit(study, points[row], float(prediction.step_time_s[row]))
    reasons = {row: why for row, point in enumerate(points) if (why := _too_long(study, point))}
    if prediction is not None and not measure.measure_oom:
        for row, reason in memory_refusals(prediction).items():
            reasons[row] = f"{reason}; measure_oom: true runs it all the same"
    names = fields_of(Refusal).keys() - {"reason"}
    refused = [
        Refusal(**{name: columns[name] for name in names}, reason=reason)
        for row, reason in sorted(reasons.items())
        if planned.points[row].repeat == 0 and (columns := point_columns(planned.points[row]))
    ]
    refusals = (*planned.refusals, *refused)
    kept = [row for row in range(len(points)) if row not in reasons]
    if not kept:
        raise nothing_runs(study, refusals)
    ranked = ranked_s and [ranked_s[row] for row in kept]
    run = with_full_runs(study, [points[row] for row in kept], ranked)
    return Plan(points=run, refusals=refusals)


def _too_long(study: Study, point: Point) -> str | None:
    """Why no job of the cluster can be as long as this point may take; None if one can."""
    most = study.clusters[point.cluster].slurm.max_minutes
    needed = point.allocation.minutes + _WORKER_MINUTES
    if most is None or needed <= most:
        return None
    return (
        f"its job may take {needed} minutes, and one of cluster {point.cluster} at most {most} "
        "(slurm: max_minutes): lower measure: time_limit_s, or take another partition"
    )


def with_full_runs(
    study: Study, points: Sequence[Point], ranked_s: Sequence[float | None] | None = None
) -> tuple[Point, ...]:
    """The points, with those short ones marked that run in full too, to check the extension.

    They are the predicted best of each size and setting, and one of each size drawn by the seed.
    `ranked_s` are predicted seconds of a step, None of one that does not fit; None without
    predictions.
    """
    by_size: dict[int, list[int]] = {}
    for row, point in enumerate(points):
        if point.accumulation == "short" and not point.repeat:
            by_size.setdefault(point.world_size, []).append(row)
    chosen: set[int] = set()
    for rows in by_size.values():
        ids = {row: points[row].point_id for row in rows}
        chosen.add(
            min(rows, key=lambda row: random_fraction(study.measure.seed, ids[row], "in full"))
        )
        ranked = sorted((s, row) for row in rows if ranked_s and (s := ranked_s[row]) is not None)
        chosen |= set({points[row].setting_key: row for _, row in reversed(ranked)}.values())
    return tuple(
        dataclasses.replace(point, accumulation="both") if row in chosen else point
        for row, point in enumerate(points)
    )


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

    The longest job of the cluster bounds its time. If that leaves none, nothing is probed.
    """
    first = planned.points[0]
    wanted = first.gpu != "cpu" if study.probe.enabled is None else study.probe.enabled
    if not wanted:
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
    limit_s, most = study.probe.time_limit_s, cluster.slurm.max_minutes
    if most is not None:
        limit_s = min(limit_s, 60.0 * (most - STARTUP_MINUTES - _WORKER_MINUTES))
    if limit_s <= 0:
        return None
    return probe_plan(planned.points, world_size=world_size, time_limit_s=limit_s)
