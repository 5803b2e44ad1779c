"""A guided sweep, size after size: what the smaller ones measured chooses the points of the next.

chosen/<world_size>.parquet holds every point of a size: whether it is measured, else why not.
chosen/<world_size>.again<n>.parquet holds what is measured too after a surprise among the points
that the choice before had added.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from scaling.errors import InputError
from scaling.record.files import write_table
from scaling.record.row_files import read_rows as read_measured
from scaling.run import exclusion, planning, price
from scaling.run.choices import choice_table, chosen_ids, rows_of, same_layout
from scaling.run.elsewhere import once_more
from scaling.study.grid import Plan
from scaling.study.paths import StudyPaths
from scaling.study.point import Point

if TYPE_CHECKING:
    from scaling.predict.advise.guide import Choice, Guide
    from scaling.predict.advise.surprise import Seen
    from scaling.predict.cost.model import Prediction
    from scaling.predict.read.calibration import Calibration
    from scaling.study.study import Study

_COLUMNS = [
    "duration_s", "world_size", "startup_s", "stack_fingerprint", "step_time_s",
    "extended_step_time_s", "hosts",
]  # fmt: skip


def choose(
    study: "Study", planned: Plan, world_size: int, study_dir: Path, out: Path, *, turn: int = 0
) -> str:
    """Choose points of one size and write them; a sentence about it.

    A point that has a row already stays chosen, and its cost counts as spent.

    Args:
        study: that is guided.
        planned: its points.
        world_size: the size.
        study_dir: its folder.
        out: where the table goes.
        turn: 0, or the so manieth time that the size is chosen for again, after a surprise.

    Raises:
        InputError: the study does not ask for it, or has no point of that size.
    """
    from scaling.predict.advise.surprise import TURNS

    if not study.measure.guided:
        raise InputError(f"{study.path}: measure: neither keep nor budget_gpu_hours is given")
    if not 0 <= turn <= TURNS:
        raise InputError(f"--again {turn}: a size is chosen for again {TURNS} times at most")
    if not any(point.world_size == world_size for point in planned.points):
        sizes = ", ".join(str(s) for s in sorted({point.world_size for point in planned.points}))
        raise InputError(f"{study.path}: world_size={world_size}: the study has {sizes}")
    paths = StudyPaths(study_dir)
    sweep = _Sweep(
        study=study,
        points=planned.points,
        runs=[*planned.points, *once_more(study, planned.points, paths)],
        folder=paths,
    )
    table, sentence = sweep.again(world_size, turn) if turn else sweep.first(world_size)
    write_table(out, table)
    return f"world_size={world_size}: {sentence}" + exclusion.left_out(sweep.name_slow())


@dataclass(frozen=True)
class _Sweep:
    """A study's points, all runs there may be of them, and what has been measured."""

    study: "Study"
    points: Sequence[Point]
    runs: Sequence[Point]
    folder: StudyPaths

    @cached_property
    def once(self) -> list[Point]:
        """The points without their repeats."""
        return [point for point in self.points if point.repeat == 0]

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """What the rows that are there say, by point."""
        return rows_of(self.folder, self.runs, _COLUMNS)

    def first(self, world_size: int) -> tuple[pa.Table, str]:
        """Which points of a size are measured, and a sentence."""
        from scaling.predict.advise.guide import choose as choose_rows

        calibration, basis = self._calibrated(self._smaller(world_size), "smaller sizes")
        points, prediction = planning.predict_points(self.study, self.once, calibration)
        guide = self._guide(prediction)
        spent = self._spent_gpu_s
        choices = choose_rows(points, prediction, world_size, guide, spent_gpu_s=spent)
        # repeats of contenders are chosen by what the first runs say
        every = self.once if self.study.measure.repeats.only else self.points
        table = _table(self.once, choices, every, set(self.rows))
        count = sum(table.column("chosen").to_pylist())
        return table, f"{count} of {table.num_rows} points are measured; {basis}"

    def again(self, world_size: int, turn: int) -> tuple[pa.Table, str]:
        """Which points are worth measuring too; all as the files say, also after a kill."""
        from scaling.predict.advise.surprise import choose_again

        earlier = [self.folder.choice(world_size)]
        earlier += [self.folder.choice_again(world_size, before) for before in range(1, turn)]
        *before, newest = [set(chosen_ids(path)) & self.rows.keys() for path in earlier]
        if not newest:
            return choice_table([], {}), "nothing was added before, so nothing is now"
        known = self._smaller(world_size).union(newest, *before)
        calibration, basis = self._calibrated(known, "this and smaller sizes")
        points, prediction = planning.predict_points(self.study, self.once, calibration)
        rows = choose_again(
            points,
            prediction,
            self._seen(known),
            world_size,
            self._guide(prediction),
            spent_gpu_s=self._spent_gpu_s,
        )
        added = {same_layout(self.once[row]) for row in rows}
        every = self.once if self.study.measure.repeats.only else self.points
        table = choice_table([point for point in every if same_layout(point) in added], {})
        return table, f"{table.num_rows} points are measured too; {basis}"

    def name_slow(self) -> dict[str, str]:
        """The nodes that rows show to be slow, for later points to leave out, and why."""
        timed = {
            name: (seconds, row["hosts"])
            for name, row in self.rows.items()
            if (seconds := _full_step_s(row)) is not None
        }
        return exclusion.name_slow(self.study, self.runs, timed, self.folder.excluded)

    def _smaller(self, world_size: int) -> set[str]:
        return {
            point.point_id
            for point in self.runs
            if point.world_size < world_size and point.point_id in self.rows
        }

    @property
    def _spent_gpu_s(self) -> float:
        return math.fsum(row["duration_s"] * row["world_size"] for row in self.rows.values())

    def _guide(self, prediction: "Prediction") -> "Guide":
        seconds = price.run_s(self.study, self.once, prediction)
        return guide_of(self.study, _startup_s(self.rows), seconds)

    def _seen(self, known: set[str]) -> "Seen":
        """What these points have shown, repeats of a layout by their median."""
        from scaling.predict.advise.surprise import Seen

        runs: dict[Any, list[float | None]] = {}
        for point in self.runs:
            if point.point_id in known:
                runs.setdefault(same_layout(point), []).append(
                    _full_step_s(self.rows[point.point_id])
                )
        of_point = [runs.get(same_layout(point), []) for point in self.once]
        times = [[seconds for seconds in of if seconds is not None] for of in of_point]
        return Seen(
            measured=np.array([bool(of) for of in of_point]),
            step_time_s=np.array([np.median(of) if of else np.nan for of in times]),
        )

    def _calibrated(self, known: set[str], whose: str) -> tuple["Calibration | None", str]:
        """A calibration on these points' rows, of the software that left most of them."""
        from scaling.foreign.columns import Columns
        from scaling.foreign.reading import read_rows
        from scaling.predict.fit.calibrate import calibrate
        from scaling.predict.fit.probes import probed_parameters
        from scaling.predict.read.observed import observed_of
        from scaling.predict.read.points import points_of

        if not known:
            return None, "nothing smaller has been measured: data-sheet numbers"
        stacks = {point_id: self.rows[point_id]["stack_fingerprint"] for point_id in sorted(known)}
        stack, count = Counter(stacks.values()).most_common(1)[0]
        paths = [self.folder.row(point_id) for point_id in stacks if stacks[point_id] == stack]
        columns = Columns(read_measured(paths).table, str(self.folder.rows))
        clusters, probed = self.study.clusters, None
        if self.folder.probes.exists():
            probes = Columns(read_rows(self.folder.probes), str(self.folder.probes))
            probed = probed_parameters(probes, clusters)
        calibration = calibrate(
            points_of(columns, clusters=clusters),
            observed_of(columns),
            source=str(self.folder.rows),
            bands=False,
            probes=probed,
        )
        basis = f"calibrated on {count} rows of {whose}"
        if count < len(known):
            others = len(known) - count
            basis += f", those of stack_fingerprint {stack}: {others} are of another"
        return calibration, basis


def _full_step_s(row: Mapping[str, Any]) -> float | None:
    """Seconds of a full step, as extended where no full one was measured; None: it did not run."""
    step_time_s: float | None = row["step_time_s"] or row["extended_step_time_s"]
    return step_time_s


def _startup_s(rows: Mapping[str, Mapping[str, Any]]) -> float:
    """Seconds before the first step, as the points so far took."""
    from scaling.predict.advise.guide import STARTUP_S

    known = sorted(row["startup_s"] for row in rows.values() if row["startup_s"] is not None)
    return known[len(known) // 2] if known else STARTUP_S


def guide_of(
    study: "Study", startup_s: float, run_s: "price.Floats", *, keep: float | None = None
) -> "Guide":
    """What the study says about what to measure.

    Args:
        study: whose `measure` says it.
        startup_s: seconds before the first step of a point.
        run_s: predicted seconds of all the steps of each point.
        keep: what holds where the study chooses nothing.
    """
    from scaling.predict.advise.guide import Guide

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


def budget_gpu_hours(study: "Study") -> float | None:
    """The budget of a guided sweep in GPU-hours, money at its cluster's price."""
    measure = study.measure
    if measure.budget_usd is None:
        return measure.budget_gpu_hours
    names = {name for block in study.layouts for name in {**study.axes, **block}["cluster"]}
    prices = [study.clusters[name].usd_per_gpu_hour for name in names]
    bought = [measure.budget_usd / price for price in prices if price]
    return min([*bought, *([measure.budget_gpu_hours] if measure.budget_gpu_hours else [])])


def _table(
    once: Sequence[Point],
    choices: Sequence["Choice"],
    every: Sequence[Point],
    measured: set[str],
) -> pa.Table:
    """A row per point of the size, repeats of a layout alike."""
    by_layout = {same_layout(once[choice.row]): choice for choice in choices}
    here = {p.point_id: by_layout[same_layout(p)] for p in every if same_layout(p) in by_layout}
    reasons = {
        name: str(choice.reason)
        for name, choice in here.items()
        if not choice.chosen and name not in measured
    }
    return choice_table(
        [point for point in every if point.point_id in here],
        reasons,
        predicted={name: choice.predicted_step_time_s for name, choice in here.items()},
        best={name: choice.best_step_time_s for name, choice in here.items()},
    )
