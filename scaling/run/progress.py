"""The progress of a study: points measured, failed, running and left, and the time left."""

import contextlib
import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.errors import InputError
from scaling.launch.start.slurm import Queue, ask_queue
from scaling.record import row_files
from scaling.record.files import read_round
from scaling.record.running import Runner, live_runner
from scaling.run.sweep import COLUMNS, Sweep
from scaling.study.paths import StudyPaths, running_marker
from scaling.study.point import Point
from scaling.study.study import Study

_QUANTILE = 1.2816  # of the normal distribution, for an 80 % interval
_USUAL_SPREAD = 0.3  # of a point's duration, where fewer than two of its size have finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Counts of a study's points, each in exactly one of done, failed, running and left."""

    total: int
    done: int
    failed: Mapping[str, int] = field(default_factory=dict)  # outcome -> points
    running: int
    seconds_left: float | None  # None: nothing has finished yet
    undecided: int = 0  # 1: a further round may add points

    @property
    def left(self) -> int:
        """Points that have not started."""
        return self.total - self.done - sum(self.failed.values()) - self.running

    @property
    def finished(self) -> bool:
        """Whether every point has left its row and no round can add another."""
        return not self.undecided and self.done + sum(self.failed.values()) == self.total

    def line(self) -> str:
        """One line: `12 done · 1 failed (oom 1) · 1 running · 10 left of 24 · ...`."""
        if self.total == 0:
            return "nothing to measure: this study only predicts"
        parts = [f"{self.done} done"]
        if self.failed:
            kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(self.failed.items()))
            parts.append(f"{sum(self.failed.values())} failed ({kinds})")
        parts += [f"{self.running} running", f"{self.left} left of {self.total}"]
        if self.undecided:
            parts.append("a further round may add points")
        if not self.finished and self.seconds_left:
            parts.append(f"about {duration(self.seconds_left)} to go")
        return " · ".join(parts)


def duration(seconds: float) -> str:
    """A duration for people: `45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def progress_of(
    points: Sequence[Point], rows: Mapping[str, Mapping[str, Any]], running: Collection[str]
) -> Progress:
    """The progress of `points`; rows of other points are not counted."""
    finished = {point.point_id: rows[point.point_id] for point in points if point.point_id in rows}
    missing = [point for point in points if point.point_id not in rows]
    outcomes = Counter(row["outcome"] for row in finished.values())
    active = sum(point.point_id in running for point in missing)
    interval = time_left(missing, finished.values(), active)
    return Progress(
        total=len(points),
        done=outcomes.pop("ok", 0),
        failed=dict(outcomes),
        running=active,
        seconds_left=None if interval is None else interval[1],
    )


def time_left(
    missing: Sequence[Point], rows: Iterable[Mapping[str, Any]], active: int
) -> tuple[float, float, float] | None:
    """Estimate the seconds left, between 80 % bounds, if as many points run at once as now.

    Sums over missing points the mean duration m of their size (of all sizes, where none of that
    size has finished). With k finished points of a size, n missing ones and spread s, the variance
    of the sum is n s^2 (1 + n / k). None where nothing has finished yet.
    """
    durations: dict[int, list[float]] = {}
    for row in rows:
        durations.setdefault(row["world_size"], []).append(row["duration_s"])
    all_durations = [*itertools.chain(*durations.values())]
    if not all_durations:
        return None
    total = variance = 0.0
    for size, n in Counter(point.world_size for point in missing).items():
        of_size = durations.get(size, all_durations)
        k, mean = len(of_size), statistics.fmean(of_size)
        spread = statistics.stdev(of_size) if k > 1 else _USUAL_SPREAD * mean
        total += n * mean
        variance += n * spread**2 * (1 + n / k)
    margin, at_once = _QUANTILE * variance**0.5, max(1, active)
    return max(0.0, total - margin) / at_once, total / at_once, (total + margin) / at_once


def watch_study(study: Study, points: Sequence[Point], study_dir: Path) -> "Watcher":
    """A watcher of the study's folder, for those of its points that shall leave a row."""
    sweep = Sweep(study, points if study.mode == "measure" else (), study_dir)
    repeats = [p for p in sweep.points if p.repeat] if study.measure.repeats.only else []
    return Watcher(
        study_dir,
        sweep.all_points,
        has_rounds=bool(sweep.rounds),
        optional={point.point_id for point in (*repeats, *sweep.reruns)},
    )


class Watcher:
    """Reads a study's folder repeatedly, each finished row only once.

    After `look`, `rows` holds columns of the rows and `runners` the processes that measure, both by
    point; `missing` are the points without a row. No process counts whose job is over by `queue`.
    `has_rounds`: rounds choose points while the study runs; `optional` are points that count only
    once a round takes them.
    """

    def __init__(
        self,
        study_dir: Path,
        points: Sequence[Point],
        *,
        has_rounds: bool = False,
        optional: Collection[str] = (),
    ) -> None:
        self.paths = StudyPaths(study_dir)
        self.points = points
        self.rows: dict[str, dict[str, Any]] = {}
        self.runners: dict[str, Runner] = {}
        self.missing: Sequence[Point] = ()
        self.queue = Queue()  # Slurm's last answer
        self._has_rounds = has_rounds
        self._optional = optional
        self._names = {self.paths.row(point.point_id): point.point_id for point in points}

    def ask_slurm(self) -> Queue:
        """The state of this folder's jobs in Slurm now."""
        self.queue = ask_queue(Path.cwd())
        return self.queue

    def look(self) -> Progress:
        """The progress according to the files now; unreadable files do not count as rows."""
        files = row_files.row_files_in(self.paths.rows)
        present = {self._names[path]: path for path in files if path in self._names}
        self.rows = {name: row for name, row in self.rows.items() if name in present}
        if new := sorted(present[name] for name in present.keys() - self.rows.keys()):
            table = row_files.read_rows(new).table.select(COLUMNS)
            self.rows |= {self._names[Path(row["file"])]: row for row in table.to_pylist()}
        markers = set(self.paths.rows.glob(running_marker(self.paths.row("*")).name))
        self.runners = {
            name: runner
            for path, name in self._names.items()
            if running_marker(path) in markers
            and (runner := live_runner(running_marker(path)))
            and not self.queue.has_lost(runner)
        }
        wanted, goes_on = self._wanted()
        self.missing = [point for point in wanted if point.point_id not in self.rows]
        seen = progress_of(wanted, self.rows, self.runners)
        return dataclasses.replace(seen, undecided=int(goes_on))

    def _wanted(self) -> tuple[list[Point], bool]:
        """The points that count, chosen or not rejected, and whether a round is to come."""
        chosen: set[str] = set()
        skipped, goes_on = set(self._optional), self._has_rounds
        for path in self.paths.rounds() if self._has_rounds else ():
            with contextlib.suppress(InputError):  # removed since it was listed, or broken
                ids, left, goes_on = read_round(path)
                chosen.update(ids)
                skipped.update(left)
        return [
            p for p in self.points if p.point_id in chosen or p.point_id not in skipped
        ], goes_on
