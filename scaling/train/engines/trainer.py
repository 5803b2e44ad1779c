"""What every engine gives: a trainer of one rank; and the optimizer that every engine runs."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from scaling.layout.engines import engine_module
from scaling.study.point import Point
from scaling.train.data import MicroBatch
from scaling.train.model.blueprint import Blueprint
from scaling.train.parallel.groups import Groups

Beat = Callable[[str], None]

# AdamW as Llama 2 was trained, but at a rate that shows in a dozen steps.
LEARNING_RATE = 1e-3
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1


class Trainer(Protocol):
    """One optimizer step at a time; `engine` is the engine's own object."""

    engine: Any

    def step(self, batches: Sequence[MicroBatch]) -> None:
        """Train on this replica's micro-batches, one optimizer step.

        There may be fewer of them than in the layout, and another number in each step.
        """

    def loss(self) -> float:
        """The last step's mean loss over the global batch; collective, so call it on all ranks."""

    def grad_norm(self) -> float | None:
        """The last step's gradient norm over all weights, None where the engine keeps none."""


def mean_loss(losses: Sequence[torch.Tensor], groups: Groups) -> float:
    """The mean over the micro-batches of all replicas, whose parts are equally large."""
    mean = torch.stack([*losses]).float().mean()
    dist.all_reduce(mean, group=groups.data_group)
    return mean.item() / (groups.layout.dp * groups.layout.cp)


def make_blueprint(point: Point, groups: Groups, device: torch.device) -> Blueprint:
    """What this rank is to build of a point."""
    return Blueprint(
        shape=point.shape,
        layout=point.layout,
        tp=groups.tensor_parallel,
        cp=groups.context_parallel,
        ep=groups.expert_parallel,
        seed=point.seed,
        gradient_clipping=point.gradient_clipping,
        device=device,
    )


def build(plan: Blueprint, groups: Groups, beat: Beat = lambda doing: None) -> Trainer:
    """The layout's engine, weights drawn, optimizer states allocated.

    `beat` hears what is being done: of a large model each part takes minutes.
    """
    trainer: Trainer = engine_module(plan.layout.engine, "engine").build(plan, groups, beat)
    groups.apply_timeout_to_all_groups()
    return trainer
