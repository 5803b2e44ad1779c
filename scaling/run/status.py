"""The status of a study: points, what runs or waits, the cost, the advised layouts, the end."""

import contextlib
import dataclasses
import datetime
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.errors import InputError, first_few, shortened
from scaling.launch.start.slurm import Queue, Queued, ask_queue
from scaling.layout.names import name_of
from scaling.record.files import read_round
from scaling.record.row_files import attempts_set_aside, read_rows, row_files_in
from scaling.record.running import Runner, live_runner
from scaling.run.sweep import COLUMNS, Sweep
from scaling.study.inputs import local_or_shipped
from scaling.study.paths import StudyPaths, running_marker
from scaling.study.point import Point
from scaling.study.study import Study


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
    points: Sequence[Point],
    rows: Mapping[str, Mapping[str, Any]],
    running: Collection[str],
    *,
    undecided: int = 0,
) -> Progress:
    """The progress of `points`; rows of other points are not counted.

    The time left is for as many points at once as now. A missing point takes the mean of its size;
    of all sizes, where none of that size has finished.
    """
    finished = [row for point in points if (row := rows.get(point.point_id)) is not None]
    missing = [point for point in points if point.point_id not in rows]
    outcomes = Counter(row["outcome"] for row in finished)
    active = sum(point.point_id in running for point in missing)
    durations: dict[int, list[float]] = {}
    for row in finished:
        durations.setdefault(row["world_size"], []).append(row["duration_s"])
    of_all = [row["duration_s"] for row in finished]
    sizes = Counter(point.world_size for point in missing).items() if of_all else ()
    total_s = sum(n * statistics.fmean(durations.get(size, of_all)) for size, n in sizes)
    return Progress(
        total=len(points),
        done=outcomes.pop("ok", 0),
        failed=dict(outcomes),
        running=active,
        seconds_left=total_s / max(1, active) if of_all else None,
        undecided=undecided,
    )


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
    point. No process counts whose job is over by `queue`. `has_rounds`: rounds choose points while
    the study runs; `optional` are points that count only once a round takes them.
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
        self.queue = Queue()  # Slurm's last answer
        self._best: list[dict[str, Any]] = []
        self._best_of: set[str] = set()  # the points whose rows they were decided on
        self._has_rounds = has_rounds
        self._optional = optional
        self._names = {self.paths.row(point.point_id): point.point_id for point in points}

    def ask_slurm(self) -> Queue:
        """The state of this folder's jobs in Slurm now."""
        self.queue = ask_queue(Path.cwd())
        return self.queue

    def look(self) -> Progress:
        """The progress according to the files now; unreadable files do not count as rows."""
        files = row_files_in(self.paths.rows)
        present = {self._names[path]: path for path in files if path in self._names}
        self.rows = {name: row for name, row in self.rows.items() if name in present}
        if new := sorted(present[name] for name in present.keys() - self.rows.keys()):
            table = read_rows(new).table.select(COLUMNS)
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
        return progress_of(wanted, self.rows, self.runners, undecided=int(goes_on))

    def best(self) -> list[dict[str, Any]]:
        """The advised layout at each size of each comparison group, as the report has it now."""
        if self.rows.keys() != self._best_of and self.paths.points_table.exists():
            from scaling.analyse.warehouse import ask  # loads scipy

            self._best = ask(self.paths.folder, local_or_shipped("reports") / "sql", _BEST)
            self._best_of = set(self.rows)
        return self._best

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A point that runs now."""

    point_id: str
    layout: str
    layout_name: str  # for people
    world_size: int
    host: str
    seconds: float


# The advised layout of each size so far. kind: measured, or extended from short steps.
# of: layouts that ran.
_BEST = """
select
    model, seq_length, global_batch_size, world_size, layout, layout_name, tokens_per_s,
    source as kind, tried - failed as "of"
from sizes join comparison_groups using (group_id)
where source in ('measured', 'extended')
order by group_id, world_size
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a sweep; None: unknown, or no budget."""

    progress: Progress
    running: tuple[Running, ...]
    queue: tuple[Queued, ...]
    gpu_hours_spent: float  # rank-hours on a CPU, as `hours_of` says
    gpu_hours_left: float | None
    best: tuple[dict[str, Any], ...]  # columns of _BEST
    hours_of: str = "GPU-hours"

    def to_json(self) -> str:
        """Everything on one line."""
        facts = dataclasses.asdict(self)
        facts["progress"] |= {"left": self.progress.left, "finished": self.progress.finished}
        return json.dumps(facts)

    def lines(self) -> list[str]:
        """The line of progress, then details."""
        lines = [self.progress.line()]
        lines += first_few(
            [
                f"  runs for {duration(run.seconds)} on {run.host}: {run.world_size} x "
                f"{shortened(run.layout_name, 40)}"
                for run in sorted(self.running, key=lambda run: -run.seconds)
            ]
        )
        lines += first_few([f"  waits: {job.line}" for job in self.queue if job.position])
        nodes = sum(job.nodes for job in self.queue if job.position is None)
        if nodes:
            lines.append(f"  {nodes} node{'s' * (nodes > 1)} in use")
        if self.progress.finished:
            return lines
        if self.gpu_hours_spent:
            left = self.gpu_hours_left
            budget = "" if left is None else f", {left:,.1f} left of the budget"
            lines.append(f"  {self.gpu_hours_spent:,.1f} {self.hours_of} spent{budget}")
        if self.progress.seconds_left:
            later = ", later if rounds add points" if self.progress.undecided else ""
            lines.append(f"  ends at about {_clock(self.progress.seconds_left)}{later}")
        settings = {(best["model"], best["seq_length"]) for best in self.best}
        sizes = {(best["model"], best["seq_length"], best["world_size"]) for best in self.best}
        for best in self.best:
            extended = ", extended" * (best["kind"] == "extended")
            setting = " ({model}, {seq_length} tokens)" * (len(settings) > 1)
            setting += " with {global_batch_size} sequences a step" * (len(sizes) < len(self.best))
            said = "  advised so far at {world_size}" + setting + ", {of} ran: {tokens_per_s:,.0f} "
            lines.append(said.format(**best) + f"tokens/s{extended}")
            lines.append(f"    {shortened(best['layout_name'], 72)}")
        return lines


def status_of(watcher: Watcher, *, budget_gpu_hours: float | None = None) -> Status:
    """The current status of the sweep in the watcher's folder."""
    queue = watcher.ask_slurm()
    progress, now = watcher.look(), time.time()
    attempts = [*watcher.rows.values(), *attempts_set_aside(watcher.paths)]
    running = tuple(
        Running(
            point_id=point.point_id,
            layout=point.layout.label,
            layout_name=name_of(point.layout, point.gpus_per_node),
            world_size=point.world_size,
            host=runner.host,
            seconds=max(0.0, now - runner.since),
        )
        for point in watcher.points
        if (runner := watcher.runners.get(point.point_id)) is not None
    )
    rank_s = [row["duration_s"] * row["world_size"] for row in attempts]
    rank_s += [run.seconds * run.world_size for run in running]
    spent = math.fsum(rank_s) / 3600
    return Status(
        progress=progress,
        running=running,
        queue=queue.jobs,
        gpu_hours_spent=spent,
        gpu_hours_left=None if budget_gpu_hours is None else max(0.0, budget_gpu_hours - spent),
        best=tuple(watcher.best()),
        hours_of="rank-hours" if all(p.gpu == "cpu" for p in watcher.points) else "GPU-hours",
    )


def _clock(seconds: float) -> str:
    moment = datetime.datetime.now().astimezone() + datetime.timedelta(seconds=seconds)
    return moment.strftime("%a %d %b %H:%M")
