"""What people ask of a sweep: what runs, what waits and why, what it cost, the best, the end."""

import dataclasses
import datetime
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.launch.start.slurm import Queued, queued
from scaling.record.row_files import read_rows
from scaling.record.running import runner_of
from scaling.run.allocations import use_of_allocations
from scaling.run.choices import rows_of
from scaling.run.progress import Progress, Watcher, duration
from scaling.study.paths import StudyPaths, running_marker
from scaling.study.point import Point, columns_of

_QUANTILE = 1.2816  # of the normal distribution, for an 80 % interval
_USUAL_SPREAD = 0.3  # of a point's duration, where fewer than two of a size have told theirs
_COLUMNS = ["outcome", "duration_s", "world_size", "step_time_s", "extended_step_time_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A point that runs now."""

    point_id: str
    layout: str
    world_size: int
    host: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The fastest layout of a size and setting. kind: measured, or extended from short steps."""

    model: str
    seq_length: int
    world_size: int
    layout: str
    tokens_per_s: float
    kind: str
    of: int  # layouts that ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How a sweep is. Seconds and GPU-hours (rank-hours on a CPU); None: not known, or no budget.

    ends_in_s: 80 % interval, from how long points of each size took.
    """

    progress: Progress
    running: tuple[Running, ...]
    queue: tuple[Queued, ...]
    gpu_hours_spent: float
    gpu_hours_left: float | None
    best: tuple[Best, ...]
    ends_in_s: tuple[float, float] | None
    allocations: str | None = None  # what they were used for, a sentence

    def to_json(self) -> str:
        """All of it in one line."""
        facts = dataclasses.asdict(self)
        facts["progress"] |= {"left": self.progress.left, "finished": self.progress.finished}
        return json.dumps(facts)

    def lines(self) -> list[str]:
        """The line of progress first, then what there is to say."""
        lines = [self.progress.line()]
        lines += [
            f"  runs on {one.host} since {duration(one.seconds)}: {one.world_size} x {one.layout}"
            for one in self.running
        ]
        lines += [f"  waits: {one.line}" for one in self.queue if one.position is not None]
        nodes = sum(one.nodes for one in self.queue if one.position is None)
        if nodes:
            lines.append(f"  {nodes} nodes in use")
        if self.gpu_hours_spent and not self.progress.finished:
            left = self.gpu_hours_left
            budget = "" if left is None else f", {left:,.1f} left of the budget"
            lines.append(f"  {self.gpu_hours_spent:,.1f} GPU-hours spent{budget}")
        if self.ends_in_s is not None and not self.progress.finished:
            early, late = (_clock(seconds) for seconds in self.ends_in_s)
            lines.append(f"  ends between {early} and {late} (four times in five)")
        if not self.progress.finished:
            lines += [
                f"  best so far of {one.of} at {one.world_size}: {one.layout}, "
                f"{one.tokens_per_s:,.0f} tokens/s{' (extended)' * (one.kind == 'extended')}"
                + (f" ({one.model}, {one.seq_length})" if self._several else "")
                for one in self.best
            ]
        if self.allocations is not None:
            lines.append(f"  {self.allocations}")
        return lines

    @property
    def _several(self) -> bool:
        return len({(one.model, one.seq_length) for one in self.best}) > 1


def status_of(
    folder: Path,
    points: Sequence[Point],
    watcher: Watcher,
    *,
    budget_gpu_hours: float | None = None,
) -> Status:
    """How the sweep in this folder is now."""
    progress = watcher.look()
    rows = rows_of(StudyPaths(folder), points, _COLUMNS)
    every = [*rows.values(), *_set_aside(folder)]
    spent = math.fsum(row["duration_s"] * row["world_size"] for row in every) / 3600
    return Status(
        progress=progress,
        running=tuple(_running(folder, points)),
        queue=tuple(queued(Path.cwd())),
        gpu_hours_spent=spent,
        gpu_hours_left=None if budget_gpu_hours is None else max(0.0, budget_gpu_hours - spent),
        best=tuple(_best(points, rows)),
        ends_in_s=_ends_in(watcher.missing(), rows.values(), progress.running),
        allocations=use_of_allocations(folder),
    )


def _set_aside(folder: Path) -> list[dict[str, Any]]:
    """Rows of attempts that were given up: they cost as much."""
    kept = sorted(StudyPaths(folder).retried.glob("*.parquet"))
    records: list[dict[str, Any]] = read_rows(kept).table.select(_COLUMNS).to_pylist()
    return records


def _running(folder: Path, points: Sequence[Point]) -> list[Running]:
    running = []
    for point in points:
        marker = running_marker(StudyPaths(folder).row(point.point_id))
        if (runner := runner_of(marker)) is not None:
            running.append(
                Running(
                    point_id=point.point_id,
                    layout=point.layout.label,
                    world_size=point.world_size,
                    host=runner.host,
                    seconds=max(0.0, time.time() - runner.since),
                )
            )
    return running


def _best(points: Sequence[Point], rows: Mapping[str, Mapping[str, Any]]) -> list[Best]:
    ran: dict[tuple[Any, ...], list[Best]] = {}
    for point in points:
        row = rows.get(point.point_id)
        if row is None or row["outcome"] != "ok":
            continue
        # of a point of both kinds what the others have too
        extended = row["extended_step_time_s"]
        seconds = row["step_time_s"] if extended is None else extended
        layout = point.layout
        rivals = (point.model, layout.seq_length, point.world_size, layout.setting_choices)
        ran.setdefault(rivals, []).append(
            Best(
                model=point.model,
                seq_length=layout.seq_length,
                world_size=point.world_size,
                layout=layout.label,
                tokens_per_s=columns_of(point)["tokens_per_step"] / seconds,
                kind="measured" if extended is None else "extended",
                of=0,
            )
        )
    return [
        dataclasses.replace(
            max(tried, key=lambda one: one.tokens_per_s), of=len({one.layout for one in tried})
        )
        for _, tried in sorted(ran.items())
    ]


def _ends_in(missing: Sequence[Point], rows: Any, active: int) -> tuple[float, float] | None:
    """When the rest is done if as many points run at once as now: an 80 % interval.

    The sum over the missing points of the mean duration m of their size, of k points so far; its
    variance is n s^2 (1 + n / k) a size for n missing ones, s their spread.
    """
    durations: dict[int, list[float]] = {}
    for row in rows:
        durations.setdefault(row["world_size"], []).append(row["duration_s"])
    of_all_sizes = [seconds for listed in durations.values() for seconds in listed]
    if not of_all_sizes or not missing:
        return None
    total = variance = 0.0
    for size in {point.world_size for point in missing}:
        n = sum(point.world_size == size for point in missing)
        listed = durations.get(size, of_all_sizes)
        k, mean = len(listed), math.fsum(listed) / len(listed)
        square = math.fsum((seconds - mean) ** 2 for seconds in listed) / max(1, k - 1)
        spread = math.sqrt(square) if k > 1 else _USUAL_SPREAD * mean
        total += n * mean
        variance += n * spread**2 * (1 + n / k)
    at_once = max(1, active)
    off = _QUANTILE * math.sqrt(variance)
    return max(0.0, total - off) / at_once, (total + off) / at_once


def _clock(seconds: float) -> str:
    moment = datetime.datetime.now().astimezone() + datetime.timedelta(seconds=seconds)
    return moment.strftime("%a %H:%M")
