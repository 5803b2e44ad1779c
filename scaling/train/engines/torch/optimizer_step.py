"""All that follows a step's last backward: gradients over tp, their norm, clipping, AdamW."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from scaling.train.engines.torch.fsdp import is_expert_weight, replicas_of
from scaling.train.engines.trainer import (
    BETAS,
    LEARNING_RATE,
    WEIGHT_DECAY,
    gradient_norm,
    gradient_shares,
    is_tp_sharded,
)
from scaling.train.measure.window import OPTIMIZER
from scaling.train.model.blueprint import Blueprint


@dataclass(slots=True, kw_only=True)
class Engine:
    """A model (in a pipeline this rank's chunks of it) and its optimizer step."""

    module: nn.Module
    optimizer_step: "OptimizerStep"


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedWeight:
    """Copies of one weight, kept equal by giving each the sum of their gradients.

    `copies` are this rank's. The first of them is the model's own where `first_is_here`. `group`
    has all ranks that hold a copy.
    """

    copies: list[nn.Parameter]
    first_is_here: bool
    group: dist.ProcessGroup


class OptimizerStep:
    """The end of a step on this rank. It waits for the device only if gradients are on the host.

    Args:
        weights: this rank's parts, in the same order on all ranks that hold the same layers.
        plan: the model, the layout, and this rank's place in it.
        replicas: ranks of the data group that hold the same parts.
        tied: the copies of a tied weight among `weights`.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        plan: Blueprint,
        *,
        replicas: int,
        tied: TiedWeight | None = None,
    ) -> None:
        self._weights, self._plan, self._tied = list(weights), plan, tied
        self._optimizer = torch.optim.AdamW(
            self._weights, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
        )
        tp = plan.tp
        extra_copies = [] if tied is None else tied.copies[1 if tied.first_is_here else 0 :]
        copies = [
            0 if any(weight is copy for copy in extra_copies) else replicas_of(weight, replicas)
            for weight in self._weights
        ]
        self._shares = gradient_shares(self._weights, copies, tp.size).to(plan.device)
        self._summed_over_tp = [
            index
            for index, weight in enumerate(self._weights)
            if tp.sequence_parallel and not is_tp_sharded(weight)
        ]
        self._of_experts = [i for i, weight in enumerate(self._weights) if is_expert_weight(weight)]
        self._norm: Tensor | None = None

    def grad_norm(self) -> float | None:
        """The norm of all gradients of the last step, before clipping."""
        return None if self._norm is None else self._norm.item()

    @torch.profiler.record_function(OPTIMIZER)
    def __call__(self) -> None:
        """Update the weights and drop their gradients."""
        gradients = [_local(weight.grad) for weight in self._weights]
        if self._tied is not None:
            self._sum_tied(self._tied)
        if self._summed_over_tp:
            self._sum_over_tp([gradients[index] for index in self._summed_over_tp])
        if self._of_experts:  # FSDP2 averaged over the ranks with the same experts, not over ep
            of_experts = [gradients[index] for index in self._of_experts]
            torch._foreach_div_(of_experts, self._plan.ep.size)
        self._norm = gradient_norm(gradients, self._shares)
        if self._plan.gradient_clipping:
            factor = (self._plan.gradient_clipping / self._norm).clamp(max=1.0)
            torch._foreach_mul_(gradients, factor.to(gradients[0].device))
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _sum_tied(self, tied: TiedWeight) -> None:
        """Give every copy the sum of the copies' gradients, over the ranks that hold one."""
        gradients = [_local(copy.grad) for copy in tied.copies]
        total = torch.stack(gradients).sum(0).to(self._plan.device)
        dist.all_reduce(total, group=tied.group)
        for gradient in gradients:
            gradient.copy_(total)

    def _sum_over_tp(self, gradients: list[Tensor]) -> None:
        """Sum over the tp group in one all-reduce: each rank has seen a part of the sequence."""
        flat = torch.cat([gradient.flatten() for gradient in gradients]).to(self._plan.device)
        dist.all_reduce(flat, group=self._plan.tp.group)
        sums = flat.split([gradient.numel() for gradient in gradients])
        for gradient, total in zip(gradients, sums, strict=True):
            gradient.copy_(total.view_as(gradient))


def _local(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
