"""The blocks of a layer: norms, attention, feed-forward; one slice per tp rank.

With b sequences of s tokens and hidden size h, attention and feed-forward take [b, s', h], the
activations that a rank holds. They return [b, s, h], this rank's term of a sum over the tp ranks.
Norms return [b, s', h].
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling.layout.shapes import Family, ModelShape
from scaling.train.kernels import fused
from scaling.train.kernels.attention import attend
from scaling.train.model.blueprint import Blueprint, checkpointed
from scaling.train.parallel.conjugate import conjugate
from scaling.train.parallel.context import AttentionFunction, ContextParallel
from scaling.train.parallel.tensor import TensorParallel

_EPSILONS: dict[Family, float] = {"llama": 1e-5, "gpt": 1e-5, "t5": 1e-6}  # as released
_ROTARY_BASE = 10_000.0


class Norm(nn.Module):
    """RMSNorm (arXiv 1910.07467), or LayerNorm in a gpt, by torch's kernels, which sum in fp32."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.weight, self.bias = plan.norm_scale(), plan.bias()
        self.fused, self.epsilon = plan.layout.fused_norm, _EPSILONS[plan.shape.family]

    def forward(self, x: Tensor) -> Tensor:
        """[b, s', h] -> [b, s', h]."""
        if self.bias is not None:
            return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)
        if self.fused:
            return fused.rms_norm(x, self.weight, self.epsilon)
        return functional.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class HeadNorm(nn.Module):
    """RMSNorm of each head's query or key, with one scale for all heads."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.tp, self.weight = plan.tp, plan.norm_scale(plan.shape.head_dim)
        self.epsilon = _EPSILONS[plan.shape.family]

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, n, d] -> [b, s, n, d]; gradients add up over tp, whose ranks hold other heads."""
        scale = self.weight if self.tp.sequence_parallel else self.tp.enter(self.weight)
        return functional.rms_norm(x, scale.shape, scale, self.epsilon)


class Projections(nn.Module):
    """The matrices around attention; each tp rank holds those of its heads."""

    def __init__(
        self, plan: Blueprint, name: str, *, gain: float = 1.0, rotary_head_dim: int | None = None
    ) -> None:
        super().__init__()
        shape, hidden_size = plan.shape, plan.shape.hidden_size
        self.head_dim, self.linear, self.tp = shape.head_dim, plan.linear, plan.tp
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.query = plan.sharded_weight(
            f"{name}.query", queries, hidden_size, dim=0, gain=gain, rotary_head_dim=rotary_head_dim
        )
        self.key = plan.sharded_weight(
            f"{name}.key", keys, hidden_size, dim=0, rotary_head_dim=rotary_head_dim
        )
        self.value = plan.sharded_weight(f"{name}.value", keys, hidden_size, dim=0)
        self.output = plan.sharded_weight(f"{name}.output", hidden_size, queries, dim=1)


class SelfAttention(Projections):
    """Causal attention; query heads share key and value heads (arXiv 2305.13245)."""

    def __init__(self, plan: Blueprint, name: str) -> None:
        shape = plan.shape
        rotary = shape.family == "llama"
        super().__init__(plan, name, rotary_head_dim=shape.head_dim if rotary else None)
        self.cp, self.rotary, self.fused_rope = plan.cp, rotary, plan.layout.fused_rope
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.query_bias = plan.bias(queries)
        self.key_bias, self.value_bias = plan.bias(keys), plan.bias(keys)
        self.query_norm = HeadNorm(plan) if shape.query_key_norm else None
        self.key_norm = HeadNorm(plan) if shape.query_key_norm else None
        kernel = functools.partial(attend, attention=plan.layout.attention)
        self.attend = attention_core(plan, plan.cp.ring_attention if plan.cp.ring else kernel)

    def forward(self, x: Tensor) -> Tensor:
        """[b, s', h] -> this rank's term of the sum [b, s, h]."""
        columns = self.tp.column_parallel(
            x, (self.query, self.query_bias), (self.key, self.key_bias),
            (self.value, self.value_bias), linear=self.linear,
        )  # fmt: skip
        batch, held, _ = columns[0].shape
        query, key, value = (x.view(batch, held, -1, self.head_dim) for x in columns)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotary:
            cp = (self.cp.size, self.cp.rank, self.cp.ring)
            cosine, sine = local_rotary_table(cp, held, self.head_dim, x.device, x.dtype)
            if self.fused_rope:
                query, key = fused.rotate(query, key, cosine, sine)
            else:
                query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        attended = self.attend(query, key, value)
        return self.linear(attended.reshape(batch, held, -1), self.output, None)


def attention_core(plan: Blueprint, kernel: AttentionFunction) -> AttentionFunction:
    """The attention kernel with cp around it, recomputed in backward if checkpointing is selective.

    Query [b, s, n, d], key and value [b, s, kv, d] -> [b, s, n, d]; kernels take heads first.
    Selective checkpointing recomputes the s by s matrices in here and keeps everything else
    (arXiv 2205.05198, section 5).
    """

    def core(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        return kernel(query, key, value, *others).transpose(1, 2)

    if plan.layout.activation_checkpointing == "selective":
        core = functools.partial(checkpointed, core)
    return plan.cp.ulysses(core)


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202) where the shape is gated, else GELU; in a t5 GEGLU, else ReLU.

    With a `width` of its own it is part of a block whose input is whole on every tp rank already.
    """

    def __init__(self, plan: Blueprint, name: str, width: int | None = None) -> None:
        super().__init__()
        self.tp = TensorParallel() if width else plan.tp
        hidden_size, inner = plan.shape.hidden_size, width or plan.shape.ffn_hidden_size
        gated = plan.shape.gated_mlp
        self.linear = plan.linear
        self.activate = _activation(plan.shape)
        self.gated = gate_activation(plan, self.activate)
        self.gate = (
            plan.sharded_weight(f"{name}.gate", inner, hidden_size, dim=0) if gated else None
        )
        self.gate_bias = plan.bias(inner) if gated else None
        self.up = plan.sharded_weight(f"{name}.up", inner, hidden_size, dim=0)
        self.up_bias = plan.bias(inner)
        self.down = plan.sharded_weight(f"{name}.down", hidden_size, inner, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """[b, s', h] -> this rank's term of the sum [b, s, h]."""
        up_product = (self.up, self.up_bias)
        if self.gate is None:
            (up,) = self.tp.column_parallel(x, up_product, linear=self.linear)
            return self.linear(self.activate(up), self.down, None)
        gate, up = self.tp.column_parallel(
            x, (self.gate, self.gate_bias), up_product, linear=self.linear
        )
        return self.linear(self.gated(gate, up), self.down, None)


Activation = Callable[[Tensor], Tensor]


def gate_activation(plan: Blueprint, activate: Activation) -> Callable[[Tensor, Tensor], Tensor]:
    """The function of gate and up-projection: activate(gate) * up, fused if so asked."""
    if plan.layout.fused_mlp:
        return fused.gated_gelu if plan.shape.family == "t5" else fused.gated_silu
    return lambda gate, up: activate(gate) * up


def _activation(shape: ModelShape) -> Activation:
    if shape.family == "t5":
        # the released models use gelu_new, which is by tanh; T5 1.0 has no gate
        return (
            functools.partial(functional.gelu, approximate="tanh")
            if shape.gated_mlp
            else functional.relu
        )
    return functional.silu if shape.gated_mlp else functional.gelu


@functools.lru_cache(maxsize=8)
def rotary_table(seq_length: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles (arXiv 2104.09864), fp32 [s, head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    positions = torch.arange(seq_length, device=device, dtype=torch.float32)
    angles = torch.outer(positions, _ROTARY_BASE**-exponents)
    return angles.cos(), angles.sin()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def local_rotary_table(
    cp: tuple[int, int, bool], held: int, head_dim: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of a cp rank's `held` positions, [held, head_dim / 2], cast once.

    Compiled layers read the tables. Otherwise the compiler would trace through the cache and
    compute a cosine for every element. `cp` is size, rank and ring: torch 2.11's compiler takes no
    dataclass to a call that it leaves alone.
    """
    return _cached_rotary_table(cp, held, head_dim, device, dtype)


@functools.lru_cache(maxsize=8)
def _cached_rotary_table(
    cp: tuple[int, int, bool], held: int, head_dim: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    size, rank, ring = cp
    place = ContextParallel(size=size, rank=rank, ring=ring)
    tables = rotary_table(held * size, head_dim, device)
    cosine, sine = (place.shard(table, dim=0).to(dtype) for table in tables)
    return cosine, sine


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate elements i and i + d / 2 of each head by the position's angle.

    x is [b, s, n, d], the tables are [s, d / 2]. It sums in fp32 and rounds twice in 16 bits.
    Backward rotates the other way and needs only the tables. The projections' rows are in the order
    of `interleaved_to_halves`.
    """
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    if torch.compiler.is_compiling():  # the compiler fuses these operators itself
        first, second = x.chunk(2, -1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
    return conjugate(
        _rotate_halves, lambda g, cosine, sine: _rotate_halves(g, cosine, -sine), x, cosine, sine
    )


def _rotate_halves(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Write both halves of the result in place: no fp32 copy and no concatenation."""
    first, second = x.chunk(2, -1)
    rotated = torch.empty_like(x)
    first_out, second_out = rotated.chunk(2, -1)
    torch.mul(first, cosine, out=first_out).addcmul_(second, sine, value=-1)
    torch.mul(second, cosine, out=second_out).addcmul_(first, sine)
    return rotated
