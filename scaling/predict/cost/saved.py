"""What fused kernels keep for backward, in bytes; what they do not name they compute again.

Each is what the package's autograd function saves: FlashAttention 2 to 4 and cuDNN's (arXiv
2205.14135, section 3.1), Liger 0.8.5 (arXiv 2410.10989, `liger_kernel/ops`). Arguments are bytes of
a tensor in the precision that trains, and counts; numbers or arrays. Liger's rotation keeps its
tables only, of which all layers share one.
"""

from typing import TypeVar

from scaling.foreign.arrays import Floats

Count = TypeVar("Count", float, Floats)

_WIDE = 4  # bytes of fp32


def flash_attention(queries: Count, keys: Count, rows: Count) -> Count:
    """Queries, keys, values, what attended to them, and a logsumexp a row in fp32.

    Args:
        queries: bytes of all query heads, as many as of the output.
        keys: bytes of all key heads, as many as of the values.
        rows: tokens times query heads.
    """
    return 2 * queries + 2 * keys + _WIDE * rows


def rms_norm(x: Count, tokens: Count) -> Count:
    """The input `x`, and a reciprocal a token in fp32; of its output nothing."""
    return x + _WIDE * tokens


def gate(inner: Count) -> Count:
    """The gate and what it opens, of `inner` bytes each; their product is computed again."""
    return 2 * inner


def linear_cross_entropy(x: Count, weight: Count) -> Count:
    """Both gradients, computed in forward: of the hidden states `x` and of the head's `weight`."""
    return x + weight
