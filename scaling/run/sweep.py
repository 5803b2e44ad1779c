"""A study that is being measured: its points, all runs there may be of them, and their rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scaling.analyse.being_best import own_error
from scaling.run import exclusion
from scaling.run.choices import once_more, rows_of, same_layout
from scaling.study.paths import StudyPaths
from scaling.study.point import Point
from scaling.study.study import Study

_COLUMNS = [
    "outcome", "duration_s", "world_size", "startup_s", "step_time_s", "step_time_low_s",
    "step_time_high_s", "extended_step_time_s", "extended_low_s", "extended_high_s", "hosts",
    "stack_fingerprint",
]  # fmt: skip


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

    @cached_property
    def spare(self) -> list[Point]:
        """Runs that are added where all others of a layout were on slow nodes."""
        return once_more(self.study, self.points, self.paths)

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

    def slow_hosts(self, runs: Sequence[Point] | None = None) -> dict[str, str]:
        """Name the nodes that these runs, or all, show to be slow, and why; excluded.json has them.

        See `exclusion.name_slow`.
        """
        timed = {name: (each[0], self.rows[name]["hosts"]) for name, each in self.timed.items()}
        runs = self.runs if runs is None else runs
        return exclusion.name_slow(self.study, runs, timed, self.paths.excluded)

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
        return row["step_time_s"], own_error(row, "measured")
    ends = {f"step_time_{end}_s": row[f"extended_{end}_s"] for end in ("low", "high")}
    return row["extended_step_time_s"], own_error(ends, "extended")
