"""attention=math: scores, softmax and values as three operators, in the precision that trains.

Not torch's own MATH: that multiplies 16-bit inputs in fp32, which leaves a GPU's matrix units for
16 bits idle, and what flash kernels are compared with would be slower than it has to be.
"""

import functools
import math

import torch


def plain_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    scale: float,
    causal: bool = False,
) -> torch.Tensor:
    """[b, n, s, d] x [b, kv, s, d] -> [b, n, s, d]; `bias` [1, n, s, s] is added to the scores.

    Softmax sums in fp32 and rounds once, as its input has the precision of its output.
    """
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = (query * scale if scale != 1 else query) @ key.transpose(-2, -1)
    if bias is not None:
        scores += bias
    if causal:
        scores.masked_fill_(keys_ahead(scores.shape[-1], scores.device), -math.inf)
    return scores.softmax(-1) @ value


@functools.lru_cache(maxsize=8)
def keys_ahead(seq_length: int, device: torch.device) -> torch.Tensor:
    """Where a key is ahead of its query: bool [s, s]."""
    return torch.ones(seq_length, seq_length, dtype=torch.bool, device=device).triu(1)
