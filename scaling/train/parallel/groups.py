"""Ranks split into groups."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist

from scaling.layout.layout import Layout
from scaling.train.parallel.context import ContextParallel
from scaling.train.parallel.experts import ExpertParallel
from scaling.train.parallel.tensor import TensorParallel

EP = "ep"  # how the group of all-to-alls among experts is called, so that a trace tells it apart


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
    """The groups of this rank.

    `data_group` are the ranks that hold the same weights and other tokens: other sequences (dp) or
    other parts of one sequence (cp). Gradients are averaged over it, and ZeRO shards over it.
    The others are this rank's places: in its tp group, among those that share its sequences, among
    those that the experts are dealt to.

    A rank makes the groups that it is in and no other: of 2,048 ranks each makes four at most, not
    the hundreds there are. Their members make them in one order, so they agree on their names.
    """

    def __init__(self, rank: int, layout: Layout, *, timeout_s: float) -> None:
        self.layout, self.place = layout, Place.of(rank, layout)
        self._rank, self._timeout = rank, datetime.timedelta(seconds=timeout_s)
        self.tensor_parallel = TensorParallel(
            size=layout.tp,
            rank=self.place.tp_rank,
            group=self.group_by(lambda p: (p.cp_rank, p.dp_rank, p.pp_rank)),
            sequence_parallel=layout.sequence_parallel,
        )
        self.context_parallel = ContextParallel(
            size=layout.cp,
            rank=self.place.cp_rank,
            group=self.group_by(lambda p: (p.tp_rank, p.dp_rank, p.pp_rank))
            if layout.cp > 1
            else None,
            ring=layout.cp_style == "ring",
        )
        self.data_group = self.group_by(lambda p: (p.tp_rank, p.pp_rank))
        ep = layout.ep
        self.expert_parallel = ExpertParallel()
        if ep > 1:  # neighbours of the data group, each with other experts
            group = self.group_by(
                lambda p: (p.tp_rank, p.pp_rank, self.data_rank(p) // ep), called=EP
            )
            own = self.data_rank(self.place) % ep
            self.expert_parallel = ExpertParallel(size=ep, rank=own, group=group)

    def data_rank(self, place: Place) -> int:
        """A place among the ranks of its data group."""
        return place.dp_rank * self.layout.cp + place.cp_rank

    def expert_data_group(self) -> dist.ProcessGroup:
        """The ranks of the data group that hold the same experts as this one."""
        return self.group_by(
            lambda place: (place.tp_rank, place.pp_rank, self.data_rank(place) % self.layout.ep)
        )

    def group_by(
        self, key: Callable[[Place], tuple[int, ...]], *, called: str | None = None
    ) -> dist.ProcessGroup:
        """The group of the ranks whose place has this one's key.

        All ranks have one already, but one that is `called` something is new in any case: the trace
        tells its traffic from others' by that. A rank alone gets one too, which meets nobody: an
        engine may take its absence for all ranks.
        """
        own, layout = key(self.place), self.layout
        ranks = [rank for rank in range(layout.world_size) if key(Place.of(rank, layout)) == own]
        if called is None and len(ranks) == layout.world_size:
            assert dist.group.WORLD is not None
            return dist.group.WORLD
        group: dist.ProcessGroup = dist.new_group(
            ranks, timeout=self._timeout, use_local_synchronization=True, group_desc=called
        )
        return group

    def apply_timeout_to_all_groups(self) -> None:
        """Give the groups that the engine made this one's timeout; they have torch's default.

        That is 10 minutes with NCCL, less than a first step that compiles may take.
        """
        for group in dist.distributed_c10d._world.pg_map:
            if dist.get_backend(group) in ("gloo", "nccl"):
                dist.distributed_c10d._set_pg_timeout(self._timeout, group)
