"""Sharding of weights over the data-parallel ranks with FSDP2: who holds what, and when it moves.

The meaning of ZeRO's stages here, each with one FSDP2 group of weights per layer:

    0  every rank holds everything; each gradient is averaged once a step, when it is complete
    1  optimizer states and their fp32 weights are sharded; weights are gathered once a step,
       gradients are reduced once a step
    2  gradients are sharded too: they are reduced after each micro-batch
    3  weights are sharded too: they are gathered for each forward and again for each backward

With `zero_shard_size` neighbouring ranks share one sharded copy, and an all-reduce of each shard's
gradients keeps the copies equal (HSDP). In 16 bits the sharded weights are fp32 and are cast when
they are gathered, unless `optimizer_precision` is bf16; gradients travel in 16 bits, FSDP2's
default. If nothing is sharded or cast, FSDP2 would copy every weight and every gradient twice a
step, so gradients are all-reduced in place instead.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.nn.modules.module import register_module_module_registration_hook

from scaling.layout.layout import Layout
from scaling.train.engines.trainer import LAYERS
from scaling.train.model.blueprint import Blueprint
from scaling.train.model.decoder import Embedding, Head
from scaling.train.model.expert_layer import Experts
from scaling.train.parallel.groups import Groups

_REPLICAS_MARK = "replicas_of_expert"  # on weights of experts that are distributed over ranks


class Sharding:
    """The layout's sharding of a model, or of one pipeline stage, on this rank.

    `uses_fsdp` is False where weights are whole and in the precision they train in: nothing to
    shard, cast or move. Gradients are then sums over `summed_ranks` ranks, else means.
    `replicas` is how many ranks of the data group hold the same part of a weight.
    """

    def __init__(self, plan: Blueprint, groups: Groups) -> None:
        layout = plan.layout
        self._layout, self._device = layout, plan.device
        # what weights are cast to when they are gathered; None: they are sharded as they are
        casts = plan.dtype != torch.float32 and layout.optimizer_precision == "fp32"
        self._dtype = plan.dtype if casts else None
        data_ranks = layout.dp * layout.cp
        # a pipeline's schedules reduce through FSDP2, and experts over groups of their own
        whole = layout.zero_stage == 0 and layout.pp == layout.ep == 1
        unchanged = self._dtype is None and layout.optimizer_offload == "none"
        self.uses_fsdp = not (unchanged and (whole or data_ranks == 1))
        self.replicas = self.summed_ranks = 1 if self.uses_fsdp else data_ranks
        self._group, self._in_last_micro_batch = groups.data_group, False
        self._reductions: list[dist.Work] = []
        self._parts: tuple[type[nn.Module], ...] = LAYERS
        if not plan.shape.tied_embeddings:  # a tied weight joins the group that holds both modules
            self._parts += (Embedding, Head)
        self._expert_mesh: DeviceMesh | None = None
        if layout.ep > 1:
            self._parts += (Experts,)
            self._expert_mesh = expert_mesh(groups, plan.device.type)
        if self.uses_fsdp:
            self._mesh = data_mesh(layout, groups, plan.device.type)
            shards = 1 if self._replicates else self._mesh.size(self._mesh.ndim - 1)
            self.replicas = data_ranks // shards

    @property
    def _replicates(self) -> bool:
        return self._layout.zero_stage == 0 and self._layout.dp * self._layout.cp > 1

    @contextlib.contextmanager
    def applied_while_building(self) -> Iterator[None]:
        """Shard each part of a model when it is built: the whole may not fit one device."""
        if not self.uses_fsdp:
            yield
            return

        def shard_part(_: nn.Module, __: str, part: nn.Module | None) -> None:
            if isinstance(part, self._parts):
                self.apply(part)

        hook = register_module_module_registration_hook(shard_part)
        try:
            yield
        finally:
            hook.remove()

    def apply(self, module: nn.Module) -> None:
        """Shard the weights of this module that are not sharded yet, as one group."""
        if not self.uses_fsdp:
            for weight in module.parameters() if self.summed_ranks > 1 else ():
                weight.register_post_accumulate_grad_hook(self._begin_all_reduce)
            return
        for weight in module.parameters():
            if self._dtype is not None and weight.dtype != torch.float32:
                weight.data = weight.data.float()
        offload = OffloadPolicy()
        if self._layout.optimizer_offload == "cpu":
            offload = CPUOffloadPolicy(pin_memory=self._device.type == "cuda")
        precision = MixedPrecisionPolicy(param_dtype=self._dtype, cast_forward_inputs=False)
        mesh, replicates = self._mesh, self._replicates
        if self._expert_mesh is not None and isinstance(module, Experts):
            mesh = self._expert_mesh
            for weight in module.parameters():
                setattr(weight, _REPLICAS_MARK, mesh.size() if replicates else 1)
        marks = [dict(vars(weight)) for weight in module.parameters()]
        reshard = self._layout.zero_stage == 3
        shard: Any = functools.partial(fully_shard, reshard_after_forward=reshard)
        if replicates:
            shard = replicate
        shard(module, mesh=mesh, mp_policy=precision, offload_policy=offload)
        for weight, mark in zip(module.parameters(), marks, strict=True):
            vars(weight).update(mark)  # FSDP2 has replaced the weights by its own

    def before_micro_batch(self, module: nn.Module, *, last: bool) -> None:
        """Say whether the coming backward reduces gradients and frees gathered weights."""
        self._in_last_micro_batch = last
        if not self.uses_fsdp:
            return
        assert isinstance(module, FSDPModule)
        module.set_requires_gradient_sync(last or self._layout.zero_stage >= 2)
        module.set_reshard_after_backward(last or self._layout.zero_stage == 3)

    def _begin_all_reduce(self, weight: torch.Tensor) -> None:
        """Sum a gradient over the data group as soon as it is complete, beside backward."""
        if self._in_last_micro_batch:
            assert weight.grad is not None
            work = dist.all_reduce(weight.grad, group=self._group, async_op=True)
            self._reductions.append(work)

    def wait_for_reductions(self) -> None:
        """Wait for the all-reduces that backward began."""
        for work in self._reductions:
            work.wait()
        self._reductions.clear()


def is_expert_weight(weight: nn.Parameter) -> bool:
    """Whether the weight belongs to experts that are distributed over ranks."""
    return hasattr(weight, _REPLICAS_MARK)


def replicas_of(weight: nn.Parameter, default: int) -> int:
    """Ranks of the data group that hold this part of a weight; expert weights carry a mark."""
    return int(getattr(weight, _REPLICAS_MARK, default))


def expert_mesh(groups: Groups, device: str) -> DeviceMesh:
    """The ranks that hold the same experts, [ranks]."""
    return DeviceMesh.from_group(groups.expert_data_group(), device, mesh_dim_names=("experts",))


def data_mesh(layout: Layout, groups: Groups, device: str) -> DeviceMesh:
    """The data group, [ranks]; with a smaller `zero_shard_size` [copies, ranks that share one]."""
    assert groups.data_group is not None
    size = layout.zero_shard_size
    if size is None or size == layout.dp:
        return DeviceMesh.from_group(groups.data_group, device, mesh_dim_names=("data",))
    shards = groups.group_by(lambda p: (p.tp_rank, p.pp_rank, p.dp_rank // size))
    copies = groups.group_by(lambda p: (p.tp_rank, p.pp_rank, p.cp_rank, p.dp_rank % size))
    ranks = torch.tensor(dist.get_process_group_ranks(groups.data_group))
    return DeviceMesh.from_group(
        [copies, shards],
        device,
        mesh=ranks.view(-1, size * layout.cp),
        mesh_dim_names=("copies", "shards"),
    )
