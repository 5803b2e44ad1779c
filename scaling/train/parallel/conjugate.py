"""Two operations of which each is the other's gradient."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Operation = Callable[..., Tensor]


def identity(x: Tensor, *_: Any) -> Tensor:
    """What passes as it is: of a sum over ranks the gradient, which each has in full."""
    return x.view_as(x)


def conjugate(there: Operation, back: Operation, x: Tensor, *given: Any) -> Tensor:
    """`there(x, *given)`, whose gradient is `back(gradient, *given)`; `there` may work in place."""
    result: Tensor = _Pair.apply(x, there, back, *given)  # type: ignore[no-untyped-call]
    return result


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Operation, back: Operation, *given: Any) -> Tensor:
        ctx.back, ctx.given = back, given
        result = there(x, *given)
        if result is x:
            ctx.mark_dirty(x)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.back(gradients[0], *ctx.given), None, None, *(None for _ in ctx.given)
