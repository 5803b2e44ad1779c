"""The groups of one rank, made without the others."""

import datetime
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from scaling.layout.layout import Layout
from scaling.train.engines.deepspeed.expert_groups import hpz_group
from scaling.train.parallel.groups import Groups

FEW = datetime.timedelta(seconds=77)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[int]:
    rank, size = request.param
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    yield rank
    dist.destroy_process_group()


def ranks_of(group: dist.ProcessGroup | None) -> list[int]:
    assert group is not None
    return dist.get_process_group_ranks(group)


@pytest.mark.parametrize("world", [(1030, 2048)], indirect=True)
def test_a_rank_of_thousands_makes_its_own_groups_only(world: int) -> None:
    layout = Layout(tp=8, pp=8, dp=32, seq_length=4096)
    groups = Groups(world, layout, timeout_s=77)
    assert ranks_of(groups.tensor_parallel.group) == list(range(1024, 1032))
    assert ranks_of(groups.data_group) == list(range(1030, 1280, 8))
    assert groups.context_parallel.group is None
    assert len(dist.distributed_c10d._world.pg_map) == 3


@pytest.mark.parametrize("world", [(3, 8)], indirect=True)
def test_all_ranks_are_the_group_that_is_there(world: int) -> None:
    groups = Groups(
        world, Layout(dp=8, zero_stage=3, zero_shard_size=2, seq_length=8), timeout_s=77
    )
    assert groups.data_group is dist.group.WORLD
    assert ranks_of(hpz_group(groups)) == [2, 3]
    # alone, and made without the other ranks; DeepSpeed would take None for all ranks
    assert ranks_of(groups.tensor_parallel.group) == [3]


def test_every_group_has_the_timeout_of_the_point() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=FEW)  # type: ignore[attr-defined]
    try:
        groups = Groups(0, Layout(seq_length=8), timeout_s=77)
        others = dist.new_group([0])  # as DeepSpeed makes its own
        assert timeout_of(others) != FEW
        groups.apply_timeout_to_all_groups()
        assert {timeout_of(group) for group in dist.distributed_c10d._world.pg_map} == {FEW}
    finally:
        dist.destroy_process_group()


def timeout_of(group: dist.ProcessGroup) -> datetime.timedelta:
    found: datetime.timedelta = group._get_backend(next(iter(group._device_types))).options._timeout
    return found
