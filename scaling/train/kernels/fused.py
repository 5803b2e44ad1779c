"""Liger's Triton kernels (arXiv 2410.10989), each beside the plain code that it stands for.

Imported where they are called: they need a GPU and Triton, which most machines that import this
have not. Signatures are those of liger-kernel 0.8.5.
"""

import functools

import torch
from torch import Tensor

_IGNORED = -100  # a label that no vocabulary has
# Logits held at once, in hidden states of the micro-batch. Liger's own 1 cuts a Llama-2 7B's head
# into 8 products of a few hundred rows, each of which adds to the weight's gradient in fp32.
LOGITS_PER_HIDDEN = 4


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm of the last dimension."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    # not in place: the residual stream still needs the gradient that it would overwrite
    result: Tensor = LigerRMSNormFunction.apply(x, weight, epsilon, 0.0, "llama", False)
    return result


def rotate(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Turn [b, s, n, d] and [b, s, kv, d], halves against halves, by tables [s, d / 2].

    Element i of a head is turned with i + d / 2, as the plain code does.
    """
    from liger_kernel.ops.rope import LigerRopeFunction

    tables = (_of_both_halves(table) for table in (cosine, sine))
    turned = LigerRopeFunction.apply(query.transpose(1, 2), key.transpose(1, 2), *tables)
    return turned[0].transpose(1, 2), turned[1].transpose(1, 2)


@functools.lru_cache(maxsize=8)
def _of_both_halves(table: Tensor) -> Tensor:
    """[s, d / 2] -> [1, s, d]; backward keeps it, so all layers share one."""
    return torch.cat((table, table), -1).unsqueeze(0)


def interleaved_to_halves(rows: Tensor, head_dim: int) -> Tensor:
    """Rows 0, 2, 4, ... of every head, then 1, 3, 5, ...; scores do not depend on the order.

    Weights are drawn for heads whose elements 2i and 2i + 1 are turned together; in this order
    these are i and i + d / 2, so both halves of a head lie in one piece.
    """
    ordered: Tensor = rows.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)
    return ordered


def gated_silu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    result: Tensor = LigerSiLUMulFunction.apply(gate, up)
    return result


def gated_gelu(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) * up, GELU by its tanh."""
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    result: Tensor = LigerGELUMulFunction.apply(gate, up)
    return result


def linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of x @ weight.T, in pieces that never hold all logits.

    [b, s, h], [vocab, h], [b, s] -> scalar. The weight's gradient is summed in fp32.
    """
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    loss: Tensor = LigerFusedLinearCrossEntropyFunction.apply(
        x.flatten(0, 1),
        weight,
        labels.flatten(),
        None,  # no bias
        None,  # classes weigh the same
        _IGNORED,
        0.0,  # no z-loss
        0.0,  # no smoothing
        "mean",
        None,  # no cap
        False,
        torch.float32,
        False,  # tokens weigh the same
        False,
        False,
        None,
        None,
        LOGITS_PER_HIDDEN,
    )[0]
    return loss
