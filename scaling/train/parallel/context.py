"""Context parallelism after Ulysses: the ranks of a cp group share their sequences.

Each rank holds s / cp tokens of a sequence everywhere but in attention, before which an all-to-all
trades tokens for heads (arXiv 2309.14509): a rank then sees all tokens of n / cp heads. A second
all-to-all undoes it. To the weights the ranks are like replicas that see other data, so gradients
are averaged over cp as they are over dp.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

# query, key, value, and what else a kernel is told (a t5: the position bias of its heads)
Attend = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParallel:
    """This rank's place in its cp group. `group` is None where the group is this rank alone."""

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None

    def share(self, x: torch.Tensor, *, dim: int) -> torch.Tensor:
        """This rank's run of the tokens along `dim`."""
        return x.chunk(self.size, dim)[self.rank].contiguous() if self.size > 1 else x

    def over_whole_sequences(self, attend: Attend) -> Attend:
        """The same attention for a rank that holds a part of the tokens.

        Query [b, s / cp, n, d], key and value [b, s / cp, kv, d] -> [b, s / cp, n, d].
        """
        if self.size == 1:
            return attend

        def attended(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any
        ) -> torch.Tensor:
            whole = (_run(_TokensForHeads, part, self) for part in (query, key, value))
            return _run(_HeadsForTokens, attend(*whole, *others), self)

        return attended


def _run(function: Any, x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
    result: torch.Tensor = function.apply(x, cp)
    return result


def _exchanged(parts: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
    """Part i of this rank's goes to rank i, of the same shape: what each rank sent to this one."""
    parts = parts.contiguous()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=cp.group)
    return received


def _tokens_for_heads(x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
    """[b, s / cp, n, d] -> [b, s, n / cp, d]."""
    by_rank = x.unflatten(2, (cp.size, -1)).permute(2, 0, 1, 3, 4)
    return _exchanged(by_rank, cp).transpose(0, 1).flatten(1, 2)


def _heads_for_tokens(x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
    """[b, s, n / cp, d] -> [b, s / cp, n, d]."""
    by_rank = x.unflatten(1, (cp.size, -1)).transpose(0, 1)
    return _exchanged(by_rank, cp).permute(1, 2, 0, 3, 4).flatten(2, 3)


class _TokensForHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
        ctx.cp = cp
        return _tokens_for_heads(x, cp)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _heads_for_tokens(gradients[0], ctx.cp), None


class _HeadsForTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
        ctx.cp = cp
        return _heads_for_tokens(x, cp)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _tokens_for_heads(gradients[0], ctx.cp), None
