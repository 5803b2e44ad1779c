"""A guided sweep, size after size: what the smaller ones measured chooses the points of the next.

chosen/<world_size>.parquet holds every point of a size: whether it is measured, else why not.
chosen/<world_size>.again<n>.parquet holds what is measured too after a surprise among the points
that the choice before had added.
"""

import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.foreign.reading import read_rows
from scaling.predict.advise import guide as advised
from scaling.predict.advise.guide import Guide
from scaling.predict.advise.surprise import TURNS, Progress, choose_again
from scaling.predict.cost.model import Prediction
from scaling.predict.fit.probes import probed_parameters
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.record.row_files import read_rows as read_measured
from scaling.run import planning, price
from scaling.run.choices import choice_table, chosen_ids, same_layout
from scaling.run.sweep import Sweep
from scaling.study.point import Point


def choose(sweep: Sweep, world_size: int, turn: int) -> tuple[pa.Table, str]:
    """The choice of points of one size, and a sentence about it.

    What points with a row cost counts as spent.

    Raises:
        InputError: the study does not ask for it.
    """
    if not sweep.study.measure.guided:
        raise InputError(f"{sweep.study.path}: measure: neither keep nor budget_gpu_hours is given")
    if not 0 <= turn <= TURNS:
        raise InputError(f"--again {turn}: a size is chosen for again {TURNS} times at most")
    return _again(sweep, world_size, turn) if turn else _first(sweep, world_size)


def _first(sweep: Sweep, world_size: int) -> tuple[pa.Table, str]:
    """Which points of a size are measured."""
    calibration, basis = _calibrated(sweep, _smaller(sweep, world_size), "smaller sizes")
    points, prediction = planning.predict_points(sweep.study, sweep.once, calibration)
    guide, spent = _guide(sweep, prediction), _spent_gpu_s(sweep)
    choices = advised.choose(points, prediction, world_size, guide, spent_gpu_s=spent)
    by_layout = {same_layout(sweep.once[choice.row]): choice for choice in choices}
    here = [point for point in _every(sweep) if same_layout(point) in by_layout]
    of_point = {point.point_id: by_layout[same_layout(point)] for point in here}
    reasons = {
        name: str(choice.reason)
        for name, choice in of_point.items()
        if not choice.chosen and name not in sweep.rows
    }
    times = {
        column: {name: getattr(choice, column) for name, choice in of_point.items()}
        for column in ("predicted_step_time_s", "best_step_time_s")
    }
    count = len(here) - len(reasons)
    sentence = f"{count} of {len(here)} points are measured; {basis}"
    return choice_table(here, reasons, times), sentence


def _again(sweep: Sweep, world_size: int, turn: int) -> tuple[pa.Table, str]:
    """Which points are worth measuring too; all as the files say, also after a kill."""
    earlier = [sweep.paths.choice(world_size)]
    earlier += [sweep.paths.choice_again(world_size, before) for before in range(1, turn)]
    *before, newest = [set(chosen_ids(path)) & sweep.rows.keys() for path in earlier]
    if not newest:
        return choice_table([], {}), "nothing was added before, so nothing is now"
    measured = _smaller(sweep, world_size).union(newest, *before)
    calibration, basis = _calibrated(sweep, measured, "this and smaller sizes")
    points, prediction = planning.predict_points(sweep.study, sweep.once, calibration)
    rows = choose_again(
        points,
        prediction,
        _seen(sweep, measured),
        world_size,
        _guide(sweep, prediction),
        spent_gpu_s=_spent_gpu_s(sweep),
    )
    added = {same_layout(sweep.once[row]) for row in rows}
    table = choice_table([point for point in _every(sweep) if same_layout(point) in added], {})
    return table, f"{table.num_rows} points are measured too; {basis}"


def _every(sweep: Sweep) -> list[Point]:
    """All points; repeats of contenders are chosen by what the first runs say."""
    return sweep.once if sweep.study.measure.repeats.only else list(sweep.points)


def _smaller(sweep: Sweep, world_size: int) -> set[str]:
    smaller = {point.point_id for point in sweep.runs if point.world_size < world_size}
    return smaller & sweep.rows.keys()


def _spent_gpu_s(sweep: Sweep) -> float:
    return math.fsum(row["duration_s"] * row["world_size"] for row in sweep.rows.values())


def _guide(sweep: Sweep, prediction: Prediction) -> Guide:
    # before the first step, as the points so far took
    startup_s = sorted(s for row in sweep.rows.values() if (s := row["startup_s"]) is not None)
    usual_s = startup_s[len(startup_s) // 2] if startup_s else advised.STARTUP_S
    seconds = price.run_s(sweep.study, sweep.once, prediction.step_time_s)
    return price.guide_of(sweep.study, usual_s, seconds)


def _seen(sweep: Sweep, measured: set[str]) -> Progress:
    """What these points have shown, repeats of a layout by their median."""
    runs: dict[Any, list[float | None]] = {}
    for point in sweep.runs:
        if point.point_id in measured:
            row = sweep.rows[point.point_id]  # neither: it did not run
            seconds = row["step_time_s"] or row["extended_step_time_s"]
            runs.setdefault(same_layout(point), []).append(seconds)
    of_point = [runs.get(same_layout(point), []) for point in sweep.once]
    times = [[seconds for seconds in of if seconds is not None] for of in of_point]
    return Progress(
        measured=np.array([bool(of) for of in of_point]),
        step_time_s=np.array([np.median(of) if of else np.nan for of in times]),
    )


def _calibrated(sweep: Sweep, measured: set[str], whose: str) -> tuple[Calibration | None, str]:
    """A calibration on these points' rows, of the software that left most of them."""
    from scaling.predict.fit.calibrate import calibrate  # scipy comes with it

    if not measured:
        return None, "nothing smaller has been measured: data-sheet numbers"
    paths, clusters, probed = sweep.paths, sweep.study.clusters, None
    stacks = {point_id: sweep.rows[point_id]["stack_fingerprint"] for point_id in sorted(measured)}
    stack, count = Counter(stacks.values()).most_common(1)[0]
    rows = read_measured([paths.row(name) for name in stacks if stacks[name] == stack])
    columns = Columns(rows.table, str(paths.rows))
    if paths.probes.exists():
        probes = Columns(read_rows(paths.probes), str(paths.probes))
        probed = probed_parameters(probes, clusters)
    calibration = calibrate(
        points_of(columns, clusters=clusters),
        observed_of(columns),
        source=str(paths.rows),
        bands=False,
        probes=probed,
    )
    basis = f"calibrated on {count} rows of {whose}"
    if count < len(measured):
        others = len(measured) - count
        basis += f", those of stack_fingerprint {stack}: {others} are of another"
    return calibration, basis
