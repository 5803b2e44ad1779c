"""The life of one rank: meet the others, build the engine, run the steps, leave the result."""

import dataclasses
import functools
import os
import threading
import time
from typing import Any, NoReturn

from scaling.cluster.node import RankId
from scaling.layout.engines import engine_module
from scaling.record.rank_files import RankFiles, RankResult
from scaling.study.point import Point
from scaling.train.device import software_stack, take_device
from scaling.train.engines.trainer import build, make_blueprint, replicas_agree
from scaling.train.failures import leave
from scaling.train.kernels.availability import require_kernels
from scaling.train.measure.peak_memory import (
    foreign_memory,
    library_memory,
    note_foreign_memory,
    peak_memory,
)
from scaling.train.measure.power import PowerLog, meter_of
from scaling.train.model.expert_layer import expert_imbalance
from scaling.train.parallel.groups import Groups
from scaling.train.parallel.rendezvous import rendezvous
from scaling.train.stepping import StepRunner, Stopwatch

# The parent ends a late point itself. A collective's own timeout would hide the reason.
_COLLECTIVE_MARGIN_S = 120.0
# Seconds between a rank's reports: of the first rank of each node, by which the parent sees
# progress, and of the others, which it reads when none is made.
FIRST_EVERY_S, OTHERS_EVERY_S = 1.0, 10.0


def run(point: Point, files: RankFiles, rank_id: RankId) -> NoReturn:
    """Measure the point, leave a result or a failure, and end the process."""
    leave(rank_id.rank, files, lambda: measure_point(point, files, rank_id))


def measure_point(point: Point, files: RankFiles, rank_id: RankId) -> RankResult:
    """Join the other ranks, build the engine, run the steps, and return what was measured."""
    rank = rank_id.rank
    foreign = None if point.gpu == "cpu" else foreign_memory(rank_id.local_rank)
    with note_foreign_memory(foreign):
        device = take_device(point.gpu, rank_id.local_rank)
        files.write(rank, software_stack(device, point.layout))
        require_kernels(point.shape, point.layout, device)
        files.beat(rank, "meeting the other ranks")
        timeout_s = point.time_limit_s + _COLLECTIVE_MARGIN_S
        store = rendezvous(rank_id, files, device, timeout_s=timeout_s)
        engine_module(point.layout.engine, "engine").join(store.port)
        files.beat(rank, "making groups")
        groups = Groups(rank, point.layout, timeout_s=timeout_s)
        blueprint = make_blueprint(point, groups, device)
        trainer = build(blueprint, groups, functools.partial(files.beat, rank))
        stopwatch = Stopwatch(device)
        # not LOCAL_RANK: that is 0 for every rank that sees one GPU
        first = rank % int(os.environ["LOCAL_WORLD_SIZE"]) == 0
        beats = Beats(files, rank, every_s=FIRST_EVERY_S if first else OTHERS_EVERY_S)
        runner = StepRunner(point, trainer, groups, files, beats, rank, device, stopwatch)
        return _run_and_read(runner, foreign)


def _run_and_read(runner: StepRunner, foreign: int | None) -> RankResult:
    """Run full steps, short steps or both, as the point asks, then read memory and a trace."""
    point, device = runner.point, runner.device
    meter = meter_of(device)
    power = None if meter is None else PowerLog(meter, clock=time.monotonic)
    first_step_at = time.time()
    full: dict[str, Any] = {"step_times_s": []}
    short: dict[str, Any] = {}
    if point.accumulation != "short":
        full = runner.run_full_steps(power)
    full_steps = runner.steps_done
    if point.accumulation != "full":
        # after full steps one warm-up step is enough
        warmup_steps = 1 if full_steps else point.warmup_steps
        short, linear = runner.run_short_steps(warmup_steps=warmup_steps)
        if not full_steps and not linear:
            full = runner.run_full_steps(power)
        short["short_losses"] = runner.losses[full_steps:]
    # Only full steps from the first on train on the whole batch; the others are another training.
    losses = runner.losses[:full_steps]
    grad_norms = [norm for norm in runner.grad_norms[:full_steps] if norm is not None]
    # memory is read before the profiler's steps, whose events take memory too
    peak = peak_memory(device)
    libraries = library_memory(device, foreign)
    trainer, groups = runner.trainer, runner.groups
    result = RankResult(
        clock=runner.stopwatch.name,
        losses=losses or None,
        grad_norms=grad_norms if grad_norms and len(grad_norms) == full_steps else None,
        replicas_agree=replicas_agree(trainer, groups, device),
        expert_imbalance=expert_imbalance(trainer.engine.module, groups.data_group),
        foreign_memory_bytes=foreign,
        library_memory_bytes=libraries,
        first_step_at=first_step_at,
        processors=runner.processors,
        **(peak | runner.trouble | short | full),
    )
    if not full["step_times_s"]:
        return result
    runner.files.keep(runner.rank, result)
    spent = runner.run_traced_steps(max(full["step_times_s"]), first_step_at)
    return dataclasses.replace(result, spent=spent)


class Beats:
    """Writes the last step that a rank has begun, from a thread of its own.

    A step of 2,048 ranks that each write a file would be thousands of calls to the file system. The
    thread also writes the step at which a rank then hangs.
    """

    def __init__(self, files: RankFiles, rank: int, *, every_s: float) -> None:
        self._files, self._rank, self._every_s = files, rank, every_s
        self._doing = self._written = ""
        self._begun = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def __call__(self, doing: str) -> None:
        """Say what the rank is doing from now on."""
        self._doing = doing
        self._begun.set()

    def _run(self) -> None:
        pause = threading.Event()
        while self._begun.wait():
            self._begun.clear()
            if self._doing != self._written:
                self._written = self._doing
                self._files.beat(self._rank, self._written)
            pause.wait(self._every_s)
