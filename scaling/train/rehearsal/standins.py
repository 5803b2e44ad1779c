"""Kernels that need their GPU, as what they keep: the tensors of each, and no numbers.

A kernel's memory is what its autograd function saves for backward, what it returns and what it
holds on the way. Each stand-in allocates these as the package's source does: Liger 0.8.5
(`liger_kernel/ops`), FlashAttention 3 and 4 and cuDNN's (as FlashAttention 2 does: q, k, v, the
output, and a logsumexp in fp32), apex's fused softmax (its output). What attention's backward sums
in fp32 on the way is not here, nor in torch's own FlashAttention 2 on a CPU.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from scaling.layout.kernels import ATTENTION
from scaling.train.kernels import attention, fused

_PROCESSORS = 132  # of an H100: Liger's RMSNorm sums a weight's gradient on each of them first


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        reciprocal = x.new_empty(x.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(x, weight, reciprocal)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight, _ = ctx.saved_tensors
        parts = weight.new_empty(_PROCESSORS, len(weight), dtype=torch.float32)
        return torch.empty_like(x), parts.sum(0).to(weight.dtype)


class _Turn(torch.autograd.Function):
    """Liger turns in place, there and back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cosine: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cosine)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class _Gate(torch.autograd.Function):
    """Its gradients overwrite its inputs."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        return gate, up


class _CrossEntropy(torch.autograd.Function):
    """Both gradients are there after forward; the weight's is summed in fp32 on the way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        of_x = torch.empty_like(x)
        summed = torch.empty_like(weight, dtype=torch.float32)
        losses = x.new_empty(len(x), dtype=torch.float32)
        logits = x.new_empty(cross_entropy_rows(x.shape[0], x.shape[1], len(weight)), len(weight))
        del logits
        ctx.save_for_backward(of_x, summed.to(weight.dtype))
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        of_x, of_weight = ctx.saved_tensors
        return of_x, of_weight


class _Attention(torch.autograd.Function):
    """A flash kernel: no scores are kept."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        out = query.transpose(1, 2).new_empty(query.transpose(1, 2).shape).transpose(1, 2)
        logsumexp = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, logsumexp)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value, *_ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class _Softmax(torch.autograd.Function):
    """Its gradient overwrites the one that it is given."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        weights = torch.empty_like(scores)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def cross_entropy_rows(tokens: int, hidden_size: int, vocab_size: int) -> int:
    """Rows of logits that Liger holds at once: a power of two, tokens at most."""
    pieces = math.ceil(vocab_size / (fused.LOGITS_PER_HIDDEN * hidden_size))
    return min(tokens, int(2 ** math.ceil(math.log2(math.ceil(tokens / pieces)))))


def _linear_cross_entropy(
    x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    labels.ne(-1).sum().item()  # Liger counts the labels that are none, and waits for the number
    loss: torch.Tensor = _CrossEntropy.apply(x.flatten(0, 1), weight)  # type: ignore[no-untyped-call]
    return loss


def _with_fused_softmax(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    with mock.patch.object(attention, "_module_of", return_value=_Apex):
        return attention._fused_softmax(query, key, value)


class _Apex:
    class ScaledUpperTriangMaskedSoftmax:
        """As apex calls it."""

        @staticmethod
        def apply(scores: torch.Tensor, scale: float) -> torch.Tensor:
            """The weights of scaled scores."""
            result: torch.Tensor = _Softmax.apply(scores)  # type: ignore[no-untyped-call]
            return result


@contextlib.contextmanager
def standing_in() -> Iterator[None]:
    """Within, kernels that need a GPU are stood in for."""
    attentions = {
        name: _with_fused_softmax if name == "fused_softmax" else _Attention.apply
        for name, kernel in ATTENTION.items()
        if not kernel.rehearsed
    }
    norm: Any = _Norm.apply
    turn: Any = _Turn.apply
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(attention.CALLS, attentions))
        for name, call in {
            "rms_norm": lambda x, weight, _: norm(x, weight),
            "rotate": lambda query, key, cosine, _: (turn(query, cosine), turn(key, cosine)),
            "gated_silu": _Gate.apply,
            "gated_gelu": _Gate.apply,
            "linear_cross_entropy": _linear_cross_entropy,
        }.items():
            stack.enter_context(mock.patch.object(fused, name, call))
        yield
