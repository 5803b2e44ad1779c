"""Rounds of a study: which of its points each round measures, and why not the others.

round<n>.parquet holds the points that earlier rounds did not take: whether each is chosen, and if
not why. Points that run in any case are not among them. A run on other nodes may be: it is added to
the plan where a layout ran on slow nodes only.
"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scaling.analyse.next_points import Contest, Next, Plan, estimate, next_points
from scaling.analyse.posterior import CLOSE, Runs
from scaling.arrays import Floats
from scaling.errors import InputError
from scaling.importing.reader import Table, read_table
from scaling.predict.cost.model import Prediction, predict
from scaling.predict.fit.probes import probed_parameters
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.features import Points
from scaling.predict.read.observed import impossible_rows, observed_of
from scaling.predict.read.points import points_of
from scaling.record.files import (
    POINTS,
    point_columns,
    read_round,
    write_table,
    write_text_if_changed,
)
from scaling.record.row_checks import PROBE_COLUMNS
from scaling.record.row_files import attempts_set_aside
from scaling.record.row_files import read_rows as read_measured
from scaling.run import predictions
from scaling.run.plan_writer import plan_digest
from scaling.run.sweep import KEEP, SPREAD, Sweep, slow_by_probes
from scaling.study.grid import Plan as Grid
from scaling.study.plan_file import read_json_object
from scaling.study.point import Point
from scaling.study.study import Study
from scaling.study.time_limits import TYPICAL_STARTUP_S

_Columns = dict[str, Any]  # of a point that is not chosen
_SCHEMA = pa.schema(
    [
        *POINTS,
        ("round", pa.int64()),
        ("chosen", pa.bool_()),
        ("measured", pa.bool_()),  # it had a row already
        ("reason", pa.string()),  # why it is not chosen
        ("predicted_step_time_s", pa.float64()),
        ("expected_gain", pa.float64()),  # on the best of its size, a ratio
        ("hosts", pa.list_(pa.string())),  # of earlier runs of the layout
    ]
)


def choose(study: Study, planned: Grid, number: int, study_dir: Path, out: Path) -> str:
    """Choose what a round measures and write it; returns a sentence about it and slow nodes.

    A point that has a row already stays chosen.
    """
    sweep = Sweep(study, planned.points, study_dir)
    plan, digest = read_json_object(sweep.paths.plan), plan_digest(planned)
    if plan.get("asked", digest) != digest:
        raise InputError(
            f"{study.path}: has other points or refusals than {sweep.paths.plan}, as when it is "
            "edited while it runs: run it again"
        )
    if not sweep.rounds:
        raise InputError(
            f"{study.path}: measure: no round chooses points: that needs guided: true, a budget, "
            "repeats for contenders, or slow nodes that could be left out"
        )
    earlier = {name for path in sweep.paths.rounds()[: number - 1] for name in read_round(path)[0]}
    state = _State(sweep, earlier)
    slow = sweep.slow_hosts()
    new, reasons, basis = (
        ([], {}, "an earlier version chose") if plan.get("stands") else state.next_points(slow)
    )
    for point in new:
        write_text_if_changed(sweep.paths.point(point.point_id), point.to_json())
    write_table(out, state.table(number, new, reasons))
    left_out = "".join(f"; {host} is left out: {reason}" for host, reason in slow.items())
    return f"round {number}: {len(new)} points are measured; {basis}{left_out}"


class _State:
    """A study before a round: cells, their runs and rows; `earlier`: points of earlier rounds."""

    def __init__(self, sweep: Sweep, earlier: set[str]) -> None:
        self.sweep, self.earlier = sweep, earlier
        self.cells = sweep.first_runs
        self.cell_of = {point.layout_key: cell for cell, point in enumerate(self.cells)}
        self.points: list[list[Point]] = [[] for _ in self.cells]  # runs of each cell
        for point in sweep.all_points:
            self.points[self.cell_of[point.layout_key]].append(point)
        self.rows = [
            [row for point in points if (row := sweep.rows.get(point.point_id))]
            for points in self.points
        ]
        self.hosts = [sorted({host for row in rows for host in row["hosts"]}) for rows in self.rows]

    def next_points(self, slow: dict[str, str]) -> tuple[list[Point], dict[int, _Columns], str]:
        """The points to measure next, columns of others by cell, and what the choice rests on."""
        study, named = self.sweep.study, [*slow, *slow_by_probes(self.sweep.paths).difference(slow)]
        calibration, basis = (
            _calibrated(self.sweep) if study.measure.is_guided else (None, "all ran")
        )
        points, _ = predictions.predict_points(study, self.cells)
        labels = [point.layout.label for point in self.cells]
        contest, prediction = contest_of(points, calibration, labels, weak=study.kind == "weak")
        to_run = [self._to_run(cell, named) for cell in range(len(self.cells))]
        gpu_s = self._gpu_s(prediction, to_run)
        plan = Plan(gpu_s, np.array([len(one) for one in to_run]), KEEP, SPREAD)
        left_s = 3600 * (study.measure.budget_gpu_hours or math.inf) - self._spent_gpu_s()
        tried = np.array([bool(rows) for rows in self.rows])
        effects = {one.host: one.effect for one in reversed(self.sweep.slow_in_runs)}
        hosts = np.array([effects.get(host, 0.0) for host in named])
        estimates = estimate(contest, self._runs(points, named), tried, hosts)
        chosen = next_points(estimates, plan, left_s)
        dear = f"takes {{:.3g}} GPU-hours, of the budget {max(left_s, 0) / 3600:.3g} were left"
        reasons = {
            cell: {
                "reason": dear.format(gpu_s[cell] / 3600)
                if cell in chosen.dear
                else _reason(cell, chosen, prediction, ran=bool(tried[cell])),
                "predicted_step_time_s": float(prediction.step_time_s[cell])
                if prediction.predicted[cell]
                else None,
                "expected_gain": None if tried[cell] else float(chosen.gain[cell]),
            }
            for cell in range(len(self.cells))
        }
        return [point for cell in chosen.cells for point in to_run[cell]], reasons, basis

    def _to_run(self, cell: int, named: Sequence[str]) -> list[Point]:
        """The runs of a cell if it is chosen; none if nothing of it is left."""
        sweep, points = self.sweep, self.points[cell]
        left = [
            point
            for point in points
            if point.repeat >= sweep.fixed_repeats
            and point.point_id not in self.earlier
            and point.point_id not in sweep.rows
        ]
        if sweep.contended:
            return left[:1]
        of_plan = [point for point in left if point.repeat < sweep.study.measure.repeats.at_most]
        if of_plan or not self.rows[cell] or not set(self.hosts[cell]) & set(named):
            return of_plan
        elsewhere = all(set(row["hosts"]) & set(named) for row in self.rows[cell])
        nodes = sweep.study.clusters[points[0].cluster].nodes - len(named)
        return left if elsewhere and points[0].allocation.nodes <= nodes else []

    def _gpu_s(self, prediction: Prediction, to_run: Sequence[Sequence[Point]]) -> Floats:
        """GPU-seconds of what is to run of each cell; one that does not fit ends at its start."""
        sweep = self.sweep
        startups_s = [s for row in sweep.rows.values() if (s := row["startup_s"]) is not None]
        startup_s = statistics.median(startups_s) if startups_s else TYPICAL_STARTUP_S
        run_s = predictions.predict_run_s(sweep.study, self.cells, prediction.step_time_s)
        seconds = startup_s + np.where(prediction.fits & prediction.predicted, run_s, 0.0)
        for cell, rows in enumerate(self.rows):
            if rows:
                seconds[cell] = statistics.median(row["duration_s"] for row in rows)
        ranks = np.array([point.world_size for point in self.cells])
        return np.asarray(seconds * ranks * [max(len(one), 1) for one in to_run])

    def _spent_gpu_s(self) -> float:
        attempts = [*self.sweep.rows.values(), *attempts_set_aside(self.sweep.paths)]
        return math.fsum(row["duration_s"] * row["world_size"] for row in attempts)

    def _runs(self, points: Points, named: Sequence[str]) -> Runs:
        """All runs with a step time; `named`: slow hosts, the slowest first."""
        runs = []
        for cell, of_cell in enumerate(self.points):
            for point in of_cell:
                if (timed := self.sweep.step_times.get(point.point_id)) is not None:
                    hosts = self.sweep.rows[point.point_id]["hosts"]
                    host = next((n for n, name in enumerate(named) if name in hosts), -1)
                    rate = math.log(points.tokens_per_step[cell] / timed[0])
                    runs.append((rate, timed[1], cell, host))
        rates, own, cells, of_host = np.array(runs, dtype=float).reshape(-1, 4).T
        return Runs(rates, own, cells.astype(int), of_host.astype(int))

    def table(self, number: int, new: Sequence[Point], reasons: dict[int, _Columns]) -> pa.Table:
        """A row per point that no earlier round chose, and that may run."""
        chosen, records = {point.point_id for point in new}, []
        planned = {point.point_id for point in self.sweep.points}
        for point in self.sweep.optional:
            name, cell = point.point_id, self.cell_of[point.layout_key]
            measured = name in self.sweep.rows
            taken = measured or name in chosen
            if name in self.earlier or not (taken or name in planned):
                continue
            why = reasons.get(cell, {"reason": "the choice of an earlier version stands"})
            facts = {"round": number, "chosen": taken, "measured": measured, **why}
            facts["reason"] = None if taken else why["reason"]
            records.append(point_columns(point) | facts | {"hosts": self.hosts[cell]})
        return pa.Table.from_pylist(records, schema=_SCHEMA)


def contest_of(
    points: Points, calibration: Calibration | None, labels: Sequence[str], *, weak: bool = False
) -> tuple[Contest, Prediction]:
    """The points as cells that compete, and their prediction.

    Points that were chosen for their promise are no fair sample of the others. Errors and the
    chance to fit are therefore half those of the calibration and half those of data sheets.

    Args:
        points: each layout once.
        calibration: on the rows so far; None: data sheets.
        labels: of their layouts, equal for one layout at all sizes.
        weak: sizes have the same batch per GPU in common, not the same global batch.
    """
    prediction, prior = (predict(points, one) for one in (calibration, None))
    batch = points.global_batch_size / (points.world_size if weak else 1)
    groups: dict[tuple[Any, ...], int] = {}
    software = (points.framework, points.model, points.cluster)
    work = zip(*software, points.seq_length, batch, points.setting, strict=True)
    group = np.array([groups.setdefault(one, len(groups)) for one in work])
    layout = np.unique(np.array(labels), return_inverse=True)[1]
    parts = ("common_sigma", "layout_sigma", "size_sigma", "rest_sigma")
    errors, of_prior = (
        np.stack([getattr(one, part) for part in parts], axis=1) for one in (prediction, prior)
    )
    contest = Contest(
        group=group,
        layout=layout,
        world_size=points.world_size.astype(int),
        predicted=np.log(points.tokens_per_step / prediction.step_time_s),
        errors=np.nan_to_num((errors + of_prior) / 2),
        fits=np.nan_to_num((prediction.fits_chance + prior.fits_chance) / 2, nan=1.0),
    )
    return contest, prediction


def _reason(cell: int, chosen: Next, prediction: Prediction, *, ran: bool) -> str:
    """Why a cell is not run, or not once more."""
    if ran:
        probability = float(chosen.p_best[cell])
        if math.isnan(probability):
            return "is not repeated: no run of it gave a step time"
        best = "is not repeated: it is the best of its size with a probability of"
        if probability >= CLOSE:
            return f"{best} {probability:.0%}, and runs of others tell more"
        return f"{best} {probability:.1%}"
    if prediction.likely_oom[cell]:
        need = float(prediction.need_bytes[cell] / prediction.capacity_bytes[cell])
        return f"predicted memory is {need:.0%} of a GPU's"
    return (
        f"predicted {prediction.step_time_s[cell]:.3g} s a step: is expected to gain "
        f"{chosen.gain[cell]:.1%} on the best of its size"
    )


def _calibrated(sweep: Sweep) -> tuple[Calibration | None, str]:
    """A calibration on all rows so far, of the commonest software, and a phrase about it."""
    from scaling.predict.fit.calibrate import calibrate_study  # loads scipy

    if not sweep.rows:
        return None, "nothing has been measured: predicted from data-sheet numbers"
    paths, clusters, probed = sweep.paths, sweep.study.clusters, None
    rows = read_measured([paths.row(name) for name in sorted(sweep.rows)])
    numbers = np.arange(1, rows.table.num_rows + 1)
    table = Table(rows.table.drop_columns(["file"]), str(paths.rows), numbers)
    points, observed = points_of(table, clusters=clusters), observed_of(table)
    observed = observed.only(~impossible_rows(table, points, observed)[0])
    if paths.probes.exists():
        probed = probed_parameters(read_table(paths.probes, columns=PROBE_COLUMNS), clusters)
    calibration, others = calibrate_study(
        table, points, observed, source=str(paths.rows), probes=probed
    )
    if calibration.failure:
        return None, f"predicted from data-sheet numbers: the fit failed ({calibration.failure})"
    others_said = f"; {others} have other software" if others else ""
    return calibration, f"calibrated on {len(points) - others} rows{others_said}"
