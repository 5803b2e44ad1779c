"""Experts that are dealt to ranks, in the words in which DeepSpeed asks about its own.

The layer is that of every engine (scaling/train/model/experts.py). Of DeepSpeed's own (MoE, AutoEP)
only what its engine and ZeRO do with weights is used: those that are marked it reduces and shards
over the ranks that hold the same ones, divides by all ranks of the data group, and counts once in
the norm.
"""

import dataclasses
from typing import Any

import deepspeed
from deepspeed.moe.layer import MoE
from torch import nn

from scaling.train.parallel.experts import ExpertParallel
from scaling.train.parallel.groups import Groups


class HasExperts(MoE):  # type: ignore[misc] # DeepSpeed has no types
    """By which DeepSpeed's engine sees that there are layers of experts. It has no weights."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.num_experts = 0  # only checkpoints read it

    def set_deepspeed_parallelism(self, *_: Any) -> None:
        """Nothing: the groups are there (`expert_parallel`)."""


def expert_parallel(groups: Groups) -> ExpertParallel:
    """This rank's place among those that experts are dealt to, its groups known to DeepSpeed.

    Tokens travel over the ep group, which DeepSpeed does not see. Its own notion of one serves
    norms alone, so it is told the ranks that hold all experts together, tp ranks among them.
    """
    dealt = groups.expert_parallel
    if dealt.size == 1:
        return dealt
    name = f"ep_size_{dealt.size}"  # which it reads the size from
    same = groups.experts_group()
    known = deepspeed.utils.groups
    known._EXPERT_DATA_PARALLEL_GROUP = {name: same}
    known._EXPERT_PARALLEL_GROUP = {
        name: groups.own_group_by(lambda p: (p.pp_rank, groups.data_rank(p) // dealt.size))
    }
    return dataclasses.replace(
        dealt,
        marks={
            "allreduce": False,
            "group_name": name,
            # ZeRO-3's
            "ds_zero_placement_family": "autoep_expert",
            "ds_zero_partition_group_name": name,
            "ds_zero_partition_process_group": same,
        },
    )
