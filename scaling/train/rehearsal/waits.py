"""Count the host's waits for its device: draining it, and reading what it has computed.

Each expert's token count is read too. A rehearsal knows it where a router assigns tokens by
position.
"""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from scaling.study.point import Point
from scaling.train.model import expert_layer as model_experts
from scaling.train.model.expert_layer import experts_by_position
from scaling.train.parallel import expert_parallel as expert_parallel
from scaling.train.parallel.groups import Groups

# Each copies a number to the host, so all work queued before must be done. A fake tensor has no
# number and reads as 0, which stands for a finite loss and a norm below any bound.
_READ: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda _: 0.0,
    "__bool__": lambda _: False,
    "__float__": lambda _: 0.0,
    "__int__": lambda _: 0,
    "tolist": lambda tensor: [0] * tensor.numel(),
}


class Waits(Counter[str]):
    """How often the host waited, by kind."""

    def note(self, kind: str) -> None:
        """Count one wait."""
        self[kind] += 1

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """While active, count reads of fake tensors and answer them."""

        def synchronize(*_: Any) -> None:
            self.note("synchronize")

        reads: dict[str, Any] = {name: self._reading(name) for name in _READ}
        with (
            mock.patch.multiple(Tensor, **reads),
            mock.patch.object(torch.cuda, "synchronize", synchronize),
        ):
            yield

    def _reading(self, name: str) -> Callable[[Tensor], Any]:
        real = getattr(Tensor, name)

        def read(tensor: Tensor) -> Any:
            if not isinstance(tensor, FakeTensor):
                return real(tensor)
            self.note(name.strip("_"))
            return _READ[name](tensor)

        return read


@contextlib.contextmanager
def known_expert_counts(
    point: Point, groups: Groups, note: Callable[[str], None]
) -> Iterator[None]:
    """While active, reads of experts' token counts return what a real rank would read.

    `note` counts each as a wait for the device.
    """
    if not point.shape.num_experts:
        yield
        return
    with unset_fake_temporarily():
        counts_by_dim = _expert_counts(point, groups)

    def read_counts(counts: torch.Tensor) -> list[Any]:
        note("tolist")
        return counts_by_dim[counts.dim()]

    with (
        mock.patch.object(model_experts, "read_counts", read_counts),
        mock.patch.object(expert_parallel, "read_counts", read_counts),
    ):
        yield


def _expert_counts(point: Point, groups: Groups) -> dict[int, list[Any]]:
    """The counts that a rank reads, by the dimensions of their tensor.

    1: tokens of each local expert. 2: tokens sent to and received from each rank of the ep group.
    """
    layout, shape, ep = point.layout, point.shape, groups.expert_parallel
    first_rank = groups.data_rank(groups.place) - ep.rank
    by_rank = []  # [ep, experts]: tokens in a micro-batch of each rank of the ep group
    for rank in range(first_rank, first_rank + ep.size):
        cp = dataclasses.replace(groups.context_parallel, rank=rank % layout.cp)
        positions = cp.shard(torch.arange(layout.seq_length), dim=0)
        chosen = experts_by_position(positions, shape, layout.routing)
        counts = torch.bincount(chosen.flatten(), minlength=shape.num_experts)
        by_rank.append(counts * layout.micro_batch_size)
    incoming = torch.stack(by_rank)[:, [*ep.local_experts(shape.num_experts)]]
    sent = by_rank[ep.rank].view(ep.size, -1).sum(1)
    return {1: incoming.sum(0).tolist(), 2: torch.stack((sent, incoming.sum(1))).tolist()}
