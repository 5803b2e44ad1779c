"""The facts that the parts of one rank's model need, and how they draw their initial weights.

Weights are drawn by name, so every layout starts from the same numbers.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.train.kernels.attention import DTYPES
from scaling.train.kernels.fp8 import Linear, fp8_linear
from scaling.train.parallel.context import ContextParallel
from scaling.train.parallel.expert_parallel import ExpertParallel
from scaling.train.parallel.tensor import TensorParallel

# Dropout is off, so the second forward needs no random state.
checkpointed = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)

# On weights of which each tp rank holds another part: Megatron-LM's name, which engines read too.
TP_MARK = "tensor_model_parallel"

_STANDARD_DEVIATION = 0.02  # as in GPT-2 and Llama


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """The model, the layout, and this rank's place in it."""

    shape: ModelShape
    layout: Layout
    tp: TensorParallel
    cp: ContextParallel = field(default_factory=ContextParallel)
    ep: ExpertParallel = field(default_factory=ExpertParallel)
    seed: int
    gradient_clipping: float = 0.0
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of new weights. fp32 first would need twice the memory."""
        return DTYPES[self.layout.model_precision]

    @property
    def linear(self) -> Linear:
        """Multiplies activations with a layer's matrices: functional.linear, or its 8-bit form."""
        layout = self.layout
        return fp8_linear(layout.fp8_scaling) if layout.precision == "fp8" else functional.linear

    def sharded_weight(
        self,
        name: str,
        rows: int,
        columns: int,
        *,
        dim: int,
        gain: float = 1.0,
        rotary_head_dim: int | None = None,
    ) -> nn.Parameter:
        """This rank's slice of weight [rows, columns], split over tp along `dim`.

        `gain` scales the initial numbers. With `rotary_head_dim` the rows of each head of that size
        are put in the order of `interleaved_to_halves`.
        """
        part = self._part(name, rows, columns, dim).mul_(gain)
        if rotary_head_dim is not None:
            part = interleaved_to_halves(part, rotary_head_dim)
        return self._sharded(part.to(self.dtype))

    def expert_weights(
        self, names: Sequence[str], rows: int, columns: int, *, dim: int
    ) -> nn.Parameter:
        """This rank's slices of its experts' weights [rows, columns], stacked in dimension 0."""
        parts = [self._part(name, rows, columns, dim).to(self.dtype) for name in names]
        weight = self._sharded(torch.stack(parts))
        vars(weight).update(self.ep.marks)
        return weight

    def _part(self, name: str, rows: int, columns: int, dim: int) -> Tensor:
        whole = initial_weight(name, (rows, columns), seed=self.seed, device=self.device)
        return shard(whole, dim=dim, rank=self.tp.rank, size=self.tp.size)

    def replicated_weight(self, name: str, rows: int, columns: int) -> nn.Parameter:
        """The whole weight [rows, columns], the same on every rank."""
        whole = initial_weight(name, (rows, columns), seed=self.seed, device=self.device)
        return self._replicated(whole.to(self.dtype))

    def norm_scale(self, size: int | None = None) -> nn.Parameter:
        """A norm's scale, the same on every rank: [size], hidden_size by default."""
        ones = torch.ones(size or self.shape.hidden_size, device=self.device, dtype=self.dtype)
        return self._replicated(ones)

    def bias(self, sharded_size: int | None = None) -> nn.Parameter | None:
        """A bias of zeros, [hidden_size], or this rank's slice of one; None unless in a gpt."""
        if self.shape.family != "gpt":
            return None
        size = sharded_size // self.tp.size if sharded_size else self.shape.hidden_size
        zeros = torch.zeros(size, device=self.device, dtype=self.dtype)
        return self._sharded(zeros) if sharded_size else self._replicated(zeros)

    def _sharded(self, numbers: Tensor) -> nn.Parameter:
        """A weight of which each tp rank holds another part, marked so that norms count each."""
        weight = nn.Parameter(numbers)
        if self.tp.size > 1:
            setattr(weight, TP_MARK, True)
        return weight

    def _replicated(self, numbers: Tensor) -> nn.Parameter:
        """A weight that each tp rank has whole; its gradients are summed under sequence_parallel.

        There every rank applies it to its own tokens only.
        """
        weight = nn.Parameter(numbers)
        if self.tp.sequence_parallel and self.tp.reduces_in_hooks:
            weight.register_hook(self.tp.sum_gradient)
        return weight


def activation_shape(shape: ModelShape, layout: Layout) -> tuple[int, int, int]:
    """[b, s', h]: what a rank holds of a micro-batch between two layers."""
    tokens = layout.seq_length // layout.cp
    if layout.sequence_parallel:
        tokens //= layout.tp
    return layout.micro_batch_size, tokens, shape.hidden_size


def initial_weight(name: str, shape: Sequence[int], *, seed: int, device: torch.device) -> Tensor:
    """The whole weight of that name: fp32, normally distributed around 0.

    Drawn on the device that trains, since a CPU would take minutes for billions of weights. So
    weights are equal for all layouts on one kind of device, but not between kinds.
    """
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator(device=device).manual_seed(
        int.from_bytes(digest[:8], "little") // 2
    )
    drawn = torch.randn(list(shape), generator=generator, device=device, dtype=torch.float32)
    return drawn.mul_(_STANDARD_DEVIATION)


def shard(weight: Tensor, *, dim: int, rank: int, size: int) -> Tensor:
    """Slice `rank` of `size` equal ones along `dim`, in memory of its own."""
    return weight.chunk(size, dim)[rank].clone() if size > 1 else weight


def interleaved_to_halves(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder rows so that each head has its even rows first, then its odd ones.

    Weights are drawn for heads whose elements 2i and 2i + 1 are rotated together. After reordering
    these are i and i + d / 2, so each half of a head is contiguous. Scores do not depend on it.
    """
    ordered: Tensor = rows.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)
    return ordered
