"""The decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU; one slice per tp rank.

Shapes at the boundaries, with b sequences of s tokens and hidden size h:

    Embedding  ids [b, s]             -> [b, s', h]
    Layer      [b, s', h]             -> [b, s', h]
    FinalNorm  [b, s', h]             -> [b, s', h]
    Head       [b, s', h]             -> logits [b, s, vocab / tp]
    loss       logits, labels [b, s]  -> scalar

s' is s / tp under `sequence_parallel`, else s.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from scaling.layout import Layout
from scaling.shapes import ModelShape
from scaling.train.kernels import DTYPES, attend, fused_rms_norm
from scaling.train.parallel import TensorParallel
from scaling.train.weights import initial_weight, shard

_EPSILON = 1e-5  # as Llama 2
_ROTARY_BASE = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """All that the parts of one rank's model need to know."""

    shape: ModelShape
    layout: Layout
    tp: TensorParallel
    seed: int
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """Weights are built in the precision that trains: fp32 first would need twice the room."""
        return DTYPES[self.layout.precision]

    def sharded(self, name: str, rows: int, columns: int, *, dim: int) -> nn.Parameter:
        """This rank's slice of weight [rows, columns], cut along `dim`."""
        whole = initial_weight(name, (rows, columns), seed=self.seed, device=self.device)
        part = shard(whole, dim=dim, rank=self.tp.rank, size=self.tp.size)
        return self.tp.mark_sharded(nn.Parameter(part.to(self.dtype)))

    def scale(self) -> nn.Parameter:
        """A norm's scale, the same on every rank: [hidden_size]."""
        ones = torch.ones(self.shape.hidden_size, device=self.device, dtype=self.dtype)
        return self.tp.mark_replicated(nn.Parameter(ones))


class Embedding(nn.Module):
    """The look-up; each tp rank holds a range of the vocabulary."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.tp = plan.tp
        vocab_size, hidden_size = plan.shape.vocab_size, plan.shape.hidden_size
        self.weight = plan.sharded("embedding", vocab_size, hidden_size, dim=0)
        self.held = vocab_size // plan.tp.size

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids [b, s] -> [b, s', h]."""
        if self.tp.size == 1:
            return functional.embedding(ids, self.weight)
        local = ids - self.tp.rank * self.held
        elsewhere = (local < 0) | (local >= self.held)
        vectors = functional.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.tp.leave(vectors.masked_fill(elsewhere.unsqueeze(-1), 0))


class RmsNorm(nn.Module):
    """arXiv 1910.07467; in fp32 whatever the precision."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.weight = plan.scale()
        self.fused = plan.layout.fused_norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, s', h] -> [b, s', h]."""
        if self.fused:
            return fused_rms_norm(x, self.weight, _EPSILON)
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + _EPSILON)
        return normed.to(x.dtype) * self.weight


class FinalNorm(RmsNorm):
    """The norm after the last layer; a name of its own for the pipeline."""


class SelfAttention(nn.Module):
    """Causal attention; query heads share key and value heads (arXiv 2305.13245)."""

    def __init__(self, plan: Blueprint, name: str) -> None:
        super().__init__()
        shape = plan.shape
        self.head_dim, self.attention = shape.head_dim, plan.layout.attention
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.query = plan.sharded(f"{name}.query", queries, shape.hidden_size, dim=0)
        self.key = plan.sharded(f"{name}.key", keys, shape.hidden_size, dim=0)
        self.value = plan.sharded(f"{name}.value", keys, shape.hidden_size, dim=0)
        self.output = plan.sharded(f"{name}.output", shape.hidden_size, queries, dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, s, h] -> this rank's part of the sum [b, s, h]."""
        batch, seq_length, _ = x.shape

        def heads(weight: torch.Tensor) -> torch.Tensor:
            projected = functional.linear(x, weight)
            return projected.view(batch, seq_length, -1, self.head_dim).transpose(1, 2)

        table = rotary_table(seq_length, self.head_dim, x.device)
        query, key = rotate(heads(self.query), *table), rotate(heads(self.key), *table)
        attended = attend(query, key, heads(self.value), self.attention)
        joined = attended.transpose(1, 2).reshape(batch, seq_length, -1)
        return functional.linear(joined, self.output)


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202) where the shape is gated, else one GELU."""

    def __init__(self, plan: Blueprint, name: str) -> None:
        super().__init__()
        hidden_size, inner = plan.shape.hidden_size, plan.shape.ffn_hidden_size
        gated = plan.shape.gated_mlp
        self.gate = plan.sharded(f"{name}.gate", inner, hidden_size, dim=0) if gated else None
        self.up = plan.sharded(f"{name}.up", inner, hidden_size, dim=0)
        self.down = plan.sharded(f"{name}.down", hidden_size, inner, dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, s, h] -> this rank's part of the sum [b, s, h]."""
        up = functional.linear(x, self.up)
        if self.gate is None:
            inner = functional.gelu(up)
        else:
            inner = functional.silu(functional.linear(x, self.gate)) * up
        return functional.linear(inner, self.down)


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, plan: Blueprint, index: int) -> None:
        super().__init__()
        self.tp = plan.tp
        self.attention_norm, self.feed_forward_norm = RmsNorm(plan), RmsNorm(plan)
        self.attention = SelfAttention(plan, f"layers.{index}.attention")
        self.feed_forward = FeedForward(plan, f"layers.{index}.feed_forward")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, s', h] -> [b, s', h]."""
        tp = self.tp
        x = x + tp.leave(self.attention(tp.enter(self.attention_norm(x))))
        return x + tp.leave(self.feed_forward(tp.enter(self.feed_forward_norm(x))))


class Head(nn.Module):
    """Logits of the range of the vocabulary that this tp rank holds."""

    def __init__(self, plan: Blueprint, tied: nn.Parameter | None = None) -> None:
        super().__init__()
        self.tp = plan.tp
        vocab_size, hidden_size = plan.shape.vocab_size, plan.shape.hidden_size
        if tied is None:
            tied = plan.sharded("head", vocab_size, hidden_size, dim=0)
        self.weight = tied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, s', h] -> [b, s, vocab / tp]."""
        return functional.linear(self.tp.enter(x), self.weight)


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def loss_of(plan: Blueprint) -> Loss:
    """The mean cross-entropy over all tokens of a micro-batch, in fp32.

    With tp each rank holds logits [b, s, vocab / tp]: the ranks exchange three numbers a token (the
    largest logit, the sum of exponentials, the label's logit), never the logits.
    """
    tp = plan.tp

    def whole(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    def parallel(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = logits.float()
        logits = logits - tp.max(logits.detach().amax(-1, keepdim=True))
        total = tp.sum(logits.exp().sum(-1))
        held = logits.shape[-1]
        local = labels - tp.rank * held
        elsewhere = (local < 0) | (local >= held)
        found = logits.gather(-1, local.masked_fill(elsewhere, 0).unsqueeze(-1)).squeeze(-1)
        return (total.log() - tp.sum(found.masked_fill(elsewhere, 0))).mean()

    return whole if tp.size == 1 else parallel


class Decoder(nn.Module):
    """The whole model on one tp group, loss included."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.embedding = Embedding(plan)
        self.layers = nn.ModuleList(Layer(plan, i) for i in range(plan.shape.num_layers))
        self.norm = FinalNorm(plan)
        self.head = Head(plan, self.embedding.weight if plan.shape.tied_embeddings else None)
        self.loss = loss_of(plan)
        self.recompute = plan.layout.activation_checkpointing == "full"

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Ids, labels [b, s] -> mean loss of the micro-batch."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = recomputed(layer, x) if self.recompute else layer(x)
        return self.loss(self.head(self.norm(x)), labels)


# There is no dropout, so no random state to restore for the second forward.
recomputed = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


@functools.lru_cache(maxsize=8)
def rotary_table(
    seq_length: int, head_dim: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every position's angles (arXiv 2104.09864), fp32 [s, head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    positions = torch.arange(seq_length, device=device, dtype=torch.float32)
    angles = torch.outer(positions, _ROTARY_BASE**-exponents)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (2i, 2i + 1) of each head by its position's angles: [b, n, s, d]."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1)
    return turned.flatten(-2).to(x.dtype)
