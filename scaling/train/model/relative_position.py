"""T5's positions: a learned number for each head and bucket of distances, added to the scores.

One table a stack, shared by its layers (arXiv 1910.10683, section 2.1).
"""

import functools
import math

import torch
from torch import nn

from scaling.layout.shapes import T5_BUCKETS
from scaling.train.kernels.plain_attention import keys_ahead
from scaling.train.model.blueprint import Blueprint

_FARTHEST = 128  # tokens; everything beyond shares the last bucket


class RelativePositionBias(nn.Module):
    """The table of one stack; each tp rank holds that of its heads."""

    def __init__(self, plan: Blueprint, name: str, *, causal: bool) -> None:
        super().__init__()
        self.plan, self.causal = plan, causal
        self.table = plan.sharded(name, plan.shape.num_heads, T5_BUCKETS, dim=0)

    def forward(self) -> torch.Tensor:
        """What every layer of the stack adds to its scores: [1, heads of this rank, s, s]."""
        return bias_of(self.table, self.plan, causal=self.causal)


def bias_of(table: torch.Tensor, plan: Blueprint, *, causal: bool) -> torch.Tensor:
    """[heads / tp, buckets] -> [1, n, s, s], in which a causal one is -inf where keys are ahead.

    s is the whole sequence and n the heads that this rank attends over: under cp a share of those
    it has weights for, as the all-to-all deals them.
    """
    seq_length = plan.layout.seq_length
    bucket = buckets(seq_length, bidirectional=not causal, device=table.device)
    # in fp32, because the gradient of each number is a sum over all pairs of tokens
    along = plan.cp.share(table, dim=0).float()[:, bucket]
    # row i of the square begins i steps before distance 0
    square = along.unfold(-1, seq_length, 1).flip(-2)
    if causal:
        square = square.masked_fill(keys_ahead(seq_length, table.device), -math.inf)
    return square.to(table.dtype).unsqueeze(0)


@functools.lru_cache(maxsize=8)
def buckets(seq_length: int, *, bidirectional: bool, device: torch.device) -> torch.Tensor:
    """The bucket of each distance, key minus query, from 1 - s to s - 1: int64 [2 s - 1].

    Half of the buckets are a distance each, the others grow with its logarithm up to `_FARTHEST`;
    an encoder has half of them for keys ahead, a decoder none. Made on the CPU whatever trains, so
    that a logarithm rounds alike everywhere, and moved once.
    """
    distances = torch.arange(1 - seq_length, seq_length)
    held = T5_BUCKETS // 2 if bidirectional else T5_BUCKETS
    first = torch.where(distances > 0, held, 0) if bidirectional else torch.zeros_like(distances)
    far = distances.abs() if bidirectional else (-distances).clamp(min=0)
    exact = held // 2
    growth = torch.log(far.float() / exact) / math.log(_FARTHEST / exact)
    grown = (exact + (growth.clamp(min=0) * (held - exact)).long()).clamp(max=held - 1)
    return (first + torch.where(far < exact, far, grown)).to(device)
