"""Weights over the ranks that see other tokens: who holds which part, and when parts travel.

What the stages of ZeRO mean here, each by FSDP2 with a group of weights per layer:

    0  every rank holds everything; gradients are averaged once a step, each when it is complete
    1  optimizer states and their fp32 weights are sharded; weights are gathered once a step,
       gradients are reduced once a step
    2  and gradients: they are reduced after each micro-batch
    3  and weights: they are gathered for each forward and again for each backward

With `zero_shard_size` neighbouring ranks hold one sharded copy together, and the copies are kept
equal by an all-reduce of what each shard's gradients are (HSDP). In 16 bits the sharded weights are
fp32 and are cast when they are gathered, unless `optimizer_precision` is bf16; gradients travel in
16 bits, FSDP2's default. Where nothing is sharded or cast FSDP2 would copy every weight and every
gradient twice a step: there gradients are summed where they lie.
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
from scaling.train.model.blueprint import Blueprint
from scaling.train.model.decoder import Embedding, Head, Layer
from scaling.train.model.encoder_decoder import DecoderLayer, EncoderLayer
from scaling.train.model.experts import Experts
from scaling.train.parallel.groups import Groups

LAYERS = (Layer, EncoderLayer, DecoderLayer)
_COPIES = "copies_of_experts"  # on weights of experts that are dealt to ranks
_TP_MARK = "tensor_model_parallel"  # on weights of which each tp rank holds another part


class Sharding:
    """The layout's sharding of a model, or of a stage of one, on this rank.

    `copies` is how many ranks of the data group hold the same part of a weight, `applied` whether
    FSDP2 stands around the model: where weights are whole and as they train there is nothing to
    shard, to cast or to move. Gradients are then sums over the `summed` ranks, else means.
    """

    def __init__(self, plan: Blueprint, groups: Groups) -> None:
        layout = plan.layout
        self._layout, self._device = layout, plan.device
        # what the weights are cast to when they are gathered; None: they are sharded as they are
        casts = plan.dtype != torch.float32 and layout.optimizer_precision == "fp32"
        self._dtype = plan.dtype if casts else None
        replicas = layout.dp * layout.cp
        # a pipeline's schedules reduce through FSDP2, and experts over groups of their own
        whole = layout.zero_stage == 0 and layout.pp == layout.ep == 1
        unchanged = self._dtype is None and layout.optimizer_offload == "none"
        self.applied = not (unchanged and (whole or replicas == 1))
        self.copies = self.summed = 1 if self.applied else replicas
        self._group, self._last = groups.data_group, False
        self._crossing: list[dist.Work] = []
        self._parts: tuple[type[nn.Module], ...] = LAYERS
        if not plan.shape.tied_embeddings:  # a weight of two modules is in a group of both
            self._parts += (Embedding, Head)
        self._experts: DeviceMesh | None = None  # of the ranks that hold the same experts
        if layout.ep > 1:
            self._parts += (Experts,)
            self._experts = expert_mesh(groups, plan.device.type)
        if self.applied:
            self._mesh = data_mesh(layout, groups, plan.device.type)
            shards = 1 if self._replicates else self._mesh.size(self._mesh.ndim - 1)
            self.copies = replicas // shards

    @property
    def _replicates(self) -> bool:
        return self._layout.zero_stage == 0 and self._layout.dp * self._layout.cp > 1

    @contextlib.contextmanager
    def applied_while_building(self) -> Iterator[None]:
        """Shard each part of a model as soon as it stands: the whole may not fit one device."""

        def registered(_: nn.Module, __: str, part: nn.Module | None) -> None:
            if self.applied and isinstance(part, self._parts):
                self.apply(part)

        hook = register_module_module_registration_hook(registered)
        try:
            yield
        finally:
            hook.remove()

    def apply(self, module: nn.Module) -> None:
        """Shard what of this module is not sharded yet, as one group."""
        if not self.applied:
            for weight in module.parameters() if self.summed > 1 else ():
                weight.register_post_accumulate_grad_hook(self._begin_sum)
            return
        for weight in module.parameters():
            if self._dtype is not None and weight.dtype != torch.float32:
                weight.data = weight.data.float()
        offload = OffloadPolicy()
        if self._layout.optimizer_offload == "cpu":
            offload = CPUOffloadPolicy(pin_memory=self._device.type == "cuda")
        precision = MixedPrecisionPolicy(param_dtype=self._dtype, cast_forward_inputs=False)
        mesh, replicates = self._mesh, self._replicates
        if self._experts is not None and isinstance(module, Experts):
            mesh = self._experts
            for weight in module.parameters():
                setattr(weight, _COPIES, mesh.size() if replicates else 1)
        marks = [dict(vars(weight)) for weight in module.parameters()]
        reshard = self._layout.zero_stage == 3
        shard: Any = functools.partial(fully_shard, reshard_after_forward=reshard)
        if replicates:
            shard = replicate
        shard(module, mesh=mesh, mp_policy=precision, offload_policy=offload)
        for weight, kept in zip(module.parameters(), marks, strict=True):
            vars(weight).update(kept)  # FSDP2 has put weights of its own in their place

    def before_micro_batch(self, module: nn.Module, *, last: bool) -> None:
        """Let the coming backward reduce gradients and free gathered weights, or not yet."""
        self._last = last
        if not self.applied:
            return
        assert isinstance(module, FSDPModule)
        module.set_requires_gradient_sync(last or self._layout.zero_stage >= 2)
        module.set_reshard_after_backward(last or self._layout.zero_stage == 3)

    def _begin_sum(self, weight: torch.Tensor) -> None:
        if self._last:
            assert weight.grad is not None
            crossing = dist.all_reduce(weight.grad, group=self._group, async_op=True)
            self._crossing.append(crossing)

    def wait_for_reductions(self) -> None:
        """Let what follows find gradients that have been summed."""
        for crossing in self._crossing:
            crossing.wait()
        self._crossing.clear()


def is_tp_sharded(weight: nn.Parameter) -> bool:
    """Whether each tp rank holds another part of this weight."""
    return bool(getattr(weight, _TP_MARK, False))


def is_expert_weight(weight: nn.Parameter) -> bool:
    """Whether a weight is of experts that are dealt to ranks."""
    return hasattr(weight, _COPIES)


def replicas_of(weight: nn.Parameter, otherwise: int) -> int:
    """Ranks of the data group that hold this part of a weight: of an expert's it is marked."""
    return int(getattr(weight, _COPIES, otherwise))


def expert_mesh(groups: Groups, device: str) -> DeviceMesh:
    """The ranks that hold the same experts."""
    return DeviceMesh.from_group(groups.expert_data_group(), device, mesh_dim_names=("experts",))


def data_mesh(layout: Layout, groups: Groups, device: str) -> DeviceMesh:
    """The data group; with shards of a smaller size [copies, ranks that share one]."""
    assert groups.data_group is not None
    size = layout.zero_shard_size
    if size is None or size == layout.dp:
        return DeviceMesh.from_group(groups.data_group, device, mesh_dim_names=("data",))
    shards = groups.group_by(lambda other: (other.tp_rank, other.pp_rank, other.dp_rank // size))
    copies = groups.group_by(
        lambda other: (other.tp_rank, other.pp_rank, other.cp_rank, other.dp_rank % size)
    )
    ranks = torch.tensor(dist.get_process_group_ranks(groups.data_group))
    return DeviceMesh.from_group(
        [copies, shards],
        device,
        mesh=ranks.view(-1, size * layout.cp),
        mesh_dim_names=("copies", "shards"),
    )
