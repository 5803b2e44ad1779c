"""The life of one rank: join, build, step, report."""

import dataclasses
import functools
import logging
import os
import sys
import time
import traceback
from typing import NoReturn

import torch
import torch.distributed as dist

from scaling.layout.engines import engine_module
from scaling.record.rank_files import RankFiles, RankResult
from scaling.study.point import Point
from scaling.train.data import MicroBatch
from scaling.train.device import stack_of, take_device
from scaling.train.engines.trainer import build, planned
from scaling.train.kernels.kernels import require_kernels
from scaling.train.measure import trace
from scaling.train.measure.memory import (
    foreign_memory,
    foreign_memory_named,
    library_memory,
    peak_memory,
)
from scaling.train.measure.power import PowerLog, meter_of
from scaling.train.measure.timing import CudaStopwatch, HostStopwatch, Stopwatch
from scaling.train.measure.window import split_of, unfit
from scaling.train.model.experts import routed_tokens
from scaling.train.outcomes import failure_of
from scaling.train.parallel.groups import Groups
from scaling.train.parallel.meeting import RankId, meet
from scaling.train.stepping import Stepping, Timed

_log = logging.getLogger(__name__)

# The parent ends a point that is late, so a collective never should: its exception would hide why.
_COLLECTIVE_MARGIN_S = 120.0

# Under the profiler a step takes longer, and the events must be read: in slowest steps and seconds.
_TRACED_MARGIN = 5 * (trace.DISCARDED + trace.STEPS)
_STARTUP_MARGIN_S = 10.0


def run(point: Point, files: RankFiles, rank_id: RankId) -> NoReturn:
    """Measure, leave a result or a failure, and end the process.

    It ends without the interpreter's clean-up: gloo's threads can abort there, and a rank that has
    failed must not wait for the others.
    """
    code = 0
    try:
        files.write(rank_id.rank, measured(point, files, rank_id))
        # with gloo a rank that goes alone can abort the ones that still talk to it; groups, of
        # which there may be hundreds, are not torn down: they die with the process
        dist.barrier()
    except BaseException as error:
        traceback.print_exc()
        files.write(rank_id.rank, failure_of(error))
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def measured(point: Point, files: RankFiles, rank_id: RankId) -> RankResult:
    """Warm up, time the steps, and read what they left."""
    rank = rank_id.rank
    foreign = None if point.gpu == "cpu" else foreign_memory(rank_id.local_rank)
    with foreign_memory_named(foreign):
        device = take_device(point, rank_id.local_rank)
        files.write(rank, stack_of(device, point.layout))
        require_kernels(point.shape, point.layout, device)
        files.beat(rank, "meeting the other ranks")
        timeout_s = point.time_limit_s + _COLLECTIVE_MARGIN_S
        port = meet(rank_id, files, device, timeout_s=timeout_s)
        engine_module(point.layout.engine, "engine").join(port)
        files.beat(rank, "making groups")
        groups = Groups(rank, point.layout, timeout_s=timeout_s)
        plan = planned(point, groups, device)
        trainer = build(plan, groups, functools.partial(files.beat, rank))
        stopwatch: Stopwatch = CudaStopwatch() if device.type == "cuda" else HostStopwatch()
        return _trained(Stepping(point, trainer, plan, groups, files, rank, stopwatch), foreign)


def _trained(stepping: Stepping, foreign: int | None) -> RankResult:
    point, device = stepping.point, stepping.plan.device
    meter = meter_of(device)
    power = None if meter is None else PowerLog(meter, clock=time.monotonic)
    first_step_at = time.time()
    full, short, full_steps = Timed(), None, 0
    if point.accumulation != "short":
        full = stepping.full(power)
        full_steps = stepping.done
    if point.accumulation != "full":
        # after full steps one is enough to be as a step after its like
        short = stepping.short(warmup_steps=1 if full_steps else point.warmup_steps)
        if not full_steps and not stepping.is_linear(short):
            full = stepping.full(power)
    # of full steps from the first: what trained on less of the batch is another training
    losses, others = stepping.losses[:full_steps], stepping.losses[full_steps:]
    grad_norms = [norm for norm in stepping.grad_norms[:full_steps] if norm is not None]
    peak = peak_memory(device)
    libraries = library_memory(device, foreign)
    # memory is read first: the profiler's window trains on, and its events take memory too
    spent = None
    if full.times_s:
        # of the warm-up the first may have compiled
        spent = _spent(stepping, max(full.times_s), first_step_at)
    return RankResult(
        clock=stepping.stopwatch.name,
        step_times_s=full.times_s,
        losses=losses or None,
        grad_norms=grad_norms if grad_norms and len(grad_norms) == full_steps else None,
        warmup_steps=full.warmup_steps,
        stopped=full.stopped if short is None or full.times_s else short.stopped,
        metered_steps=full.metered_steps,
        short_step_times_s=None if short is None else short.times_s,
        short_accumulations=None if short is None else short.accumulations,
        short_losses=None if short is None else others,
        peak_memory_bytes=peak.allocated,
        peak_reserved_bytes=peak.reserved,
        memory_meter=peak.meter,
        expert_imbalance=_expert_imbalance(stepping),
        foreign_memory_bytes=foreign,
        library_memory_bytes=libraries,
        first_step_at=first_step_at,
        **dataclasses.asdict(full.drawn),
        spent=spent,
    )


def _expert_imbalance(stepping: Stepping) -> float | None:
    """Tokens of the fullest expert over the mean, mean of this rank's layers; None without any."""
    routed = routed_tokens(stepping.trainer.engine.module)
    if routed is None:
        return None
    routed = routed.clone()
    dist.all_reduce(routed, group=stepping.groups.data_group)
    return (routed.amax(1) / routed.float().mean(1)).mean().item()


def _spent(
    stepping: Stepping, slowest_s: float, first_step_at: float
) -> dict[str, float | None] | None:
    """What the seconds of a step go to, from a few more steps under the profiler.

    None where the limit is near: a point that was measured must not end as a timeout. The ranks
    decide together, since a step needs all of them. None too where the profiler did not see all.
    """
    point, device = stepping.point, stepping.plan.device
    needed = time.time() - first_step_at + _TRACED_MARGIN * slowest_s
    if max(stepping.slowest([needed])) > point.time_limit_s - _STARTUP_MARGIN_S:
        return None
    batches: list[list[MicroBatch]] = []
    on_gpu = device.type == "cuda"

    def align() -> None:
        batches.append(stepping.another())
        dist.barrier()

    def step(index: int) -> None:
        stepping.trainer.step(batches[index])
        if on_gpu:
            torch.cuda.synchronize()

    keep = stepping.files.trace(stepping.rank) if point.keep_trace else None
    events = trace.traced(step, align=align, layout=point.layout, device=device, keep=keep)
    reason = unfit(events, on_gpu=on_gpu)
    if reason is not None:
        _log.warning("a step is not split: %s", reason)
        return None
    return split_of(events)
