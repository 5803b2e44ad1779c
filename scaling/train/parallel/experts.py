"""Expert parallelism: the ranks of an ep group each hold some experts, and tokens travel to them.

The ranks of a group are neighbours of the data group (dp and cp). Each has tokens of its own, sends
every copy of one to the rank of its expert, and gets what the expert made of it back
(arXiv 2006.16668).
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scaling.train.parallel.conjugate import conjugate

# Tokens in the order of their experts, and how many each expert gets -> the same tokens
ExpertFunction = Callable[[Tensor, Tensor], Tensor]


def read_counts(counts: Tensor) -> list[Any]:
    """The numbers themselves, which sizes are made of: the host waits for the device once."""
    numbers: list[Any] = counts.tolist()
    return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertParallel:
    """This rank's place in its ep group. `group` is None where the group is this rank alone.

    `marks` are attributes by which an engine knows a weight of experts that are dealt to ranks. Its
    gradient is the sum over the tokens of the whole group: an engine divides it by all ranks of the
    data group, not by those alone that hold the same experts.
    """

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None
    marks: Mapping[str, Any] = field(default_factory=dict)

    def local_experts(self, num_experts: int) -> range:
        """The experts of this rank."""
        each = num_experts // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def mark(self, weight: nn.Parameter) -> nn.Parameter:
        """A weight of this rank's experts."""
        vars(weight).update(self.marks)
        return weight

    def dispatch(self, experts: ExpertFunction, tokens: Tensor, counts: Tensor) -> Tensor:
        """What the experts of all ranks make of this rank's tokens.

        Args:
            experts: this rank's.
            tokens: copies in the order of their experts, [n, h].
            counts: copies for each expert of the model, int64 [num_experts].

        Returns:
            [n, h], in the same order.
        """
        if self.size == 1:
            return experts(tokens, counts)
        by_rank = counts.view(self.size, -1)
        coming = torch.empty_like(by_rank)  # from each rank for each expert of this one
        dist.all_to_all_single(coming, by_rank.contiguous(), group=self.group)
        sent, received = read_counts(torch.stack((by_rank.sum(1), coming.sum(1))))
        arrived = _exchanged(tokens, sent, received, self)
        expert_of = torch.arange(coming.shape[1], device=counts.device).repeat(self.size)
        of_tokens = expert_of.repeat_interleave(coming.flatten(), output_size=len(arrived))
        by_expert = of_tokens.argsort(stable=True)
        made = experts(arrived[by_expert], coming.sum(0))
        back = torch.empty_like(made).index_copy(0, by_expert, made)
        return _exchanged(back, received, sent, self)


def _exchanged(x: Tensor, sent: list[int], received: list[int], ep: ExpertParallel) -> Tensor:
    back = functools.partial(_all_to_all, sent=received, received=sent, ep=ep)
    return conjugate(functools.partial(_all_to_all, sent=sent, received=received, ep=ep), back, x)


def _all_to_all(x: Tensor, sent: list[int], received: list[int], ep: ExpertParallel) -> Tensor:
    arrived = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(arrived, x.contiguous(), received, sent, group=ep.group)
    return arrived
