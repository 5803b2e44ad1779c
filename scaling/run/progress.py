"""How far a study is: what is measured, failed, running and left, and how long that will take."""

import contextlib
import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.record import row_files
from scaling.record.running import Runner, live_runner
from scaling.run.sweep import Sweep
from scaling.study.paths import StudyPaths, running_marker
from scaling.study.point import Point
from scaling.study.study import Study

_QUANTILE = 1.2816  # of the normal distribution, for an 80 % interval
_USUAL_SPREAD = 0.3  # of a point's duration, where fewer than two of a size have told theirs
_COLUMNS = ["outcome", "duration_s", "world_size", "step_time_s", "extended_step_time_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Counts of a study's points, each in exactly one of done, failed, running and left."""

    total: int
    done: int
    failed: Mapping[str, int] = field(default_factory=dict)  # outcome -> points
    running: int
    seconds_left: float | None  # None: nothing has finished yet to judge by
    undecided: int = 0  # choices of points that are still to be made

    @property
    def left(self) -> int:
        """Points nobody has started."""
        return self.total - self.done - sum(self.failed.values()) - self.running

    @property
    def finished(self) -> bool:
        """Every point has left its row, and no choice can add another."""
        return not self.undecided and self.done + sum(self.failed.values()) == self.total

    def line(self) -> str:
        """One line for people: `12 done · 1 failed (oom 1) · 1 running · 10 left of 24 · ...`."""
        if self.total == 0:
            return "nothing to measure: this study only predicts"
        parts = [f"{self.done} done"]
        if self.failed:
            kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(self.failed.items()))
            parts.append(f"{sum(self.failed.values())} failed ({kinds})")
        parts += [f"{self.running} running", f"{self.left} left of {self.total}"]
        if self.undecided:
            parts.append(f"{self.undecided} choices to make")
        if not self.finished and self.seconds_left is not None:
            parts.append(f"about {duration(self.seconds_left)} to go")
        return " · ".join(parts)


def duration(seconds: float) -> str:
    """A time for people: `45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def judge(
    points: Sequence[Point], rows: Mapping[str, Mapping[str, Any]], running: Collection[str]
) -> Progress:
    """The progress of `points`; rows of points the study no longer has are not counted."""
    finished = {point.point_id: rows[point.point_id] for point in points if point.point_id in rows}
    missing = [point for point in points if point.point_id not in rows]
    outcomes = Counter(row["outcome"] for row in finished.values())
    active = sum(point.point_id in running for point in missing)
    left = time_left(missing, finished.values(), active)
    return Progress(
        total=len(points),
        done=outcomes.pop("ok", 0),
        failed=dict(outcomes),
        running=active,
        seconds_left=None if left is None else left[1],
    )


def time_left(
    missing: Sequence[Point], rows: Iterable[Mapping[str, Any]], active: int
) -> tuple[float, float, float] | None:
    """Seconds until the rest is done if as many points run at once as now, between its 80 % bounds.

    The sum over the missing points of the mean duration m of their size (of all, where none of that
    size has finished), of k points so far; its variance is n s^2 (1 + n / k) a size for n missing
    ones, s their spread. None where nothing has finished yet.
    """
    durations: dict[int, list[float]] = {}
    for row in rows:
        durations.setdefault(row["world_size"], []).append(row["duration_s"])
    of_all_sizes = [*itertools.chain(*durations.values())]
    if not of_all_sizes:
        return None
    total = variance = 0.0
    for size, n in Counter(point.world_size for point in missing).items():
        listed = durations.get(size, of_all_sizes)
        k, mean = len(listed), statistics.fmean(listed)
        spread = statistics.stdev(listed) if k > 1 else _USUAL_SPREAD * mean
        total += n * mean
        variance += n * spread**2 * (1 + n / k)
    off, at_once = _QUANTILE * variance**0.5, max(1, active)
    return max(0.0, total - off) / at_once, total / at_once, (total + off) / at_once


def watcher_of(study: Study, points: Sequence[Point], study_dir: Path) -> "Watcher":
    """The watcher of a study's folder, of the points that it shall measure."""
    sweep = Sweep(study, points, study_dir)
    repeats = [p for p in points if p.repeat] if study.measure.repeats.only else []
    return Watcher(
        study_dir,
        sweep.runs,
        choices=sweep.choices,
        optional={point.point_id for point in (*repeats, *sweep.spare)},
    )


class Watcher:
    """Reads a study's folder again and again, each finished row only once.

    After a look, `rows` holds what the rows that are there say, and `runners` who measures, both by
    point. `choices` are the files of those made while the study runs, `optional` the points that
    are wanted only once they are chosen.
    """

    def __init__(
        self,
        study_dir: Path,
        points: Sequence[Point],
        *,
        choices: Collection[Path] = (),
        optional: Collection[str] = (),
    ) -> None:
        self.paths = StudyPaths(study_dir)
        self.points = points
        self.rows: dict[str, dict[str, Any]] = {}
        self.runners: dict[str, Runner] = {}
        self._choices = choices
        self._optional = optional
        self._names = {self.paths.row(point.point_id): point.point_id for point in points}

    def look(self) -> Progress:
        """The progress as the files tell it now; a file that holds no row counts as none."""
        files = row_files.row_files_in(self.paths.rows)
        present = {self._names[path]: path for path in files if path in self._names}
        self.rows = {name: row for name, row in self.rows.items() if name in present}
        if new := sorted(present[name] for name in present.keys() - self.rows.keys()):
            table = row_files.read_rows(new).table.select(["file", *_COLUMNS])
            self.rows |= {self._names[Path(row["file"])]: row for row in table.to_pylist()}
        markers = set(self.paths.rows.glob(running_marker(self.paths.row("*")).name))
        self.runners = {
            name: runner
            for path, name in self._names.items()
            if running_marker(path) in markers and (runner := live_runner(running_marker(path)))
        }
        undecided = sum(not path.exists() for path in self._choices)
        seen = judge(self._wanted(), self.rows, self.runners)
        return dataclasses.replace(seen, undecided=undecided)

    def missing(self) -> list[Point]:
        """Points that had left no row when last looked at."""
        return [point for point in self._wanted() if point.point_id not in self.rows]

    def _wanted(self) -> list[Point]:
        """All points but those that somebody decided not to measure, or has yet to decide about."""
        chosen: set[str] = set()
        skipped: set[str] = set()
        for path in self.paths.chosen.glob("*.parquet"):
            # removed since it was listed, or broken
            with contextlib.suppress(OSError, pa.ArrowException):
                for one in pq.read_table(path, columns=["point_id", "chosen"]).to_pylist():
                    (chosen if one["chosen"] else skipped).add(one["point_id"])
        skipped |= set(self._optional)  # what any choice takes is wanted
        return [p for p in self.points if p.point_id in chosen or p.point_id not in skipped]
