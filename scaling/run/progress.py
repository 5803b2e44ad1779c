"""How far a study is: what is measured, failed, running and left, and how long that will take."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.record import row_files
from scaling.record.row import Outcome
from scaling.record.running import runner_of
from scaling.run.choices import choices_of
from scaling.run.elsewhere import once_more
from scaling.study.paths import StudyPaths, running_marker
from scaling.study.point import Point

if TYPE_CHECKING:
    from scaling.study.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What one finished point says about itself."""

    outcome: Outcome
    duration_s: float


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


def judge(points: Iterable[Point], settled: Mapping[str, Settled], running: set[str]) -> Progress:
    """The progress of `points`; rows of points the study no longer has are not counted.

    Time left: the mean duration of finished points of the same world size (of all, where none of
    that size has finished), summed over what is missing and shared by the points that run at once.
    """
    wanted = list(points)
    durations: dict[int, list[float]] = {}
    for point in wanted:
        if point.point_id in settled:
            seconds = settled[point.point_id].duration_s
            durations.setdefault(point.layout.world_size, []).append(seconds)
    outcomes = Counter(settled[p.point_id].outcome for p in wanted if p.point_id in settled)
    missing = [p for p in wanted if p.point_id not in settled]
    active = {p.point_id for p in missing} & running
    every = [seconds for listed in durations.values() for seconds in listed]
    seconds_left = None
    if every:
        per_size = {size: sum(listed) / len(listed) for size, listed in durations.items()}
        mean = sum(every) / len(every)
        total = sum(per_size.get(point.layout.world_size, mean) for point in missing)
        seconds_left = total / max(1, len(active))
    return Progress(
        total=len(wanted),
        done=outcomes.pop("ok", 0),
        failed={str(outcome): count for outcome, count in outcomes.items()},
        running=len(active),
        seconds_left=seconds_left,
    )


def watcher_of(study: "Study", points: Sequence[Point], study_dir: Path) -> "Watcher":
    """The watcher of a study's folder, of the points that it shall measure."""
    paths = StudyPaths(study_dir)
    added = once_more(study, points, paths) if points else []
    repeats = [p for p in points if p.repeat] if study.measure.repeats.only else []
    return Watcher(
        study_dir,
        [*points, *added],
        choices=choices_of(study, points, paths) if points else (),
        optional={point.point_id for point in (*repeats, *added)},
    )


class Watcher:
    """Reads a study's folder again and again, each finished row only once.

    Args:
        study_dir: the study's folder.
        points: that shall leave a row.
        choices: files of the choices that are made while the study runs.
        optional: those of them that are wanted only once they are chosen.
    """

    def __init__(
        self,
        study_dir: Path,
        points: Iterable[Point],
        *,
        choices: Collection[Path] = (),
        optional: Collection[str] = (),
    ) -> None:
        self._paths = StudyPaths(study_dir)
        self.points = list(points)
        self._choices = choices
        self._optional = optional
        self._rows = {self._paths.row(point.point_id): point.point_id for point in self.points}
        self._markers = {running_marker(row): name for row, name in self._rows.items()}
        self._settled: dict[str, Settled] = {}

    def look(self) -> Progress:
        """The progress as the files tell it now; a file that holds no row counts as none."""
        files = row_files.files_in(self._paths.rows)
        present = {self._rows[path]: path for path in files if path in self._rows}
        for gone in self._settled.keys() - present.keys():
            del self._settled[gone]
        new = sorted(present[point_id] for point_id in present.keys() - self._settled.keys())
        if new:
            table = row_files.read_rows(new).table.select(["file", "outcome", "duration_s"])
            for row in table.to_pylist():
                self._settled[self._rows[Path(row["file"])]] = Settled(
                    outcome=row["outcome"], duration_s=row["duration_s"]
                )
        wanted = self._wanted()
        markers = self._paths.rows.glob(running_marker(self._paths.row("*")).name)
        running = {
            self._markers[path] for path in markers if path in self._markers and runner_of(path)
        }
        undecided = sum(not path.exists() for path in self._choices)
        return dataclasses.replace(judge(wanted, self._settled, running), undecided=undecided)

    def missing(self) -> list[Point]:
        """Points that had left no row when last looked at."""
        return [point for point in self._wanted() if point.point_id not in self._settled]

    def _wanted(self) -> list[Point]:
        """All points but those that somebody decided not to measure, or has yet to decide about."""
        files = self._paths.chosen.glob("*.parquet")
        tables = [_read(path, ["point_id", "chosen"]) for path in files]
        every = [one for table in tables for one in table]
        chosen = {one["point_id"] for one in every if one["chosen"]}
        skipped = {one["point_id"] for one in every} - chosen  # what any choice takes is wanted
        return [
            point
            for point in self.points
            if point.point_id in chosen
            or not (point.point_id in skipped or point.point_id in self._optional)
        ]


def _read(path: Path, columns: list[str]) -> list[dict[str, Any]]:
    """A file's rows; none where it was removed since it was listed, or is broken."""
    try:
        rows: list[dict[str, Any]] = pq.read_table(path, columns=columns).to_pylist()
    except (OSError, pa.ArrowException):
        return []
    return rows
