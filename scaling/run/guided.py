"""Choose points of a guided sweep, size after size, by what smaller sizes have measured.

chosen/<world_size>.parquet holds every point of a size: whether it is measured, and if not why.
chosen/<world_size>.again<n>.parquet holds points added after a surprise in the previous choice.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

from scaling.errors import InputError
from scaling.importing.reader import Table, read_table
from scaling.predict.advise import guide as advised
from scaling.predict.advise.guide import Guide
from scaling.predict.advise.surprise import TURNS, Progress, choose_again
from scaling.predict.cost.model import Prediction
from scaling.predict.fit.probes import probed_parameters
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.record.row_checks import PROBE_COLUMNS
from scaling.record.row_files import attempts_set_aside
from scaling.record.row_files import read_rows as read_measured
from scaling.run import predictions, price
from scaling.run.choices import choice_table, chosen_ids, layout_key
from scaling.run.sweep import Sweep
from scaling.study.point import Point


def choose(sweep: Sweep, world_size: int, turn: int) -> tuple[pa.Table, str]:
    """The choice of points of one size, and a sentence about it.

    Points that have a row count as spent.

    Raises:
        InputError: the study is not guided, or `turn` is too large.
    """
    if not sweep.study.measure.guided:
        raise InputError(f"{sweep.study.path}: measure: neither keep nor budget_gpu_hours is given")
    if not 0 <= turn <= TURNS:
        raise InputError(f"--again {turn}: a size is chosen for again {TURNS} times at most")
    return _next_choice(sweep, world_size, turn) if turn else _first_choice(sweep, world_size)


def _first_choice(sweep: Sweep, world_size: int) -> tuple[pa.Table, str]:
    calibration, basis = _calibrate_on(sweep, _measured_below(sweep, world_size), "smaller sizes")
    points, prediction = predictions.predict_points(sweep.study, sweep.first_runs, calibration)
    guide, spent = _guide(sweep, prediction, sweep.rows.keys()), _spent_gpu_s(sweep)
    choices = advised.choose(points, prediction, world_size, guide, spent_gpu_s=spent)
    by_layout = {layout_key(sweep.first_runs[choice.row]): choice for choice in choices}
    of_size = [point for point in _candidates(sweep) if layout_key(point) in by_layout]
    by_point = {point.point_id: by_layout[layout_key(point)] for point in of_size}
    reasons = {
        name: str(choice.reason)
        for name, choice in by_point.items()
        if not choice.chosen and name not in sweep.rows
    }
    times = {
        column: {name: getattr(choice, column) for name, choice in by_point.items()}
        for column in ("predicted_step_time_s", "best_step_time_s")
    }
    sentence = f"{len(of_size) - len(reasons)} of {len(of_size)} points are measured; {basis}"
    return choice_table(of_size, reasons, times), sentence


def _next_choice(sweep: Sweep, world_size: int, turn: int) -> tuple[pa.Table, str]:
    """Which points are worth measuring too, from files only, so that a restart gives the same."""
    files = [sweep.paths.choice(world_size)]
    files += [sweep.paths.choice_again(world_size, earlier) for earlier in range(1, turn)]
    *earlier_choices, last_choice = [set(chosen_ids(path)) & sweep.rows.keys() for path in files]
    if not last_choice:
        return choice_table([], {}), "the last choice added nothing, so this one does not either"
    measured = _measured_below(sweep, world_size).union(last_choice, *earlier_choices)
    calibration, basis = _calibrate_on(sweep, measured, "this and smaller sizes")
    points, prediction = predictions.predict_points(sweep.study, sweep.first_runs, calibration)
    rows = choose_again(
        points,
        prediction,
        _observed(sweep, measured),
        world_size,
        _guide(sweep, prediction, measured),
        spent_gpu_s=_spent_gpu_s(sweep),
    )
    added = {layout_key(sweep.first_runs[row]) for row in rows}
    table = choice_table([point for point in _candidates(sweep) if layout_key(point) in added], {})
    return table, f"{table.num_rows} points are measured too; {basis}"


def _candidates(sweep: Sweep) -> list[Point]:
    """All points; with repeats of contenders only first runs, which decide about the repeats."""
    return sweep.first_runs if sweep.study.measure.repeats.only else list(sweep.points)


def _measured_below(sweep: Sweep, world_size: int) -> set[str]:
    smaller = {point.point_id for point in sweep.all_points if point.world_size < world_size}
    return smaller & sweep.rows.keys()


def _spent_gpu_s(sweep: Sweep) -> float:
    attempts = [*sweep.rows.values(), *attempts_set_aside(sweep.paths)]
    return math.fsum(row["duration_s"] * row["world_size"] for row in attempts)


def _guide(sweep: Sweep, prediction: Prediction, measured: Collection[str]) -> Guide:
    """What the study says about what to measure; runs that are measured cost nothing more."""
    startups_s = sorted(s for row in sweep.rows.values() if (s := row["startup_s"]) is not None)
    startup_s = startups_s[len(startups_s) // 2] if startups_s else advised.STARTUP_S
    run_s = predictions.predict_run_s(sweep.study, sweep.first_runs, prediction.step_time_s)
    runs = Counter(layout_key(p) for p in _candidates(sweep) if p.point_id not in measured)
    repeats = np.array([runs[layout_key(point)] for point in sweep.first_runs])
    return dataclasses.replace(price.guide_of(sweep.study, startup_s, run_s), repeats=repeats)


def _observed(sweep: Sweep, measured: set[str]) -> Progress:
    """What these points have measured; repeats of a layout count by their median."""
    runs: dict[Any, list[float | None]] = {}
    for point in sweep.all_points:
        if point.point_id in measured:
            row = sweep.rows[point.point_id]
            seconds = row["step_time_s"] or row["extended_step_time_s"]  # None: it did not run
            runs.setdefault(layout_key(point), []).append(seconds)
    by_point = [runs.get(layout_key(point), []) for point in sweep.first_runs]
    times = [[seconds for seconds in outcomes if seconds is not None] for outcomes in by_point]
    return Progress(
        measured=np.array([bool(outcomes) for outcomes in by_point]),
        step_time_s=np.array([np.median(seconds) if seconds else np.nan for seconds in times]),
    )


def _calibrate_on(sweep: Sweep, measured: set[str], whose: str) -> tuple[Calibration | None, str]:
    """A calibration on these points' rows, of the commonest software, and a phrase about it."""
    from scaling.predict.fit.calibrate import calibrate, of_commonest_fingerprints  # loads scipy

    if not measured:
        return None, "nothing smaller has been measured: predicted from data-sheet numbers"
    paths, clusters, probed = sweep.paths, sweep.study.clusters, None
    rows = read_measured([paths.row(name) for name in sorted(measured)])
    numbers = np.arange(1, rows.table.num_rows + 1)
    table = Table(rows.table.drop_columns(["file"]), str(paths.rows), numbers)
    points, observed = points_of(table, clusters=clusters), observed_of(table)
    kept = of_commonest_fingerprints(table, points, observed)
    if not kept.all():
        table = table.filter(kept)
        points, observed = points_of(table, clusters=clusters), observed_of(table)
    if paths.probes.exists():
        probes = read_table(paths.probes, columns=PROBE_COLUMNS)
        probed = probed_parameters(probes, clusters)
    calibration = calibrate(points, observed, source=str(paths.rows), probes=probed)
    others = f"; {(~kept).sum()} have other software" if not kept.all() else ""
    return calibration, f"calibrated on {kept.sum()} rows of {whose}{others}"
