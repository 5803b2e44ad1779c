"""What lets the host wait for its device: draining it, and reading what it has computed.

Among the latter are the tokens of each expert, which are known where a router deals them by their
places.
"""

import contextlib
import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from scaling.study.point import Point
from scaling.train.model import experts as model_experts
from scaling.train.model.experts import experts_by_position
from scaling.train.parallel import experts as expert_parallel
from scaling.train.parallel.groups import Groups

# Each copies a number to the host, so everything queued before must be done. A fake tensor has no
# number: it reads as nothing, which is what a finite loss and a norm below any bound look like.
_READ: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda _: 0.0,
    "__bool__": lambda _: False,
    "__float__": lambda _: 0.0,
    "__int__": lambda _: 0,
    "tolist": lambda tensor: [0] * tensor.numel(),
}


class Waits:
    """Counts waits by kind and by the line of code that asked."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def note(self, kind: str) -> None:
        """Count one wait."""
        self._seen[kind, _caller()] += 1

    def clear(self) -> None:
        """Forget what was counted."""
        self._seen.clear()

    def by_kind(self) -> dict[str, int]:
        """How often each kind was."""
        return dict(sorted(Counter(kind for kind, _ in self._seen.elements()).items()))

    def by_place(self) -> dict[str, int]:
        """How often at each line."""
        return dict(sorted(Counter(" ".join(each) for each in self._seen.elements()).items()))

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Within, reads of fake tensors are counted and answered."""
        with contextlib.ExitStack() as stack:
            for name in _READ:
                stack.enter_context(mock.patch.object(Tensor, name, self._reading(name)))
            stack.enter_context(mock.patch.object(torch.cuda, "synchronize", self._draining))
            yield

    def _draining(self, *_: Any) -> None:
        self.note("synchronize")

    def _reading(self, name: str) -> Callable[[Tensor], Any]:
        real = getattr(Tensor, name)

        def read(tensor: Tensor) -> Any:
            if not isinstance(tensor, FakeTensor):
                return real(tensor)
            self.note(name.strip("_"))
            return _READ[name](tensor)

        return read


def _caller() -> str:
    """The nearest line of code that is neither torch's nor a rehearsal's."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        own = path.parent == Path(__file__).parent or path.name == "rehearsal.py"
        if not own and "torch" not in path.parts:
            return f"{path.parent.name}/{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


@contextlib.contextmanager
def known_expert_counts(
    point: Point, groups: Groups, note: Callable[[str], None]
) -> Iterator[None]:
    """Within, a rank that reads how many tokens go to which expert reads what a real one would.

    `note` counts each time as a wait for the device.
    """
    if not point.shape.num_experts:
        yield
        return
    with unset_fake_temporarily():
        numbers = _numbers(point, groups)

    def read_counts(counts: torch.Tensor) -> list[Any]:
        note("tolist")
        return numbers[counts.dim()]

    with (
        mock.patch.object(model_experts, "read_counts", read_counts),
        mock.patch.object(expert_parallel, "read_counts", read_counts),
    ):
        yield


def _numbers(point: Point, groups: Groups) -> dict[int, list[Any]]:
    """By the dimensions of what is read: tokens of each expert here; sent and received by rank."""
    layout, shape, ep = point.layout, point.shape, groups.expert_parallel
    own = groups.data_rank(groups.place)
    by_rank = []  # [ep, experts], of a micro-batch of each rank of this one's ep group
    for rank in range(own - ep.rank, own - ep.rank + ep.size):
        cp = dataclasses.replace(groups.context_parallel, rank=rank % layout.cp)
        places = cp.shard(torch.arange(layout.seq_length), dim=0)
        chosen = experts_by_position(places, shape, layout.routing)
        counts = torch.bincount(chosen.flatten(), minlength=shape.num_experts)
        by_rank.append(counts * layout.micro_batch_size)
    coming = torch.stack(by_rank)[:, [*ep.local_experts(shape.num_experts)]]
    sent = by_rank[ep.rank].view(ep.size, -1).sum(1)
    return {1: coming.sum(0).tolist(), 2: torch.stack((sent, coming.sum(1))).tolist()}
