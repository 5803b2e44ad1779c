"""Expert parallelism: each rank of an ep group holds some experts, and tokens travel to them.

An ep group consists of neighbours in the data group (dp and cp). Each rank has its own tokens. It
sends each copy of a token to the rank of its expert and receives the expert's output
(arXiv 2006.16668).
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scaling.train.parallel.conjugate import conjugate

# Tokens [n, h] in the order of their experts and each expert's count -> outputs [n, h], same order
ExpertFunction = Callable[[Tensor, Tensor], Tensor]


def read_counts(counts: Tensor) -> list[Any]:
    """Copy counts to the host, which needs them as sizes; it waits for the device once."""
    numbers: list[Any] = counts.tolist()
    return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertParallel:
    """This rank's place in its ep group. `group` is None where the group is this rank alone.

    `marks` are the attributes by which an engine recognizes the weights of distributed experts.
    Their gradients are sums over the tokens of the whole ep group. So an engine divides them by all
    ranks of the data group, not only by those that hold the same experts.
    """

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None
    marks: Mapping[str, Any] = field(default_factory=dict)

    def local_experts(self, num_experts: int) -> range:
        """The experts of this rank."""
        each = num_experts // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def dispatch(self, experts: ExpertFunction, tokens: Tensor, counts: Tensor) -> Tensor:
        """Run this rank's tokens through the experts of all ranks; collective over the ep group.

        Args:
            experts: this rank's experts.
            tokens: one copy for each chosen expert, in the order of the experts, [n, h].
            counts: copies for each expert of the model, int64 [num_experts].

        Returns:
            The experts' outputs, [n, h], in the same order.
        """
        if self.size == 1:
            return experts(tokens, counts)
        by_rank = counts.view(self.size, -1)
        incoming = torch.empty_like(by_rank)  # [rank, local expert]: copies that each rank sends
        dist.all_to_all_single(incoming, by_rank.contiguous(), group=self.group)
        sent, received = read_counts(torch.stack((by_rank.sum(1), incoming.sum(1))))
        arrived = _exchange(tokens, sent, received, self)
        local_experts = torch.arange(incoming.shape[1], device=counts.device).repeat(self.size)
        expert_of = local_experts.repeat_interleave(incoming.flatten(), output_size=len(arrived))
        by_expert = expert_of.argsort(stable=True)
        by_arrival = inverse_of(by_expert)
        outputs = experts(permute(arrived, by_expert, by_arrival), incoming.sum(0))
        return _exchange(permute(outputs, by_arrival, by_expert), received, sent, self)


def inverse_of(order: Tensor) -> Tensor:
    """The permutation that undoes this one."""
    places = torch.arange(len(order), device=order.device)
    return torch.empty_like(order).index_copy_(0, order, places)


def permute(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Rows of x in this order. Backward of torch's own indexing would sort or add atomically."""
    return conjugate(_take, lambda g, order, inverse: _take(g, inverse), x, order, inverse)


def copy_for_experts(tokens: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Each token once for each of its experts, in this order of the copies: [n, h] -> [n k, h]."""
    count = len(order) // len(tokens)

    def copied(x: Tensor, order: Tensor, _: Tensor) -> Tensor:
        return _take(x, order // count)

    def added(gradient: Tensor, _: Tensor, inverse: Tensor) -> Tensor:
        by_token: Tensor = _take(gradient, inverse).unflatten(0, (-1, count))
        return by_token.sum(1)

    return conjugate(copied, added, tokens, order, inverse)


def _take(x: Tensor, rows: Tensor, *_: Tensor) -> Tensor:
    return x.index_select(0, rows)


def _exchange(x: Tensor, sent: list[int], received: list[int], ep: ExpertParallel) -> Tensor:
    """[sum(sent), h] -> [sum(received), h]: rows to and from each rank of the ep group."""
    back = functools.partial(_all_to_all, sent=received, received=sent, ep=ep)
    return conjugate(functools.partial(_all_to_all, sent=sent, received=received, ep=ep), back, x)


def _all_to_all(x: Tensor, sent: list[int], received: list[int], ep: ExpertParallel) -> Tensor:
    arrived = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(arrived, x.contiguous(), received, sent, group=ep.group)
    return arrived
