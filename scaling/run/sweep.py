"""A study that is being measured: its points, their rows, the nodes that later points leave out.

excluded.json names the slow nodes with a reason each; the residuals of rows name them, round after
round. What probes say is read where it stands. A repeat leaves out those its layout has run on too.
"""

import dataclasses
import functools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from scaling.analyse.being_best import run_standard_error
from scaling.analyse.drift import residual_tests
from scaling.analyse.slow_hosts import slow_hosts
from scaling.cluster.hardware import gpu_named
from scaling.predict.advise.surprise import TURNS
from scaling.record.files import write_text_if_changed
from scaling.record.probe_row import Probe
from scaling.record.row import fields_of
from scaling.run import planning
from scaling.run.choices import rows_of, same_layout
from scaling.study import plan_file
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import Allocation, read_json_object
from scaling.study.point import LONG_DIGEST, Point, make_point, point_columns
from scaling.study.study import Study

_COLUMNS = [
    "outcome", "duration_s", "world_size", "startup_s", "step_time_s", "step_time_low_s",
    "step_time_high_s", "extended_step_time_s", "extended_low_s", "extended_high_s", "hosts",
    "stack_fingerprint",
]  # fmt: skip
SLOWER_BY = 0.05  # ratio; what runs on the node take longer than others, on average
SURE = 0.01  # share of shuffles of the residuals in which some node looks as slow
FEWEST_RUNS = 3  # on the node, and elsewhere

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sweep:
    """What choices are made by."""

    study: Study
    points: Sequence[Point]
    study_dir: Path

    @cached_property
    def paths(self) -> StudyPaths:
        """Of its folder."""
        return StudyPaths(self.study_dir)

    @property
    def turns(self) -> int:
        """Times that each size is chosen for again, by its own rows."""
        return TURNS if self.study.mode == "measure" and self.study.measure.guided else 0

    @property
    def choices(self) -> set[Path]:
        """The files of every choice that is made while the study runs."""
        measure, paths = self.study.measure, self.paths
        if self.study.mode != "measure":
            return set()
        sizes = {point.world_size for point in self.points}
        choices: set[Path] = set()
        if measure.guided:
            choices = {paths.choice(size) for size in sizes}
            again = range(1, self.turns + 1)
            choices |= {paths.choice_again(size, turn) for size in sizes for turn in again}
        if measure.repeats.only:
            repeats = {(point.world_size, point.repeat) for point in self.points if point.repeat}
            choices |= {paths.choice_of_repeat(*repeat) for repeat in repeats}
        if self.repeats_elsewhere:
            choices |= {paths.choice_elsewhere(size) for size in sizes}
        return choices

    @cached_property
    def repeats_elsewhere(self) -> bool:
        """Whether what ran on slow nodes only runs once more, on others.

        Where contenders are repeated their rounds do that. A study that had its report before there
        was this choice is left alone.
        """
        study, measure = self.study, self.study.measure
        if study.mode != "measure" or not measure.exclude_slow_nodes or measure.repeats.only:
            return False
        cluster = study.clusters[self.points[0].cluster]
        if cluster.nodes == 1:
            return False
        if gpu_named(cluster.gpu).memory_bytes is None and measure.repeats.at_most == 1:
            return False  # neither a prediction nor another run to compare a run with
        return plan_file.chooses_elsewhere(self.paths) or not self.paths.report.exists()

    @cached_property
    def spare(self) -> list[Point]:
        """Of each layout the run that is added where all others were on slow nodes."""
        repeat = self.study.measure.repeats.at_most
        added = []
        for point in self.once if self.repeats_elsewhere else ():
            axes = point_columns(point)
            named = make_point(self.study, axes, point.layout, repeat, digits=LONG_DIGEST)
            added.append(dataclasses.replace(point, repeat=repeat, point_id=named.point_id))
        return added

    @cached_property
    def runs(self) -> list[Point]:
        """All there may be."""
        return [*self.points, *self.spare]

    @cached_property
    def once(self) -> list[Point]:
        """The points without their repeats."""
        return [point for point in self.points if point.repeat == 0]

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows that are there, by point."""
        return rows_of(self.paths, self.runs, _COLUMNS)

    @cached_property
    def timed(self) -> dict[str, tuple[float, float]]:
        """By point, seconds of a step and the error of their logarithm."""
        return {name: each for name, row in self.rows.items() if (each := _timed(row))}

    def slow_hosts(self, points: Sequence[Point] | None = None) -> dict[str, str]:
        """Name the nodes that the rows of these points, or all, show to be slow, and why.

        excluded.json has them; none if the study forbids. A residual is that of ln step time
        against the other runs of the same layout, or where it ran once against the prediction less
        its median error (`scaling.analyse.drift`). A node once named stays so.
        """
        if not self.study.measure.exclude_slow_nodes:
            return {}
        slow: dict[str, str] = read_json_object(self.paths.excluded)
        runs = [p for p in (self.runs if points is None else points) if p.point_id in self.timed]
        for residuals in self._residuals(runs):
            used = np.flatnonzero(np.isfinite(residuals))
            hosts = [list(self.rows[runs[row].point_id]["hosts"]) for row in used.tolist()]
            if not hosts:
                continue
            for test in residual_tests(residuals[used], np.zeros(len(used)), pa.array(hosts)):
                host, effect, p_value = (str(test[name]) for name in ("host", "effect", "p_value"))
                on = sum(host in names for names in hosts)
                many = min(on, len(hosts) - on) >= FEWEST_RUNS
                if many and float(effect) >= SLOWER_BY and float(p_value) <= SURE:
                    slow.setdefault(
                        host,
                        f"its {on} runs take {float(effect):.0%} longer than those elsewhere "
                        f"(p {float(p_value):.2g})",
                    )
        if slow:
            write_text_if_changed(self.paths.excluded, json.dumps(slow, indent=1) + "\n")
        return slow

    def _residuals(self, points: Sequence[Point]) -> list[Floats]:
        """Of ln step time, (points,): against other runs of a layout, and of single runs.

        The latter as predicted. NaN where there is nothing to compare with. The two are apart:
        predictions err far more.
        """
        logs = np.log([self.timed[point.point_id][0] for point in points])
        alike: dict[Any, list[int]] = {}
        for row, point in enumerate(points):
            alike.setdefault(same_layout(point), []).append(row)
        against_runs, against_predictions = np.full((2, len(points)), np.nan)
        for rows in alike.values():
            if len(rows) > 1:
                against_runs[rows] = logs[rows] - np.median(logs[rows])
        single = np.isnan(against_runs)
        if single.any() and self.study.is_predictable:
            prediction = planning.predict_points(self.study, points)[1]
            predicted = single & prediction.predicted
            off = logs[predicted] - np.log(prediction.step_time_s[predicted])
            against_predictions[predicted] = off - np.median(off) if off.size else off
        return [against_runs, against_predictions]

    def only_on(self, hosts: Collection[str], points: Sequence[Point]) -> set[Any]:
        """Layouts of which every run was on one of these hosts."""
        runs: dict[Any, list[bool]] = {}
        for point in points:
            if point.point_id in self.timed:
                there = not set(hosts).isdisjoint(self.rows[point.point_id]["hosts"])
                runs.setdefault(same_layout(point), []).append(there)
        return {layout for layout, there in runs.items() if all(there)}


def _timed(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """As extended where short steps ran."""
    if row["outcome"] != "ok":
        return None
    if row["extended_step_time_s"] is None:
        return row["step_time_s"], run_standard_error(row, "measured")
    ends = {f"step_time_{end}_s": row[f"extended_{end}_s"] for end in ("low", "high")}
    return row["extended_step_time_s"], run_standard_error(ends, "extended")


def hosts_to_avoid(
    paths: StudyPaths, point_id: str, allocation: Allocation, nodes: int, *, slow_ones: bool = True
) -> list[str]:
    """The hosts that Slurm is told to leave out for a point; none where too few would be left.

    `nodes` are those of the cluster; `slow_ones` says whether the study leaves slow nodes out.
    """
    slow = set(read_json_object(paths.excluded)) | slow_by_probes(paths) if slow_ones else set()
    avoided = sorted(slow) if nodes - len(slow) >= allocation.nodes else []
    seen = slow | _seen(paths, point_id, allocation) if allocation.repeat else slow
    return sorted(seen) if nodes - len(seen) >= allocation.nodes else avoided


def slow_by_probes(paths: StudyPaths) -> set[str]:
    """Hosts that the study's probes name."""
    time_ns = paths.probes.stat().st_mtime_ns if paths.probes.exists() else None
    return set(_slow_by_probes(paths.probes, time_ns))


@functools.cache
def _slow_by_probes(path: Path, time_ns: int | None) -> tuple[str, ...]:
    """Hosts that probes name; read again only where the file has changed."""
    if time_ns is None:
        return ()
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException):
        return ()
    columns = [name for name in fields_of(Probe) if name in table.column_names]
    records = table.select(columns).to_pylist()
    return tuple(sorted({one.host for one in slow_hosts(Probe(**one) for one in records)}))


def _seen(paths: StudyPaths, point_id: str, allocation: Allocation) -> set[str]:
    """Hosts that earlier runs of a repeat's layout were on, as they stood when it was chosen."""
    choice = paths.choice_of_repeat(allocation.world_size, allocation.repeat)
    try:
        table = pq.read_table(choice, columns=["hosts"], filters=[("point_id", "=", point_id)])
    except (OSError, pa.ArrowException):
        return set()
    return {host for one in table.to_pylist() for host in one["hosts"] or ()}
