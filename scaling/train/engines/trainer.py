"""The common part of engines: the `Trainer` they return, the optimizer's constants, the model."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from scaling.layout.engines import engine_module
from scaling.study.point import Point
from scaling.train.data import MicroBatch
from scaling.train.model.blueprint import TP_MARK, Blueprint
from scaling.train.model.decoder import Decoder, Layer
from scaling.train.model.encoder_decoder import EncoderDecoder, StackLayer
from scaling.train.parallel.groups import Groups

Beat = Callable[[str], None]  # hears what is being done: with a large model each part takes minutes
Note = Callable[[str], None]  # counts one wait for the device, by its kind, in a rehearsal

# AdamW as Llama 2 was trained. The rate is constant, and so small that all layouts stay on one
# path: at 1e-3 without warm-up each rounding goes its own way after three steps of a large model.
LEARNING_RATE = 1e-5
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1

LAYERS = (Layer, StackLayer)


class Trainer(Protocol):
    """Trains one optimizer step at a time; `engine` is the engine's own object."""

    engine: Any

    @property
    def skipped_steps(self) -> int:
        """Steps that updated no weights, because gradients overflowed fp16."""

    def step(self, batches: Sequence[MicroBatch]) -> None:
        """Train on this replica's micro-batches, one optimizer step.

        There may be fewer micro-batches than the layout has, and a different number each step.
        """

    def loss(self) -> float:
        """The last step's mean loss over the global batch; collective over all ranks."""

    def grad_norm(self) -> float | None:
        """The last step's gradient norm over all weights, None where the engine keeps none."""


def make_blueprint(point: Point, groups: Groups, device: torch.device) -> Blueprint:
    """The parts that this rank builds for a point."""
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
    """Build the layout's engine: weights drawn, optimizer states allocated."""
    trainer: Trainer = engine_module(plan.layout.engine, "engine").build(plan, groups, beat)
    groups.apply_timeout_to_all_groups()
    return trainer


def whole_model(plan: Blueprint) -> Decoder | EncoderDecoder:
    """All layers of the model, its loss included, as one tp rank holds them."""
    return EncoderDecoder(plan) if plan.shape.family == "t5" else Decoder(plan)


def is_tp_sharded(weight: nn.Parameter) -> bool:
    """Whether each tp rank holds another part of this weight."""
    return bool(getattr(weight, TP_MARK, False))


def gradient_shares(weights: Sequence[nn.Parameter], copies: Sequence[int], tp: int) -> Tensor:
    """The share of each weight's squared norm that a rank adds, so that it counts once over all.

    Args:
        weights: of this rank.
        copies: ranks of the data group that hold each weight; 0 where another rank counts it.
        tp: ranks of the tp group.
    """
    pairs = zip(weights, copies, strict=True)
    held = [count * (1 if is_tp_sharded(weight) else tp) for weight, count in pairs]
    return torch.tensor([1 / ranks if ranks else 0.0 for ranks in held])


def gradient_norm(gradients: list[Tensor], shares: Tensor) -> Tensor:
    """The norm of all ranks' gradients, a scalar; all-reduced over the world.

    Args:
        gradients: of this rank's weights, wherever they lie.
        shares: of these weights (`gradient_shares`), on the device that communicates.
    """
    norms = torch.stack(torch._foreach_norm(gradients)).to(shares.device)
    total = norms.float().square().mul(shares).sum()
    dist.all_reduce(total)
    return total.sqrt()


def replicas_agree(trainer: Trainer, groups: Groups, device: torch.device) -> bool | None:
    """Whether replicas hold equal weights, to the last bit; None where no weight has replicas.

    They start equal and apply the same averaged gradients, so any difference is a missing sum.
    Weights that ZeRO or FSDP2 spreads over ranks, and distributed experts, are not compared.
    Collective over the replicas; `device` is the one that communicates.
    """
    sums: dict[dist.ProcessGroup, Tensor] = {}
    for weight in trainer.engine.module.parameters():
        held, group = weight.detach(), groups.data_group
        if isinstance(held, DTensor):  # FSDP2's: [ranks that hold the same, ranks that share it]
            if not held.placements[0].is_replicate():
                continue
            group, held = held.device_mesh.get_group(0), held.to_local()
        elif hasattr(weight, "ds_id") or hasattr(weight, "group_name"):  # ZeRO-3's, and experts
            continue
        bits = held.view({2: torch.int16, 4: torch.int32}[held.element_size()])
        # in integers no order of adding matters
        total = bits.sum(dtype=torch.int64).to(device)
        sums[group] = sums.get(group, 0) + total
    agree = None
    for group, total in sums.items():
        if dist.get_world_size(group) > 1:
            largest = torch.stack((total, -total))
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
            agree = agree is not False and not largest.sum().item()
    return agree


def mean_loss(losses: Sequence[Tensor], groups: Groups) -> float:
    """The mean over all micro-batches of all replicas, which hold equally many tokens."""
    mean = torch.stack([*losses]).float().mean()
    dist.all_reduce(mean, group=groups.data_group)
    return mean.item() / (groups.layout.dp * groups.layout.cp)
