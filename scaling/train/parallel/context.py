"""Context parallelism after DeepSpeed-Ulysses: the ranks of a cp group share their sequences.

Each rank holds s / cp tokens of a sequence everywhere but in attention, before which an all-to-all
trades tokens for heads (arXiv 2309.14509): a rank then sees all tokens of n / cp heads. A second
all-to-all undoes it. To the weights the ranks are like replicas that see other data, so gradients
are averaged over cp as they are over dp.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from deepspeed.sequence.layer import DistributedAttention

# query, key, value, and what else a kernel is told (a t5: the position bias of its heads)
Attend = Callable[..., torch.Tensor]

_NO_ROTATION = None  # that function's rotary positions; ours have turned the heads before
_BATCH, _TOKENS, _HEADS = 0, 1, 2  # of [batch, tokens, heads, head_dim]


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
        exchanged = DistributedAttention(attend, self.group, scatter_idx=_HEADS, gather_idx=_TOKENS)

        def attended(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *told: torch.Tensor | None
        ) -> torch.Tensor:
            result: torch.Tensor = exchanged(query, key, value, _BATCH, _NO_ROTATION, *told)
            return result

        return attended
