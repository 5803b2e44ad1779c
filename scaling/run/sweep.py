"""A study while it is measured: its points, their rows, and the slow nodes to leave out.

excluded.json lists slow nodes with reasons; they are found by the residuals of rows, again before
each round. Nodes that probes found slow are read from the probes. A repeat also leaves out the
nodes that its layout has run on.
"""

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from scaling.analyse.catalogue import Z80, Z95
from scaling.analyse.hosts import SlowHost, named_hosts, slow_in_probes
from scaling.cluster.hardware import gpu_named
from scaling.record.files import retried_rows, write_text_if_changed
from scaling.record.probe_row import Probe
from scaling.record.row import fields_of
from scaling.record.row_files import read_rows
from scaling.run import predictions
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import Allocation, read_json_object
from scaling.study.point import LONG_DIGEST, Point, point_id
from scaling.study.study import Study

Ids = npt.NDArray[np.int64]

# Read of a row while its study runs.
COLUMNS = [
    "file", "outcome", "duration_s", "world_size", "startup_s", "step_time_s", "step_time_low_s",
    "step_time_high_s", "extended_step_time_s", "extended_low_s", "extended_high_s", "hosts",
    "stack_fingerprint",
]  # fmt: skip
# A guided sweep never measures a point predicted slower than the best of its size by this ratio.
KEEP = 0.3
SPREAD = 0.03  # share of the points that its first round takes for the calibration
MIN_SLOWDOWN = 0.05  # by which runs on a slow node take longer than others


@dataclass(frozen=True)
class Sweep:
    """A study's points and everything that rounds depend on."""

    study: Study
    points: Sequence[Point]
    study_dir: Path

    @cached_property
    def paths(self) -> StudyPaths:
        """The paths of its folder."""
        return StudyPaths(self.study_dir)

    @property
    def contended(self) -> bool:
        """Whether only layouts that may be the best are repeated."""
        repeats = self.study.measure.repeats
        return repeats.only is not None and repeats.at_most > 1

    @property
    def fixed_repeats(self) -> int:
        """Runs of every layout that no round decides about."""
        measure = self.study.measure
        repeats = 1 if measure.repeats.only else measure.repeats.at_most
        return 0 if measure.is_guided else repeats

    @property
    def rounds(self) -> str:
        """The parameters of the rounds as one text; empty without rounds."""
        measure = self.study.measure
        parts = [
            f"repeats {measure.repeats.at_most}" if self.contended else "",
            "elsewhere" if self.has_reruns else "",
            f"keep {KEEP} spread {SPREAD} budget {measure.budget_gpu_hours}"
            if measure.is_guided
            else "",
        ]
        return " ".join(part for part in parts if part) if self.study.mode == "measure" else ""

    @property
    def optional(self) -> list[Point]:
        """The points that rounds decide about."""
        return [point for point in self.all_points if point.repeat >= self.fixed_repeats]

    @cached_property
    def has_reruns(self) -> bool:
        """Whether layouts that only ran on slow nodes may run once more on other nodes.

        Not if contenders are repeated, as their repeats do that.
        """
        study, measure = self.study, self.study.measure
        if study.mode != "measure" or not measure.exclude_slow_nodes or measure.repeats.only:
            return False
        cluster = study.clusters[self.points[0].cluster]
        if cluster.nodes == 1:
            return False
        # else there is neither a prediction nor another run to compare with
        return gpu_named(cluster.gpu).memory_bytes is not None or measure.repeats.at_most > 1

    @cached_property
    def reruns(self) -> list[Point]:
        """A further run of each layout, for when all its other runs were on slow nodes."""
        repeat = self.study.measure.repeats.at_most
        added = []
        for point in self.first_runs if self.has_reruns else ():
            again = dataclasses.replace(point, repeat=repeat)
            name = point_id(f"{point.model}-{point.layout.file_name}", again, LONG_DIGEST)
            added.append(dataclasses.replace(again, point_id=name))
        return added

    @cached_property
    def all_points(self) -> list[Point]:
        """All points that may run: planned ones and reruns."""
        return [*self.points, *self.reruns]

    @cached_property
    def first_runs(self) -> list[Point]:
        """The points without their repeats."""
        return [point for point in self.points if point.repeat == 0]

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Columns of the existing rows, by point."""
        by_path = {self.paths.row(point.point_id): point.point_id for point in self.all_points}
        table = read_rows([path for path in by_path if path.exists()]).table
        return {by_path[Path(row["file"])]: row for row in table.select(COLUMNS).to_pylist()}

    @cached_property
    def step_times(self) -> dict[str, tuple[float, float]]:
        """By point, seconds of a step and the standard error of their logarithm."""
        return {name: _step_time(row) for name, row in self.rows.items() if row["outcome"] == "ok"}

    def slow_hosts(self) -> dict[str, str]:
        """The nodes that rows show to be slow, with reasons.

        Updates excluded.json; empty if the study turns this off. A node once listed stays listed.
        """
        if not self.study.measure.exclude_slow_nodes:
            return {}
        slow: dict[str, str] = read_json_object(self.paths.excluded)
        for one in self.slow_in_runs:
            if (slower := math.expm1(-one.effect)) >= MIN_SLOWDOWN:
                slow.setdefault(
                    one.host, f"its {one.count} runs take {slower:.0%} longer than those elsewhere"
                )
        if slow:
            write_text_if_changed(self.paths.excluded, json.dumps(slow, indent=1) + "\n")
        return slow

    @cached_property
    def slow_in_runs(self) -> list[SlowHost]:
        """The hosts whose runs are slower than others of their layout, as the report names them.

        Without any repeat, of their size by the ratio to their prediction.
        """
        runs = [point for point in self.all_points if point.point_id in self.step_times]
        if not runs:
            return []
        rows = [self.rows[point.point_id] for point in runs]
        stacks = [row["stack_fingerprint"] for row in rows]
        rates = -np.log([self.step_times[point.point_id][0] for point in runs])
        gaps = np.full(len(runs), np.nan)
        if self.study.is_predictable:
            prediction = predictions.predict_points(self.study, runs)[1]
            known = prediction.predicted
            gaps[known] = rates[known] + np.log(prediction.step_time_s[known])
        sizes = [(point.setting_key, point.world_size) for point in runs]
        columns = {
            "cluster": [point.cluster for point in runs],
            "log_rate": rates,
            "cell_id": _numbered(zip([point.layout_key for point in runs], stacks, strict=True)),
            "gap": pa.array(gaps, from_pandas=True),
            "size_id": _numbered(zip(sizes, stacks, strict=True)),
            "hosts": [row["hosts"] for row in rows],
        }
        return named_hosts(pa.table(columns), ())[runs[0].cluster]


def _numbered(keys: Iterable[object]) -> Ids:
    """Equal keys by one number."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _step_time(row: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds of a step, and the error of their logarithm, NaN without an interval."""
    kind, z = ("extended", Z80) if row["extended_step_time_s"] is not None else ("step_time", Z95)
    low, high = row[f"{kind}_low_s"], row[f"{kind}_high_s"]
    seconds = row["extended_step_time_s"] or row["step_time_s"]
    return seconds, math.log(high / low) / 2 / z if low and high else math.nan


def hosts_to_avoid(
    paths: StudyPaths, point_id: str, allocation: Allocation, nodes: int, *, slow_ones: bool = True
) -> list[str]:
    """The hosts that Slurm is told to exclude for a point; none where too few would be left.

    `nodes` is the size of the cluster; `slow_ones` says whether the study leaves slow nodes out.
    """
    slow = set(read_json_object(paths.excluded)) | slow_by_probes(paths) if slow_ones else set()
    used = _hosts_of_earlier_runs(paths, point_id) if allocation.repeat else set()
    lost = _hosts_of_lost_attempts(paths, point_id)
    for hosts in (slow | used | lost, slow | lost, slow):
        if nodes - len(hosts) >= allocation.nodes:
            return sorted(hosts)
    return []


def slow_by_probes(paths: StudyPaths) -> set[str]:
    """Hosts that the study's probes found slow."""
    time_ns = paths.probes.stat().st_mtime_ns if paths.probes.exists() else None
    return set(_slow_by_probes(paths.probes, time_ns))


@functools.cache
def _slow_by_probes(path: Path, time_ns: int | None) -> tuple[str, ...]:
    """Hosts that probes found slow, cached until the file changes."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException):  # there is none, or a broken one
        return ()
    columns = [name for name in fields_of(Probe) if name in table.column_names]
    records = table.select(columns).to_pylist()
    return tuple(sorted({one.host for one in slow_in_probes(Probe(**one) for one in records)}))


def _hosts_of_lost_attempts(paths: StudyPaths, point_id: str) -> set[str]:
    """Hosts of attempts at a point that ended with a lost node or a cut network."""
    rows = read_rows(retried_rows(paths.row(point_id))).table.select(["outcome", "hosts"])
    lost = (row["hosts"] for row in rows.to_pylist() if row["outcome"] == "node_failed")
    return {host for hosts in lost for host in hosts or ()}


def _hosts_of_earlier_runs(paths: StudyPaths, point_id: str) -> set[str]:
    """Hosts that earlier runs of a repeat's layout were on when the repeat was chosen."""
    hosts: set[str] = set()
    for path in paths.rounds():
        with contextlib.suppress(OSError, pa.ArrowException):
            table = pq.read_table(path, columns=["hosts"], filters=[("point_id", "=", point_id)])
            hosts.update(host for one in table.to_pylist() for host in one["hosts"] or ())
    return hosts
