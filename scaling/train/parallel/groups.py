"""Ranks find each other and split into groups."""

import dataclasses
import datetime
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from scaling.layout.layout import Layout
from scaling.record.rank_files import RankFiles
from scaling.train.parallel.context import ContextParallel
from scaling.train.parallel.meeting import Seat, meet
from scaling.train.parallel.sharding import hpz_ranks
from scaling.train.parallel.tensor import TensorParallel


def join(seat: Seat, files: RankFiles, device: torch.device, *, timeout_s: float) -> None:
    """Make the process group of all ranks, in torch and in DeepSpeed."""
    port = meet(seat, files, device, timeout_s=timeout_s)
    os.environ["MASTER_PORT"] = str(port)  # DeepSpeed takes its absence for a wish for MPI
    join_deepspeed()


def join_deepspeed() -> None:
    """Make DeepSpeed take the process group that torch has."""
    import deepspeed

    # A shared-memory all-reduce for inference on CPUs: training never calls it, and building it
    # takes a compiler and half a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This rank's coordinates: tp innermost, then cp, dp, pp outermost (as `Layout` says)."""

    tp_rank: int
    cp_rank: int
    dp_rank: int
    pp_rank: int

    @classmethod
    def of(cls, rank: int, layout: Layout) -> "Place":
        """The coordinates of a rank."""
        rest, tp_rank = divmod(rank, layout.tp)
        rest, cp_rank = divmod(rest, layout.cp)
        pp_rank, dp_rank = divmod(rest, layout.dp)
        return cls(tp_rank=tp_rank, cp_rank=cp_rank, dp_rank=dp_rank, pp_rank=pp_rank)


class Groups:
    """The groups of this rank; also the `mpu` that DeepSpeed asks about them.

    `data_group` are the ranks that hold the same weights and other tokens: other sequences (dp) or
    other parts of one sequence (cp). Gradients are averaged over it, and ZeRO shards over it.
    `shard_group` are those of them that hold one more copy of ZeRO-3's parameters together, None
    where there is only the copy of the whole data group.

    A rank makes the groups that it is in and no other: of 2,048 ranks each makes four at most, not
    the hundreds there are. Their members make them in one order, so they agree on their names.
    """

    def __init__(self, rank: int, layout: Layout, *, timeout_s: float) -> None:
        self.layout, self.place = layout, Place.of(rank, layout)
        self._rank, self._timeout = rank, datetime.timedelta(seconds=timeout_s)
        self.tp_group = self._own_group("tp_rank")
        self.cp_group = self._own_group("cp_rank") if layout.cp > 1 else None
        self.data_group = self._own_group("dp_rank", "cp_rank")
        self.shard_group = self._own_shard_group()

    def _own_group(self, *varied: str) -> dist.ProcessGroup:
        """The group of the ranks that differ from this one in these coordinates only."""

        def fixed(place: Place) -> tuple[int, ...]:
            return tuple(at for name, at in dataclasses.asdict(place).items() if name not in varied)

        return self._own_group_by(fixed)

    def _own_shard_group(self) -> dist.ProcessGroup | None:
        """The neighbouring dp ranks, with all cp ranks of each, that share a copy with this one."""
        size = hpz_ranks(self.layout)
        if size is None:
            return None
        replicas = size // self.layout.cp
        return self._own_group_by(
            lambda place: (place.tp_rank, place.pp_rank, place.dp_rank // replicas)
        )

    def _own_group_by(self, key: Callable[[Place], tuple[int, ...]]) -> dist.ProcessGroup:
        """The group of the ranks whose place has this one's key.

        All ranks have one already. A rank alone gets one too, which meets nobody: DeepSpeed would
        take its absence for all ranks.
        """
        own = key(self.place)
        ranks = [
            other
            for other in range(self.layout.world_size)
            if key(Place.of(other, self.layout)) == own
        ]
        if len(ranks) == self.layout.world_size:
            assert dist.group.WORLD is not None
            return dist.group.WORLD
        group: dist.ProcessGroup = dist.new_group(
            ranks, timeout=self._timeout, use_local_synchronization=True
        )
        return group

    def limit_every_collective(self) -> None:
        """Give the groups that DeepSpeed made this one's timeout; its own have torch's default.

        That is 10 minutes with NCCL, less than a first step that compiles may take.
        """
        for group in dist.distributed_c10d._world.pg_map:
            if dist.get_backend(group) in ("gloo", "nccl"):
                dist.distributed_c10d._set_pg_timeout(self._timeout, group)

    @property
    def tensor_parallel(self) -> TensorParallel:
        """This rank's place in its tp group."""
        return TensorParallel(
            size=self.layout.tp,
            rank=self.place.tp_rank,
            group=self.tp_group,
            sequence_parallel=self.layout.sequence_parallel,
        )

    @property
    def context_parallel(self) -> ContextParallel:
        """This rank's place among those that share its sequences."""
        return ContextParallel(size=self.layout.cp, rank=self.place.cp_rank, group=self.cp_group)

    # What DeepSpeed calls model parallel is tp: a Groups is handed over only where pp is 1.

    def get_model_parallel_rank(self) -> int:
        """For DeepSpeed."""
        return self.place.tp_rank

    def get_model_parallel_world_size(self) -> int:
        """For DeepSpeed."""
        return self.layout.tp

    def get_model_parallel_group(self) -> dist.ProcessGroup | None:
        """For DeepSpeed."""
        return self.tp_group

    def get_data_parallel_rank(self) -> int:
        """For DeepSpeed."""
        return self.place.dp_rank * self.layout.cp + self.place.cp_rank

    def get_data_parallel_world_size(self) -> int:
        """For DeepSpeed."""
        return self.layout.dp * self.layout.cp

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        """For DeepSpeed."""
        return self.data_group

    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_world_size = get_model_parallel_world_size
    get_tensor_model_parallel_group = get_model_parallel_group
