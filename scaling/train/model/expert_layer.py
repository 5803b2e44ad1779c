"""A layer's mixture of experts: a router, this rank's experts, and the shared experts.

Capacity is unlimited, so no token is dropped however uneven the routing, and no auxiliary loss.
`routing` selects experts by the router's scores (`learned`) or by a token's position in the
sequence, the same in every layout (`balanced`, `skewed:X`). The router's scores always weight the
experts' outputs.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from scaling.layout.axes import ROUTINGS
from scaling.layout.shapes import ModelShape
from scaling.train.model.blocks import FeedForward, gate_activation
from scaling.train.model.blueprint import Blueprint
from scaling.train.parallel.expert_parallel import (
    copy_for_experts,
    inverse_of,
    permute,
    read_counts,
)


class Router(nn.Module):
    """Scores all experts for each token and chooses k of them."""

    def __init__(self, plan: Blueprint, name: str) -> None:
        super().__init__()
        shape = plan.shape
        self.plan = plan
        self.weight = plan.replicated_weight(f"{name}.router", shape.num_experts, shape.hidden_size)

    def forward(self, tokens: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        """Tokens [n, h] of `batch` sequences -> weights and indices of their experts, [n, k] each.

        Each tp rank sees only its part of the loss, so the weight's gradient is a sum over them.
        Under sequence_parallel the engine takes that sum (`Blueprint.replicated_weight`).
        """
        plan, shape = self.plan, self.plan.shape
        weight = self.weight if plan.tp.sequence_parallel else plan.tp.enter(self.weight)
        logits = functional.linear(tokens, weight).float()
        scores = logits.sigmoid() if shape.router == "sigmoid" else logits.softmax(-1)
        if plan.layout.routing == "learned":
            chosen = scores.topk(shape.experts_per_token, dim=-1).indices
        else:
            held = len(tokens) // batch
            positions = torch.arange(held * plan.cp.size, device=tokens.device)
            positions = plan.cp.shard(positions, dim=0)
            chosen = experts_by_position(positions, shape, plan.layout.routing).repeat(batch, 1)
        weights = scores.gather(-1, chosen)
        if shape.normalised_router:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(tokens.dtype), chosen


def experts_by_position(positions: Tensor, shape: ModelShape, routing: str) -> Tensor:
    """Experts of the tokens at these positions of a sequence, int64 [n] -> [n, k].

    Round robin over all experts. With skewed:X, expert 0 gets up to X times the mean number of
    tokens, and the others share the rest round robin.
    """
    experts, k = shape.num_experts, shape.experts_per_token
    share = min(ROUTINGS[routing] * k / experts, 1.0)
    slots = torch.arange(k, device=positions.device)
    if share == k / experts:
        return (positions.unsqueeze(1) * k + slots) % experts
    takes_expert_0 = ((positions + 1) * share).floor() > (positions * share).floor()
    chosen = 1 + (positions.unsqueeze(1) * k + slots) % (experts - 1)
    chosen[:, 0] = torch.where(takes_expert_0, 0, chosen[:, 0])
    return chosen


class Experts(nn.Module):
    """The experts of this rank, each split over tp as a dense feed-forward is."""

    def __init__(self, plan: Blueprint, name: str) -> None:
        super().__init__()
        shape = plan.shape
        names = [f"{name}.experts.{i}" for i in plan.ep.local_experts(shape.num_experts)]
        inner, hidden_size = shape.expert_ffn_hidden_size, shape.hidden_size
        self.gate = plan.expert_weights([f"{n}.gate" for n in names], inner, hidden_size, dim=0)
        self.up = plan.expert_weights([f"{n}.up" for n in names], inner, hidden_size, dim=0)
        self.down = plan.expert_weights([f"{n}.down" for n in names], hidden_size, inner, dim=1)
        self.gated = gate_activation(plan, functional.silu)

    def forward(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Tokens [n, h] in the order of their experts, each expert's count -> outputs [n, h]."""
        if tokens.dtype == torch.bfloat16:
            ends = counts.cumsum(0).to(torch.int32)

            def grouped(x: Tensor, weights: Tensor) -> Tensor:
                product: Tensor = functional.grouped_mm(x, weights.transpose(1, 2), offs=ends)
                return product
        else:  # torch's grouped kernels take bf16 only
            sizes = read_counts(counts)

            def grouped(x: Tensor, weights: Tensor) -> Tensor:
                pairs = zip(x.split(sizes), weights, strict=True)
                return torch.cat([functional.linear(part, weight) for part, weight in pairs])

        gate, up = grouped(tokens, self.gate), grouped(tokens, self.up)
        return grouped(self.gated(gate, up), self.down)


class MixtureOfExperts(nn.Module):
    """The feed-forward of a layer with experts.

    `routed` counts this rank's tokens that each expert of the model has got so far.
    """

    routed: Tensor

    def __init__(self, plan: Blueprint, name: str) -> None:
        super().__init__()
        shape = plan.shape
        self.ep, self.num_experts = plan.ep, shape.num_experts
        self.router = Router(plan, name)
        self.experts = Experts(plan, name)
        self.shared = None
        if shape.shared_experts:
            width = shape.shared_experts * shape.expert_ffn_hidden_size
            self.shared = FeedForward(plan, f"{name}.shared", width)
        counts = torch.zeros(shape.num_experts, dtype=torch.int64, device=plan.device)
        self.register_buffer("routed", counts, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, h] -> this rank's term of the sum [b, s, h]."""
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens, x.shape[0])
        order = chosen.flatten().argsort(stable=True)  # copies of tokens, by expert
        ones = torch.ones_like(chosen.flatten())  # torch.bincount would wait for the device
        counts = torch.zeros_like(self.routed).index_add_(0, chosen.flatten(), ones)
        self.routed += counts
        inverse = inverse_of(order)
        copies = copy_for_experts(tokens, order, inverse)
        outputs = self.ep.dispatch(self.experts, copies, counts)
        by_token = permute(outputs, inverse, order).view(*chosen.shape, -1)
        mixed: Tensor = (by_token * weights.unsqueeze(-1)).sum(1).view_as(x)
        return mixed if self.shared is None else mixed + self.shared(x)


def expert_imbalance(model: nn.Module, data_group: dist.ProcessGroup | None) -> float | None:
    """Tokens of the fullest expert over the mean, averaged over this rank's layers, if any.

    Collective over the data group, whose ranks hold other tokens.
    """
    counts: list[Tensor] = [m.routed for m in model.modules() if isinstance(m, MixtureOfExperts)]
    if not counts:
        return None
    routed = torch.stack(counts)  # [layers, experts]
    dist.all_reduce(routed, group=data_group)
    return (routed.amax(1) / routed.float().mean(1)).mean().item()
