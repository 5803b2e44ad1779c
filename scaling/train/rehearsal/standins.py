"""Stand-ins for kernels that need a GPU: they allocate a kernel's tensors and compute nothing.

A kernel's memory is what its autograd function saves for backward, what it returns, and what it
holds in between. Each stand-in allocates these as the package's source does: Liger 0.8.5
(`liger_kernel/ops`); torch's RMSNorm, which on a GPU is one kernel and on a CPU is a chain of
operators; FlashAttention 3 and 4 and cuDNN's attention, which save the same as
FlashAttention 2 (query, key, value, output, and a logsumexp in fp32); apex's fused softmax (its
output). The fp32 buffers of attention's backward are missing, as in torch's FlashAttention 2 on a
CPU.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from scaling.layout.kernels import ATTENTION
from scaling.train.kernels import attention, fused

_PROCESSORS = 132  # of an H100: Liger's RMSNorm first sums the weight's gradient on each


Tensors = tuple[Tensor, ...]


class _StandIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Callable[..., Tensors], back: Any, *inputs: Tensor) -> Tensor:
        out, *kept = kernel(*inputs)
        ctx.back = back
        ctx.save_for_backward(*kept)
        if out is inputs[0]:
            ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *ctx.back(gradients[0], *ctx.saved_tensors)


def _stand_in(kernel: Callable[..., Tensors], back: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that returns its result and what it saves, with a backward of what it saved."""
    return functools.partial(_StandIn.apply, kernel, back)


def _norm(x: Tensor, weight: Tensor) -> Tensors:
    return torch.zeros_like(x), x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32)


def _norm_back(_: Tensor, x: Tensor, weight: Tensor, __: Tensor) -> Tensors:
    return torch.zeros_like(x), torch.zeros_like(weight)


def rms_norm(x: Tensor, _: torch.Size, weight: Tensor, __: float) -> Tensor:
    """Allocate what torch's RMSNorm does on a GPU; its numbers are zeros."""
    normed: Tensor = _stand_in(_norm, _norm_back)(x, weight)
    return normed


def _liger_norm_back(_: Tensor, x: Tensor, weight: Tensor, __: Tensor) -> Tensors:
    parts = weight.new_empty(_PROCESSORS, len(weight), dtype=torch.float32)
    return torch.empty_like(x), parts.sum(0).to(weight.dtype)


def _cross_entropy(x: Tensor, weight: Tensor) -> Tensors:
    """Forward computes both gradients already, the weight's in fp32."""
    x_grad = torch.empty_like(x)
    weight_grad = torch.empty_like(weight, dtype=torch.float32)
    losses = x.new_empty(len(x), dtype=torch.float32)
    logits = x.new_empty(cross_entropy_rows(x.shape[0], x.shape[1], len(weight)), len(weight))
    del logits
    return losses.sum(), x_grad, weight_grad.to(weight.dtype)


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensors:
    """A flash kernel, which saves no scores."""
    out = query.transpose(1, 2).new_empty(query.transpose(1, 2).shape).transpose(1, 2)
    logsumexp = query.new_empty(query.shape[:-1], dtype=torch.float32)
    return out, query, key, value, out, logsumexp


def cross_entropy_rows(tokens: int, hidden_size: int, vocab_size: int) -> int:
    """Rows of logits that Liger holds at once: a power of two, at most `tokens`."""
    pieces = math.ceil(vocab_size / (fused.LOGITS_PER_HIDDEN * hidden_size))
    return min(tokens, int(2 ** math.ceil(math.log2(math.ceil(tokens / pieces)))))


def _linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    labels.ne(-1).sum().item()  # Liger counts the ignored labels, which waits for the device
    loss: Tensor = _stand_in(_cross_entropy, lambda _, *both: both)(x.flatten(0, 1), weight)
    return loss


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Replace the kernels that need a GPU by stand-ins."""
    flash = _stand_in(
        _attention, lambda _, *inputs: tuple(torch.empty_like(each) for each in inputs[:3])
    )
    norm = _stand_in(_norm, _liger_norm_back)
    # Liger rotates in place, in both directions
    rotate = _stand_in(lambda x, cosine: (x, cosine), lambda gradient, _: (gradient, None))
    # its gradients overwrite its inputs
    gate = _stand_in(lambda gate, up: (torch.empty_like(gate), gate, up), lambda _, *both: both)
    attentions = {
        name: flash for name, kernel in ATTENTION.items() if kernel.runs and not kernel.rehearsed
    }
    calls: dict[str, Any] = {
        "rms_norm": lambda x, weight, _: norm(x, weight),
        "rotate": lambda query, key, cosine, _: (rotate(query, cosine), rotate(key, cosine)),
        "gated_silu": gate,
        "gated_gelu": gate,
        "linear_cross_entropy": _linear_cross_entropy,
    }
    with (
        mock.patch.dict(attention.CALLS, attentions),
        mock.patch.multiple(fused, **calls),
        mock.patch.object(functional, "rms_norm", rms_norm),
    ):
        yield
