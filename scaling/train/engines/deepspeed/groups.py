"""A rank's groups in the words in which DeepSpeed asks for them.

Layers of experts are those of every engine (scaling/train/model/experts.py). Of DeepSpeed's own
(MoE, AutoEP) only what its engine and ZeRO do with weights is used: those that are marked it
reduces and shards over the ranks that hold the same ones, divides by all ranks of the data group,
and counts once in the norm.
"""

import dataclasses
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from torch import nn

from scaling.train.engines.deepspeed.config import hpz_partition_size
from scaling.train.parallel.experts import ExpertParallel
from scaling.train.parallel.groups import Groups


def model_parallel_unit(groups: Groups) -> SimpleNamespace:
    """The `mpu` of DeepSpeed. Its model parallelism is tp: it gets one only where pp is 1."""
    place, layout = groups.place, groups.layout
    alike = {  # ranks that share every layer
        "rank": place.tp_rank,
        "world_size": layout.tp,
        "group": groups.tensor_parallel.group,
    }
    answers = {
        **{f"model_parallel_{name}": answer for name, answer in alike.items()},
        **{f"tensor_model_parallel_{name}": answer for name, answer in alike.items()},
        # ranks that hold the same weights
        "data_parallel_rank": groups.data_rank(place),
        "data_parallel_world_size": layout.dp * layout.cp,
        "data_parallel_group": groups.data_group,
    }
    return SimpleNamespace(**{f"get_{name}": lambda a=a: a for name, a in answers.items()})


def hpz_group(groups: Groups) -> dist.ProcessGroup | None:
    """ZeRO-3's secondary partition (hpZ): the ranks that share one more copy of the parameters."""
    ranks = hpz_partition_size(groups.layout)
    if ranks is None:
        return None
    return groups.group_by(
        lambda place: (place.tp_rank, place.pp_rank, groups.data_rank(place) // ranks)
    )


class ExpertsMarker(MoE):  # type: ignore[misc] # DeepSpeed has no types
    """By which DeepSpeed's engine sees that there are layers of experts. It has no weights."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.num_experts = 0  # only checkpoints read it

    def set_deepspeed_parallelism(self, *_: Any) -> None:
        """Nothing: the groups are there (`register_expert_groups`)."""


def register_expert_groups(groups: Groups) -> ExpertParallel:
    """This rank's place among those that experts are dealt to, its groups known to DeepSpeed.

    Tokens travel over the ep group, which DeepSpeed does not see. Its own notion of one serves
    norms alone, so it is told the ranks that hold all experts together, tp ranks among them.
    """
    dealt = groups.expert_parallel
    if dealt.size == 1:
        return dealt
    name = f"ep_size_{dealt.size}"  # which it reads the size from
    same = groups.expert_data_group()
    known = deepspeed.utils.groups
    known._EXPERT_DATA_PARALLEL_GROUP = {name: same}
    known._EXPERT_PARALLEL_GROUP = {
        name: groups.group_by(lambda p: (p.pp_rank, groups.data_rank(p) // dealt.size))
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
