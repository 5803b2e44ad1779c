"""The acts of a rank beside its full life: what it learns, holds, calls or skips."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from scaling.layout.engines import engine_module
from scaling.study.point import Point
from scaling.study.short_steps import short_step_sizes
from scaling.train.data import Feed
from scaling.train.engines.trainer import Trainer, build, make_blueprint, replicas_agree
from scaling.train.model.decoder import Layer
from scaling.train.parallel.groups import Groups
from scaling.train.rehearsal.rehearsal import run_steps
from scaling.train.rehearsal.standins import rms_norm
from scaling.train.rehearsal.waits import Waits
from tests.points import WALKED_STEPS

CPU = torch.device("cpu")
TIMEOUT_S = 60.0
OVERFLOWING = 2.0**40  # a loss scale with which fp16 has no gradients
WARMUP_STEPS = 3  # before calls are counted: DeepSpeed learns the order of weights in the first

Act = Callable[[Point, int, int], dict[str, Any]]  # of a point, a rank and the store's port


def _built(point: Point, rank: int, port: int) -> tuple[Trainer, Groups]:
    engine_module(point.layout.engine, "engine").join(port)
    groups = Groups(rank, point.layout, timeout_s=TIMEOUT_S)
    return build(make_blueprint(point, groups, CPU), groups), groups


def learn(point: Point, rank: int, port: int) -> dict[str, Any]:
    """Losses and gradient norms of all steps, and whether replicas agree after them."""
    trainer, groups = _built(point, rank, port)
    whole = point.layout.gradient_accumulation_steps
    short = () if point.accumulation == "full" else short_step_sizes(point.layout)
    counts = (*short, whole)  # in turns
    losses, norms = [], []
    steps = point.warmup_steps + point.measured_steps
    turns = [counts[step % len(counts)] for step in range(steps)]
    feed = Feed(point, groups.place, turns, first=0, device=CPU)
    for step in range(steps):
        trainer.step(feed(step))
        losses.append(trainer.loss())
        norms.append(trainer.grad_norm())
    return {
        "losses": losses,
        "grad_norms": None if None in norms else norms,
        "replicas_agree": replicas_agree(trainer, groups, CPU),
    }


def hold(point: Point, rank: int, port: int) -> dict[str, Any]:
    """The memory of a rehearsal's walk on real tensors."""
    waits = Waits()
    engine_module(point.layout.engine, "rehearsal").act_like_cuda(waits.note)
    engine_module(point.layout.engine, "engine").join(port)
    groups = Groups(rank, point.layout, timeout_s=TIMEOUT_S)
    with (
        mock.patch.object(torch.Tensor, "record_stream", return_value=None),
        mock.patch.object(functional, "rms_norm", rms_norm),
    ):
        memory: dict[str, Any] = run_steps(point, groups, waits, steps=WALKED_STEPS)["memory"]
        return memory


def call(point: Point, rank: int, port: int) -> dict[str, Any]:
    """Python calls of a step, and the names of a layer's modules that have hooks."""
    trainer, groups = _built(point, rank, port)
    count = [point.layout.gradient_accumulation_steps] * (WARMUP_STEPS + 1)
    feed = Feed(point, groups.place, count, first=0, device=CPU)
    for step in range(WARMUP_STEPS):
        trainer.step(feed(step))
    batches, calls = feed(WARMUP_STEPS), 0

    def note(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    trainer.step(batches)
    sys.setprofile(None)
    layer = next(each for each in trainer.engine.module.modules() if isinstance(each, Layer))
    hooked = [type(each).__name__ for each in layer.modules() if each._forward_pre_hooks]
    return {"calls": calls, "hooked": hooked}


def overflow(point: Point, rank: int, port: int) -> dict[str, Any]:
    """Losses of the measured steps and of one that overflows fp16; the steps skipped by then.

    DeepSpeed trains in fp16 on a CPU that answers as CUDA does, with streams on which nothing takes
    time.
    """
    engine_module(point.layout.engine, "rehearsal").act_like_cuda(lambda _: None)
    losses, skipped, counts = [], [], [1] * (point.measured_steps + 1)
    with mock.patch.object(torch.Tensor, "record_stream"):
        trainer, groups = _built(point, rank, port)
        feed = Feed(point, groups.place, counts, first=0, device=CPU)
        for step in range(len(counts)):
            if step == point.measured_steps:
                trainer.engine.optimizer.loss_scaler.cur_scale = OVERFLOWING
            trainer.step(feed(step))
            losses.append(trainer.loss())
            skipped.append(trainer.skipped_steps)
    return {"losses": losses, "skipped": skipped}


ACTS: dict[str, Act] = {act.__name__: act for act in (learn, hold, call, overflow)}
