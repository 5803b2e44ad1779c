"""A rank's groups under the names by which DeepSpeed asks for them.

The expert layers are the project's own (scaling/train/model/expert_layer.py), the same under every
engine. Only the treatment of marked weights in DeepSpeed's expert parallelism (MoE, AutoEP) is
used: its engine and ZeRO reduce and shard them over the ranks with the same experts. They divide by
all ranks of the data group, and count each expert once in the norm.
"""

import dataclasses
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from torch import nn

from scaling.train.engines.deepspeed.config import hpz_partition_size
from scaling.train.parallel.expert_parallel import ExpertParallel
from scaling.train.parallel.groups import Groups


def model_parallel_unit(groups: Groups) -> SimpleNamespace:
    """DeepSpeed's `mpu`, needed only where pp is 1. Its model parallelism is tp."""
    place, layout = groups.place, groups.layout
    tp = {"rank": place.tp_rank, "world_size": layout.tp, "group": groups.tensor_parallel.group}
    answers = {
        **{f"model_parallel_{name}": answer for name, answer in tp.items()},
        **{f"tensor_model_parallel_{name}": answer for name, answer in tp.items()},
        "data_parallel_rank": groups.data_rank(place),
        "data_parallel_world_size": layout.dp * layout.cp,
        "data_parallel_group": groups.data_group,
    }
    return SimpleNamespace(**{f"get_{name}": lambda a=a: a for name, a in answers.items()})


def hpz_group(groups: Groups) -> dist.ProcessGroup | None:
    """The ranks that share one secondary copy of ZeRO-3's parameters; see `hpz_partition_size`."""
    size = hpz_partition_size(groups.layout)
    if size is None:
        return None
    return groups.group_by(lambda p: (p.tp_rank, p.pp_rank, groups.data_rank(p) // size))


class ExpertsMarker(MoE):  # type: ignore[misc] # DeepSpeed has no types
    """A module without weights by which DeepSpeed's engine sees that the model has experts."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.num_experts = 0  # only checkpoints read it

    def set_deepspeed_parallelism(self, *_: Any) -> None:
        """Nothing to do: `register_expert_groups` has made the groups."""


def register_expert_groups(groups: Groups) -> ExpertParallel:
    """This rank's place in its ep group, with its groups registered in DeepSpeed.

    Tokens travel over the ep group, which DeepSpeed does not see. DeepSpeed uses its own expert
    parallel group for norms only, so it is given the ranks that together hold all experts, tp ranks
    included.
    """
    ep = groups.expert_parallel
    if ep.size == 1:
        return ep
    name = f"ep_size_{ep.size}"  # DeepSpeed reads the size from it
    same_experts = groups.expert_data_group()
    deepspeed.utils.groups._EXPERT_DATA_PARALLEL_GROUP = {name: same_experts}
    deepspeed.utils.groups._EXPERT_PARALLEL_GROUP = {
        name: groups.group_by(lambda p: (p.pp_rank, groups.data_rank(p) // ep.size))
    }
    return dataclasses.replace(
        ep,
        marks={
            "allreduce": False,
            "group_name": name,
            # read by ZeRO-3
            "ds_zero_placement_family": "autoep_expert",
            "ds_zero_partition_group_name": name,
            "ds_zero_partition_process_group": same_experts,
        },
    )
