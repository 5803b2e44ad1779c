"""The status of a sweep: what runs or waits, the cost so far, the advised layouts, the end."""

import dataclasses
import datetime
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.analyse.decision import advise
from scaling.analyse.posterior import Cells, Runs, posterior
from scaling.errors import first_few, shortened
from scaling.launch.start.slurm import Queued
from scaling.layout.names import name_of
from scaling.record.files import point_columns
from scaling.record.row_files import attempts_set_aside
from scaling.run.progress import Progress, Watcher, duration
from scaling.run.sweep import step_time
from scaling.study.point import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A point that runs now."""

    point_id: str
    layout: str
    layout_name: str  # for people
    world_size: int
    host: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The advised layout of a size so far. kind: measured, or extended from short steps."""

    model: str
    seq_length: int
    global_batch_size: int
    world_size: int
    layout: str
    layout_name: str  # for people
    tokens_per_s: float
    kind: str
    of: int  # layouts that ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a sweep; None: unknown, or no budget."""

    progress: Progress
    running: tuple[Running, ...]
    queue: tuple[Queued, ...]
    gpu_hours_spent: float  # rank-hours on a CPU, as `hours_of` says
    gpu_hours_left: float | None
    best: tuple[Best, ...]
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
        if not self.progress.finished:
            lines += self._lines_while_running()
        return lines

    def _lines_while_running(self) -> list[str]:
        lines = []
        if self.gpu_hours_spent:
            left = self.gpu_hours_left
            budget = "" if left is None else f", {left:,.1f} left of the budget"
            lines.append(f"  {self.gpu_hours_spent:,.1f} {self.hours_of} spent{budget}")
        if self.progress.seconds_left:
            later = ", later if rounds add points" if self.progress.undecided else ""
            lines.append(f"  ends at about {_clock(self.progress.seconds_left)}{later}")
        settings = {(best.model, best.seq_length) for best in self.best}
        sizes = {(best.model, best.seq_length, best.world_size) for best in self.best}
        for best in self.best:
            extended = ", extended" * (best.kind == "extended")
            setting = f" ({best.model}, {best.seq_length} tokens)" if len(settings) > 1 else ""
            if len(sizes) < len(self.best):
                setting += f" with {best.global_batch_size} sequences a step"
            lines.append(
                f"  advised so far at {best.world_size}{setting}, {best.of} ran: "
                f"{best.tokens_per_s:,.0f} tokens/s{extended}"
            )
            lines.append(f"    {shortened(best.layout_name, 72)}")
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
        best=tuple(_best(watcher.points, watcher.rows)),
        hours_of="rank-hours" if all(p.gpu == "cpu" for p in watcher.points) else "GPU-hours",
    )


def _best(points: Sequence[Point], rows: Mapping[str, Mapping[str, Any]]) -> list[Best]:
    """The layout to use at each size of each comparison group, as the report decides it."""
    groups: dict[Any, dict[tuple[int, str, str], list[Point]]] = {}
    for point in points:
        row, layout = rows.get(point.point_id), point.layout
        if row is not None and row["outcome"] == "ok":
            batch = layout.global_batch_size / (
                point.world_size if point.study_kind == "weak" else 1
            )
            group = (point.model, layout.seq_length, batch, layout.setting_values)
            cell = (point.world_size, layout.label, row["step_time_kind"] or "measured")
            groups.setdefault(group, {}).setdefault(cell, []).append(point)
    return [best for _, cells in sorted(groups.items()) for best in _advised(cells, rows)]


def _advised(
    cells: Mapping[tuple[int, str, str], Sequence[Point]], rows: Mapping[str, Mapping[str, Any]]
) -> list[Best]:
    """The advised layout of each size, with its mean rate; draws and candidates as in a report."""
    keys, runs = sorted(cells), []
    for cell, key in enumerate(keys):
        for point in cells[key]:
            seconds, own = step_time(rows[point.point_id], extended=key[2] == "extended")
            rate = math.log(point_columns(point)["tokens_per_step"] / seconds)
            runs.append((rate, own, cell, bool(rows[point.point_id]["num_alloc_retries"])))
    rates, own_sigmas, cell_of_run, retried = np.array(runs, dtype=float).T
    cell_of_run = cell_of_run.astype(int)
    found = Runs(rates, own_sigmas, cell_of_run, np.full(len(runs), -1))
    drawn = posterior(found, Cells.without_predictions(len(keys))).rates
    sizes, size = np.unique([key[0] for key in keys], return_inverse=True)
    layout = np.unique([" ".join(key[1:]) for key in keys], return_inverse=True)[1]
    may = np.bincount(cell_of_run, retried) == 0
    advised = advise(drawn, layout, size, may)
    return [
        Best(
            model=point.model,
            seq_length=point.layout.seq_length,
            global_batch_size=point.layout.global_batch_size,
            world_size=point.world_size,
            layout=point.layout.label,
            layout_name=name_of(point.layout, point.gpus_per_node),
            tokens_per_s=math.exp(drawn[cell].mean()),
            kind=keys[cell][2],
            of=len({name for world_size, name, _ in keys if world_size == sizes[number]}),
        )
        for number, cell in advised.items()
        for point in cells[keys[cell]][:1]
    ]


def _clock(seconds: float) -> str:
    moment = datetime.datetime.now().astimezone() + datetime.timedelta(seconds=seconds)
    return moment.strftime("%a %d %b %H:%M")
