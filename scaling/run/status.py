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

import pyarrow.parquet as pq

from scaling.cluster.hardware import GIB
from scaling.launch.start.slurm import Queued, queued
from scaling.record.row_files import read_rows
from scaling.run.progress import Progress, Watcher, duration, time_left
from scaling.study.paths import StudyPaths
from scaling.study.point import Point, point_columns

_KWH_J = 3.6e6
_AT_MOST = 8  # lines of one kind


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
    hours_of: what an hour is one of, in the plural.
    """

    progress: Progress
    running: tuple[Running, ...]
    queue: tuple[Queued, ...]
    gpu_hours_spent: float
    gpu_hours_left: float | None
    best: tuple[Best, ...]
    ends_in_s: tuple[float, float] | None
    allocations: str | None = None  # what they were used for, a sentence
    hours_of: str = "GPU-hours"

    def to_json(self) -> str:
        """All of it in one line."""
        facts = dataclasses.asdict(self)
        facts["progress"] |= {"left": self.progress.left, "finished": self.progress.finished}
        return json.dumps(facts)

    def lines(self) -> list[str]:
        """The line of progress first, then what there is to say."""
        lines = [self.progress.line()]
        lines += _first_few(
            [
                f"  runs for {duration(one.seconds)} on {one.host}: {one.world_size} x {one.layout}"
                for one in sorted(self.running, key=lambda one: -one.seconds)
            ]
        )
        waiting = [(one.position, one.line) for one in self.queue if one.position is not None]
        lines += _first_few([f"  waits: {line}" for _, line in sorted(waiting)])
        nodes = sum(one.nodes for one in self.queue if one.position is None)
        if nodes:
            lines.append(f"  {nodes} node{'s' * (nodes > 1)} in use")
        if not self.progress.finished:
            lines += self._until_it_ends()
        if self.allocations is not None:
            lines.append(f"  {self.allocations}")
        return lines

    def _until_it_ends(self) -> list[str]:
        lines = []
        if self.gpu_hours_spent:
            left = self.gpu_hours_left
            budget = "" if left is None else f", {left:,.1f} left of the budget"
            lines.append(f"  {self.gpu_hours_spent:,.1f} {self.hours_of} spent{budget}")
        if self.ends_in_s is not None:
            early, late = (_clock(seconds) for seconds in self.ends_in_s)
            lines.append(f"  ends between {early} and {late} (four times in five)")
            if self.progress.undecided:
                lines[-1] += ", later if choices add points"
        settings = {(one.model, one.seq_length) for one in self.best}
        for one in self.best:
            extended = ", extended" * (one.kind == "extended")
            which = f" ({one.model}, {one.seq_length} tokens)" if len(settings) > 1 else ""
            lines.append(
                f"  fastest so far at {one.world_size}{which}, of {one.of} tried: "
                f"{one.layout}, {one.tokens_per_s:,.0f} tokens/s{extended}"
            )
        return lines


def _first_few(lines: list[str]) -> list[str]:
    """Some of many lines of one kind, and how many more there are."""
    more = len(lines) - _AT_MOST
    return lines if more < 1 else [*lines[:_AT_MOST], f"    and {more} more"]


def status_of(watcher: Watcher, *, budget_gpu_hours: float | None = None) -> Status:
    """How the sweep in the watcher's folder is now."""
    progress, now = watcher.look(), time.time()
    # rows of attempts that were given up cost as much
    given_up = read_rows(sorted(watcher.paths.retried.glob("*.parquet"))).table
    every = [*watcher.rows.values(), *given_up.select(["duration_s", "world_size"]).to_pylist()]
    running = tuple(
        Running(
            point_id=point.point_id,
            layout=point.layout.label,
            world_size=point.world_size,
            host=runner.host,
            seconds=max(0.0, now - runner.since),
        )
        for point in watcher.points
        if (runner := watcher.runners.get(point.point_id)) is not None
    )
    missing = watcher.missing()
    left = time_left(missing, watcher.rows.values(), progress.running)
    rank_s = [row["duration_s"] * row["world_size"] for row in every]
    rank_s += [one.seconds * one.world_size for one in running]
    spent = math.fsum(rank_s) / 3600
    return Status(
        progress=progress,
        running=running,
        queue=tuple(queued(Path.cwd())),
        gpu_hours_spent=spent,
        gpu_hours_left=None if budget_gpu_hours is None else max(0.0, budget_gpu_hours - spent),
        best=tuple(_best(watcher.points, watcher.rows)),
        ends_in_s=(left[0], left[2]) if missing and left is not None else None,
        allocations=use_of_allocations(watcher.paths),
        hours_of="rank-hours" if all(one.gpu == "cpu" for one in watcher.points) else "GPU-hours",
    )


def _best(points: Sequence[Point], rows: Mapping[str, Mapping[str, Any]]) -> list[Best]:
    ran: dict[tuple[Any, ...], list[Best]] = {}
    for point in points:
        row = rows.get(point.point_id)
        if row is None or row["outcome"] != "ok":
            continue
        # of a point of both kinds what the others have too
        extended = row["extended_step_time_s"]
        seconds = row["step_time_s"] if extended is None else extended
        one = Best(
            model=point.model,
            seq_length=point.layout.seq_length,
            world_size=point.world_size,
            layout=point.layout.label,
            tokens_per_s=point_columns(point)["tokens_per_step"] / seconds,
            kind="measured" if extended is None else "extended",
            of=0,
        )
        setting = point.layout.setting_values
        rivals = (one.model, one.seq_length, one.world_size, setting)
        ran.setdefault(rivals, []).append(one)
    return [
        dataclasses.replace(
            max(tried, key=lambda one: one.tokens_per_s), of=len({one.layout for one in tried})
        )
        for _, tried in sorted(ran.items())
    ]


def use_of_allocations(paths: StudyPaths) -> str | None:
    """How many there were, how long, and what of it went into measured steps.

    From tables/allocations.parquet, as it was last made; None where there is none, or no allocation
    in it.
    """
    table = paths.table("allocations")
    if not table.exists():
        return None
    allocations = [one for one in pq.read_table(table).to_pylist() if one["span_s"]]
    if not allocations:
        return None
    span_s = math.fsum(one["span_s"] for one in allocations)
    in_steps_s = math.fsum(one["in_steps_s"] for one in allocations)
    least = min(allocations, key=lambda one: one["share_in_steps"])
    memory = [one["peak_memory_bytes"] for one in allocations if one["peak_memory_bytes"]]
    energy = [one["energy_j"] for one in allocations if one["energy_j"] is not None]
    parts = [
        f"{len(allocations)} allocations, {duration(span_s)} in all: "
        f"{in_steps_s / span_s:.0%} in measured steps"
        f" (least: job {least['job_id']}, {least['share_in_steps']:.0%})"
    ]
    if memory:
        parts.append(f"at most {max(memory) / GIB:,.1f} GiB a rank")
    if energy:
        parts.append(f"{math.fsum(energy) / _KWH_J:,.3g} kWh in full steps")
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    moment = datetime.datetime.now().astimezone() + datetime.timedelta(seconds=seconds)
    return moment.strftime("%a %d %b %H:%M")
