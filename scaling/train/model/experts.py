"""A layer's mixture of experts: a router, the experts of this rank, and those all tokens share.

No capacity: no token is dropped, however uneven the routing. There is no auxiliary loss; `routing`
says whether the router's choice counts (`learned`) or tokens are dealt by their place in the
sequence, the same in every layout (`balanced`, `skewed:X`). Weighted by its scores they are always.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling.layout.axes import ROUTINGS
from scaling.layout.shapes import ModelShape
from scaling.train.model.blocks import FeedForward, gate_activation
from scaling.train.model.blueprint import Blueprint
from scaling.train.parallel.experts import read_counts


class Router(nn.Module):
    """Scores of every expert, and which of them a token takes."""

    def __init__(self, plan: Blueprint, name: str) -> None:
        super().__init__()
        shape = plan.shape
        self.plan = plan
        self.weight = plan.replicated_weight(f"{name}.router", shape.num_experts, shape.hidden_size)

    def forward(self, tokens: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        """[n, h] of `batch` sequences -> weights and experts of each token, [n, k] each.

        Each tp rank sees its part of the loss only, so the weight's gradient is a sum over them; of
        ranks that share a sequence engines take it (`mark_replicated`).
        """
        plan, shape = self.plan, self.plan.shape
        weight = self.weight if plan.tp.sequence_parallel else plan.tp.enter(self.weight)
        logits = functional.linear(tokens, weight).float()
        scores = logits.sigmoid() if shape.router == "sigmoid" else logits.softmax(-1)
        if plan.layout.routing == "learned":
            chosen = scores.topk(shape.experts_per_token, dim=-1).indices
        else:
            held = len(tokens) // batch
            places = plan.cp.shard(torch.arange(held * plan.cp.size, device=tokens.device), dim=0)
            chosen = experts_by_position(places, shape, plan.layout.routing).repeat(batch, 1)
        taken = scores.gather(-1, chosen)
        if shape.normalised_router:
            taken = taken / taken.sum(-1, keepdim=True)
        return taken.to(tokens.dtype), chosen


def experts_by_position(places: Tensor, shape: ModelShape, routing: str) -> Tensor:
    """Experts of the tokens at these places of a sequence, int64 [n] -> [n, k].

    One after another; skewed:X gives expert 0 to so many of the tokens that it has X times the
    mean, as far as there are tokens, and deals the others.
    """
    experts, k = shape.num_experts, shape.experts_per_token
    share = min(ROUTINGS[routing] * k / experts, 1.0)
    slots = torch.arange(k, device=places.device)
    if share == k / experts:
        return (places.unsqueeze(1) * k + slots) % experts
    favoured = ((places + 1) * share).floor() > (places * share).floor()
    others = 1 + (places.unsqueeze(1) * k + slots) % (experts - 1)
    others[:, 0] = torch.where(favoured, 0, others[:, 0])
    return others


class Experts(nn.Module):
    """The experts of this rank, each cut over tp as a dense feed-forward is."""

    def __init__(self, plan: Blueprint, name: str) -> None:
        super().__init__()
        shape = plan.shape
        names = [f"{name}.experts.{i}" for i in plan.ep.local_experts(shape.num_experts)]
        wide, hidden_size = shape.expert_ffn_hidden_size, shape.hidden_size
        self.gate = plan.expert_weights([f"{n}.gate" for n in names], wide, hidden_size, dim=0)
        self.up = plan.expert_weights([f"{n}.up" for n in names], wide, hidden_size, dim=0)
        self.down = plan.expert_weights([f"{n}.down" for n in names], hidden_size, wide, dim=1)
        self.join = gate_activation(plan, functional.silu)

    def forward(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """[n, h] in the order of their experts, `counts` of each -> this rank's part, [n, h]."""
        if tokens.dtype == torch.bfloat16:
            ends = counts.cumsum(0).to(torch.int32)

            def grouped(x: Tensor, weights: Tensor) -> Tensor:
                made: Tensor = functional.grouped_mm(x, weights.transpose(1, 2), offs=ends)
                return made
        else:  # torch's grouped kernels are of bf16
            sizes = read_counts(counts)

            def grouped(x: Tensor, weights: Tensor) -> Tensor:
                pairs = zip(x.split(sizes), weights, strict=True)
                return torch.cat([functional.linear(part, weight) for part, weight in pairs])

        gate, up = grouped(tokens, self.gate), grouped(tokens, self.up)
        return grouped(self.join(gate, up), self.down)


class MixtureOfExperts(nn.Module):
    """A layer's feed-forward where it has experts.

    `routed` counts what each expert of the model got of this rank's tokens so far.
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
        """[b, s, h] -> this rank's part of the sum [b, s, h]."""
        tokens = x.flatten(0, 1)
        taken, chosen = self.router(tokens, x.shape[0])
        order = chosen.flatten().argsort(stable=True)
        replicas_of = torch.ones_like(chosen.flatten())  # torch.bincount would wait for the device
        counts = torch.zeros_like(self.routed).index_add_(0, chosen.flatten(), replicas_of)
        self.routed += counts
        made = self.ep.dispatch(self.experts, tokens[order // chosen.shape[1]], counts)
        copies = torch.empty_like(made).index_copy(0, order, made).view(*chosen.shape, -1)
        mixed: Tensor = (copies * taken.unsqueeze(-1)).sum(1).view_as(x)
        return mixed if self.shared is None else mixed + self.shared(x)


def tokens_per_expert(model: nn.Module) -> Tensor | None:
    """Of this rank's tokens those that each expert of each layer got, [layers, experts], if any."""
    counts: list[Tensor] = [m.routed for m in model.modules() if isinstance(m, MixtureOfExperts)]
    return torch.stack(counts) if counts else None
