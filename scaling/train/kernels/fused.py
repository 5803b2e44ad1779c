"""Liger's Triton kernels (arXiv 2410.10989).

They are imported inside the functions, because they need a GPU and Triton and most machines that
import this module have neither. Signatures are those of liger-kernel 0.8.5.
"""

import functools

import torch
from torch import Tensor

_IGNORED = -100  # a label that no vocabulary has
# Logits held at once, over the size of the micro-batch's hidden states. Liger's default of 1 splits
# a Llama-2 7B's head into 8 products of a few hundred rows, each adding to an fp32 weight gradient.
LOGITS_PER_HIDDEN = 4


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm of the last dimension."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    # not in place: the residual stream still needs the gradient that would be overwritten
    result: Tensor = LigerRMSNormFunction.apply(x, weight, epsilon, 0.0, "llama", False)
    return result


def rotate(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate query [b, s, n, d] and key [b, s, kv, d] by tables [s, d / 2].

    Elements i and i + d / 2 of a head are rotated together, as in blocks.rotate.
    """
    from liger_kernel.ops.rope import LigerRopeFunction

    tables = (_full_width(table) for table in (cosine, sine))
    rotated = LigerRopeFunction.apply(query.transpose(1, 2), key.transpose(1, 2), *tables)
    return rotated[0].transpose(1, 2), rotated[1].transpose(1, 2)


@functools.lru_cache(maxsize=8)
def _full_width(table: Tensor) -> Tensor:
    """[s, d / 2] -> [1, s, d], cached because backward keeps it for every layer."""
    return torch.cat((table, table), -1).unsqueeze(0)


def gated_silu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    result: Tensor = LigerSiLUMulFunction.apply(gate, up)
    return result


def gated_gelu(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) * up, with GELU's tanh approximation."""
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    result: Tensor = LigerGELUMulFunction.apply(gate, up)
    return result


def linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of x @ weight.T, computed in pieces that never hold all logits.

    x [b, s, h], weight [vocab, h], labels [b, s] -> scalar. The weight's gradient sums in fp32.
    """
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    loss: Tensor = LigerFusedLinearCrossEntropyFunction.apply(
        x.flatten(0, 1),
        weight,
        labels.flatten(),
        None,  # no bias
        None,  # equal weights of classes
        _IGNORED,
        0.0,  # no z-loss
        0.0,  # no smoothing
        "mean",
        None,  # no cap
        False,
        torch.float32,
        False,  # equal weights of tokens
        False,
        False,
        None,
        None,
        LOGITS_PER_HIDDEN,
    )[0]
    return loss
