"""Initial weights: drawn by name, so that every layout starts from the same numbers."""

import hashlib
from collections.abc import Sequence

import torch

_STANDARD_DEVIATION = 0.02  # as GPT-2 and Llama


def initial_weight(
    name: str, shape: Sequence[int], *, seed: int, device: torch.device
) -> torch.Tensor:
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


def shard(weight: torch.Tensor, *, dim: int, rank: int, size: int) -> torch.Tensor:
    """The rank's slice of `size` equal ones along `dim`, in memory of its own."""
    return weight.chunk(size, dim)[rank].clone() if size > 1 else weight
