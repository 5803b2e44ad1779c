"""How many tokens each expert gets where a router deals them by their places, without numbers."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from scaling.study.point import Point
from scaling.train.model import experts as model_experts
from scaling.train.model.experts import dealt
from scaling.train.parallel import experts as expert_parallel
from scaling.train.parallel.groups import Groups


@contextlib.contextmanager
def tokens_dealt(point: Point, groups: Groups, note: Callable[[str], None]) -> Iterator[None]:
    """Within, a rank that reads how many tokens go to which expert reads what a real one would.

    `note` counts each time as a wait for the device.
    """
    if not point.shape.num_experts:
        yield
        return
    with unset_fake_temporarily():
        numbers = _numbers(point, groups)

    def on_host(counts: torch.Tensor) -> list[Any]:
        note("tolist")
        return numbers[counts.dim()]

    with (
        mock.patch.object(model_experts, "on_host", on_host),
        mock.patch.object(expert_parallel, "on_host", on_host),
    ):
        yield


def _numbers(point: Point, groups: Groups) -> dict[int, list[Any]]:
    """By the dimensions of what is read: tokens of each expert here; sent and received by rank."""
    layout, shape, ep = point.layout, point.shape, groups.expert_parallel
    own = groups.data_rank(groups.place)
    by_rank = []  # [ep, experts], of a micro-batch of each rank of this one's ep group
    for rank in range(own - ep.rank, own - ep.rank + ep.size):
        cp = dataclasses.replace(groups.context_parallel, rank=rank % layout.cp)
        places = cp.share(torch.arange(layout.seq_length), dim=0)
        chosen = dealt(places, shape, layout.routing)
        counts = torch.bincount(chosen.flatten(), minlength=shape.num_experts)
        by_rank.append(counts * layout.micro_batch_size)
    coming = torch.stack(by_rank)[:, [*ep.held(shape.num_experts)]]
    sent = by_rank[ep.rank].view(ep.size, -1).sum(1)
    return {1: coming.sum(0).tolist(), 2: torch.stack((sent, coming.sum(1))).tolist()}
