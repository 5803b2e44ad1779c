"""All that the parts of one rank's model need to know, and how they draw their weights.

These are drawn by name, so that every layout starts from the same numbers.
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
from scaling.train.kernels.eight_bits import Linear, linear_of
from scaling.train.kernels.fused import halves
from scaling.train.parallel.context import ContextParallel
from scaling.train.parallel.experts import ExpertParallel
from scaling.train.parallel.tensor import TensorParallel

# There is no dropout, so no random state to restore for the second forward.
recomputed = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)

_STANDARD_DEVIATION = 0.02  # as GPT-2 and Llama


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
        """Weights are built in the precision that trains: fp32 first would need twice the room."""
        return DTYPES[self.layout.model_precision]

    @property
    def linear(self) -> Linear:
        """What multiplies activations with a layer's matrices: functional.linear, or in 8 bits."""
        layout = self.layout
        return linear_of(layout.fp8_scaling) if layout.precision == "fp8" else functional.linear

    def sharded(
        self,
        name: str,
        rows: int,
        columns: int,
        *,
        dim: int,
        gain: float = 1.0,
        halves_of: int | None = None,
    ) -> nn.Parameter:
        """This rank's slice of weight [rows, columns], cut along `dim`; `gain` widens the draw.

        With `halves_of` rows of each head of that size come in the order of `fused.halves`.
        """
        part = self._part(name, rows, columns, dim).mul_(gain)
        if halves_of is not None:
            part = halves(part, halves_of)
        return self.tp.mark_sharded(nn.Parameter(part.to(self.dtype)))

    def stacked(self, names: Sequence[str], rows: int, columns: int, *, dim: int) -> nn.Parameter:
        """This rank's slices of its experts' weights [rows, columns], one above the other."""
        parts = [self._part(name, rows, columns, dim).to(self.dtype) for name in names]
        return self.ep.mark(self.tp.mark_sharded(nn.Parameter(torch.stack(parts))))

    def _part(self, name: str, rows: int, columns: int, dim: int) -> Tensor:
        whole = initial_weight(name, (rows, columns), seed=self.seed, device=self.device)
        return shard(whole, dim=dim, rank=self.tp.rank, size=self.tp.size)

    def replicated(self, name: str, rows: int, columns: int) -> nn.Parameter:
        """The whole weight [rows, columns], the same on every rank."""
        whole = initial_weight(name, (rows, columns), seed=self.seed, device=self.device)
        return self.tp.mark_replicated(nn.Parameter(whole.to(self.dtype)))

    def scale(self, size: int | None = None) -> nn.Parameter:
        """A norm's scale, the same on every rank: [size], hidden_size by default."""
        ones = torch.ones(size or self.shape.hidden_size, device=self.device, dtype=self.dtype)
        return self.tp.mark_replicated(nn.Parameter(ones))

    def shift(self, sharded_size: int | None = None) -> nn.Parameter | None:
        """A shift from 0 of [hidden_size], or this rank's slice of one; only a gpt has any."""
        if self.shape.family != "gpt":
            return None
        size = sharded_size // self.tp.size if sharded_size else self.shape.hidden_size
        shift = nn.Parameter(torch.zeros(size, device=self.device, dtype=self.dtype))
        return self.tp.mark_sharded(shift) if sharded_size else self.tp.mark_replicated(shift)


def initial_weight(name: str, shape: Sequence[int], *, seed: int, device: torch.device) -> Tensor:
    """The whole weight of that name, fp32, normal around 0.

    Drawn on the device that trains (a CPU would take minutes for billions of weights), so weights
    are the same for every layout on one kind of device, not between kinds.
    """
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator(device=device).manual_seed(
        int.from_bytes(digest[:8], "little") // 2
    )
    drawn = torch.randn(list(shape), generator=generator, device=device, dtype=torch.float32)
    return drawn.mul_(_STANDARD_DEVIATION)


def shard(weight: Tensor, *, dim: int, rank: int, size: int) -> Tensor:
    """The rank's slice of `size` equal ones along `dim`, in memory of its own."""
    return weight.chunk(size, dim)[rank].clone() if size > 1 else weight
