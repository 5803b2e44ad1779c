"""Two operations of which each is the other's gradient."""

from collections.abc import Callable
from typing import Any

import torch

Operation = Callable[..., torch.Tensor]


def same(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """What passes as it is: of a sum over ranks the gradient, which each has in full."""
    return x.view_as(x)


def paired(there: Operation, back: Operation, x: torch.Tensor, *given: Any) -> torch.Tensor:
    """`there(x, *given)`, whose gradient is `back(gradient, *given)`; `there` may work in place."""
    result: torch.Tensor = _Pair.apply(x, there, back, *given)  # type: ignore[no-untyped-call]
    return result


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, there: Operation, back: Operation, *given: Any
    ) -> torch.Tensor:
        ctx.back, ctx.given = back, given
        result = there(x, *given)
        if result is x:
            ctx.mark_dirty(x)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.back(gradients[0], *ctx.given), None, None, *(None for _ in ctx.given)
