"""The process groups of a rank, one for each parallel axis."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist

from scaling.layout.layout import Layout
from scaling.train.parallel.context import ContextParallel
from scaling.train.parallel.expert_parallel import ExpertParallel
from scaling.train.parallel.tensor import TensorParallel

EP = "ep"  # description of the group of expert all-to-alls, by which a trace tells it apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A rank's coordinates: tp innermost, then cp, dp, and pp outermost (see `Layout`)."""

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

    `data_group` holds the ranks with the same weights and other tokens: other sequences (dp) or
    other parts of one sequence (cp). Gradients are averaged over it, and ZeRO shards over it.
    `tensor_parallel`, `context_parallel` and `expert_parallel` are this rank's places in its tp, cp
    and ep group.

    A rank makes only the groups it is in: of 2,048 ranks each makes four at most, not all hundreds.
    All members make their groups in the same order, so they agree on the groups' names.
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
        if ep > 1:  # neighbours in the data group, each with other experts
            group = self.group_by(
                lambda p: (p.tp_rank, p.pp_rank, self.data_rank(p) // ep), description=EP
            )
            ep_rank = self.data_rank(self.place) % ep
            self.expert_parallel = ExpertParallel(size=ep, rank=ep_rank, group=group)

    def data_rank(self, place: Place) -> int:
        """The rank of a place within its data group."""
        return place.dp_rank * self.layout.cp + place.cp_rank

    def expert_data_group(self) -> dist.ProcessGroup:
        """The ranks of the data group that hold the same experts as this one."""
        return self.group_by(lambda p: (p.tp_rank, p.pp_rank, self.data_rank(p) % self.layout.ep))

    def group_by(
        self, key: Callable[[Place], tuple[int, ...]], *, description: str | None = None
    ) -> dist.ProcessGroup:
        """The group of the ranks whose places have the same key as this rank's place.

        The group of all ranks is reused, except with a `description`, by which the trace tells the
        new group's traffic from others'. A single rank gets a group too, since an engine may take a
        missing group for the group of all ranks.
        """
        own_key, layout = key(self.place), self.layout
        ranks = [r for r in range(layout.world_size) if key(Place.of(r, layout)) == own_key]
        if description is None and len(ranks) == layout.world_size:
            assert dist.group.WORLD is not None
            return dist.group.WORLD
        group: dist.ProcessGroup = dist.new_group(
            ranks, timeout=self._timeout, use_local_synchronization=True, group_desc=description
        )
        return group

    def apply_timeout_to_all_groups(self) -> None:
        """Set this timeout on the groups that the engine made, too.

        With NCCL they have 10 minutes by default, less than a first step that compiles may take.
        """
        for group in dist.distributed_c10d._world.pg_map:
            if dist.get_backend(group) in ("gloo", "nccl"):
                dist.distributed_c10d._set_pg_timeout(self._timeout, group)
