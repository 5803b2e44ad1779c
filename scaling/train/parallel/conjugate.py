"""Pairs of operations, each the gradient of the other, as f and g of Megatron-LM."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Operation = Callable[..., Tensor]


def identity(x: Tensor, *_: Any) -> Tensor:
    """The input as it is: the gradient of a sum over ranks, which each rank has in full."""
    return x.view_as(x)


def conjugate(forward: Operation, backward: Operation, x: Tensor, *args: Any) -> Tensor:
    """Run `forward(x, *args)`, with `backward(gradient, *args)` as its gradient.

    `forward` may work in place.
    """
    result: Tensor = _Conjugate.apply(x, forward, backward, *args)  # type: ignore[no-untyped-call]
    return result


class _Conjugate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Operation, backward: Operation, *args: Any) -> Tensor:
        ctx.operation, ctx.args = backward, args
        result = forward(x, *args)
        if result is x:
            ctx.mark_dirty(x)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.operation(gradients[0], *ctx.args), None, None, *(None for _ in ctx.args)
