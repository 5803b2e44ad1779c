"""Replay a guided sweep on fully measured tables: what it saves, and what it misses.

    python benchmarks/replayed_sweep.py ROWS.csv ...

Each round takes the points of `next_points`. They are "measured" by looking them up, which
calibrates the prediction of the next round. The table counts as the truth, without noise: a point
runs once, with 13 full steps and one start. Regret is how much slower the fastest measured layout
is than the best of its size and setting.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scaling.analyse.next_points import Plan, estimate, next_points
from scaling.analyse.posterior import Runs
from scaling.importing.reader import Table, read_rows
from scaling.layout.axes import AXES
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.fit.validation import rows_by_setting
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.run.rounds import contest_of
from scaling.run.sweep import KEEP, SPREAD
from scaling.study.time_limits import TYPICAL_STARTUP_S

_STEPS = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The points, GPU-hours and regrets of a guided sweep at one size, or at all.

    `regrets`: per setting with a timed layout, how much slower the fastest measured layout is than
    the best of all, as a ratio; None if no measured layout ran.
    """

    world_size: int | None
    points: int
    measured: int
    gpu_hours: float  # of all points
    gpu_hours_spent: float
    regrets: tuple[float | None, ...]


def play(table: Table) -> list[Replay]:
    """Measure what `next_points` takes, round by round, and calibrate on everything so far.

    A row that ran costs its steps and a start, any other row a start. A failure of unknown reason
    is measured but does not calibrate.
    """
    points, observed = points_of(table), observed_of(table)
    truth = np.where(observed.timed, observed.step_time_s, np.nan)
    cost = points.world_size * (np.nan_to_num(_STEPS * truth) + TYPICAL_STARTUP_S)
    ran, calibration = np.zeros(len(points), dtype=bool), None
    names = [name for name in table.rows.column_names if name in AXES]
    labels = [str(list(one.values())) for one in table.rows.select(names).to_pylist()]
    while True:
        contest, prediction = contest_of(points, calibration, labels)
        expected_s = np.nan_to_num(_STEPS * prediction.step_time_s) + TYPICAL_STARTUP_S
        price = np.where(ran, cost, points.world_size * expected_s)
        row = np.flatnonzero(ran & observed.timed)
        rate, unknown = np.log(points.tokens_per_step[row] / truth[row]), np.full(len(row), np.nan)
        seen = Runs(rate, unknown, row, np.full(len(row), -1))
        estimates = estimate(contest, seen, ran)
        plan = Plan(price, np.where(ran, 0, 1), KEEP, SPREAD)
        chosen = next_points(estimates, plan, math.inf).cells
        if not chosen:
            break
        ran[chosen] = True
        if (ran & (observed.timed | observed.out_of_memory)).any():
            part = table.filter(ran)
            calibration = calibrate(points_of(part), observed_of(part), source=table.source)
    replays = []
    for size in [*sorted({int(size) for size in points.world_size}), None]:
        here = np.ones(len(points), dtype=bool) if size is None else points.world_size == size
        regrets: list[float | None] = []
        for of_setting in rows_by_setting(points, np.flatnonzero(here & observed.timed)).values():
            at = np.array(of_setting)
            best = truth[at[ran[at]]].min(initial=np.inf)
            regrets.append(float(best / truth[at].min()) - 1 if np.isfinite(best) else None)
        replays.append(
            Replay(
                world_size=size,
                points=int(here.sum()),
                measured=int((here & ran).sum()),
                gpu_hours=float(cost[here].sum()) / 3600,
                gpu_hours_spent=float(cost[here & ran].sum()) / 3600,
                regrets=tuple(regrets),
            )
        )
    return replays


def main() -> None:
    """Print the result for each table: a line per size, and one of all sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="+", type=Path)
    for path in parser.parse_args().rows:
        print(path.name)
        for one in play(read_rows(path)):
            print(_line(one), flush=True)


def _line(one: Replay) -> str:
    """Points, GPU-hours and regret at one size."""
    known = [regret for regret in one.regrets if regret is not None]
    text = "  all       " if one.world_size is None else f"  {one.world_size:5} GPUs"
    text += f" {one.measured:5} of {one.points:5} points ({one.measured / one.points:4.0%})"
    text += f", {one.gpu_hours_spent:7.1f} of {one.gpu_hours:7.1f} GPU-hours"
    text += f" ({one.gpu_hours_spent / one.gpu_hours:4.0%})"
    if known:
        text += f", regret mean {np.mean(known):6.2%} max {max(known):5.1%} of {len(known)}"
        text += f", {missed} without a row" if (missed := len(one.regrets) - len(known)) else ""
    return text


if __name__ == "__main__":
    main()
