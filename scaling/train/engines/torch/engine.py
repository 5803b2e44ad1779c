"""The engine of PyTorch: FSDP2 over data-parallel ranks, or torch.distributed.pipelining.

In a pipeline each rank holds chunks of a decoder's layers: one under 1F1B, `virtual_stages` under
interleaved schedules (every pp-th chunk of the model), and two under V-shaped schedules. The second
lies as far from the end as the first from the beginning. The first rank of a V then holds the
embedding and the head.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from scaling.layout.axes import V_SCHEDULES, PipelineSchedule
from scaling.layout.layout import Layout
from scaling.layout.partition import layer_and_head_costs, split_by_cost
from scaling.study.short_steps import short_step_sizes
from scaling.train.data import MicroBatch
from scaling.train.engines.torch.fsdp import Sharding
from scaling.train.engines.torch.optimizer_step import Engine, OptimizerStep, TiedWeight
from scaling.train.engines.torch.refusals import SPLIT_BACKWARD
from scaling.train.engines.trainer import LAYERS, Beat, Trainer, mean_loss, whole_model
from scaling.train.kernels.compiled import compile_modules
from scaling.train.model.blueprint import Blueprint, activation_shape
from scaling.train.model.decoder import Chunk, loss_function
from scaling.train.parallel.groups import Groups

_SCHEDULES: dict[PipelineSchedule, Any] = {
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}


def join(_: int) -> None:
    """Nothing to do: this engine uses torch's process group as it is."""


def build(plan: Blueprint, groups: Groups, beat: Beat) -> Trainer:
    """Build this layout's trainer: weights drawn and sharded."""
    splits_backward = plan.layout.pipeline_schedule in SPLIT_BACKWARD
    tp = dataclasses.replace(plan.tp, reduces_in_hooks=False, splits_backward=splits_backward)
    plan = dataclasses.replace(plan, tp=tp)
    trainer = PipelineTrainer if plan.layout.pp > 1 else ReplicaTrainer
    return trainer(plan, groups, beat)


class _Trainer:
    """The common part of both kinds of this engine."""

    engine: Engine
    skipped_steps = 0

    def grad_norm(self) -> float | None:
        """The last step's gradient norm."""
        return self.engine.optimizer_step.grad_norm()


class ReplicaTrainer(_Trainer):
    """The whole model on each tp group, sharded over the data-parallel ranks."""

    def __init__(self, plan: Blueprint, groups: Groups, beat: Beat) -> None:
        beat("building the model")
        self._sharding = Sharding(plan, groups)
        with self._sharding.applied_while_building():
            model = whole_model(plan)
        self._sharding.apply(model)
        beat("building the engine")
        if plan.layout.compile:
            compile_modules(model, LAYERS)
        optimizer_step = OptimizerStep(
            list(model.parameters()), plan, replicas=self._sharding.replicas
        )
        self.engine = Engine(module=model, optimizer_step=optimizer_step)
        self._groups = groups
        self._losses: list[Tensor] = []

    def step(self, batches: Sequence[MicroBatch]) -> None:
        """Train on these micro-batches, one optimizer step."""
        self._losses = []
        for index, (ids, labels) in enumerate(batches, start=1):
            self._sharding.before_micro_batch(self.engine.module, last=index == len(batches))
            loss = self.engine.module(ids, labels)
            (loss / (len(batches) * self._sharding.summed_ranks)).backward()
            self._losses.append(loss.detach())
        self._sharding.wait_for_reductions()
        self.engine.optimizer_step()

    def loss(self) -> float:
        """The mean over all micro-batches and replicas."""
        return mean_loss(self._losses, self._groups)


def chunks_of_rank(layout: Layout, pp_rank: int) -> tuple[int, ...]:
    """Indices of the model's chunks on this pipeline rank."""
    if layout.pipeline_schedule in V_SCHEDULES:
        return pp_rank, 2 * layout.pp - 1 - pp_rank
    return tuple(range(pp_rank, layout.pp * layout.virtual_stages, layout.pp))


def _chunk(plan: Blueprint, index: int) -> Chunk:
    layout = plan.layout
    costs = layer_and_head_costs(plan.shape, layout.seq_length, layout.activation_checkpointing)
    layers = split_by_cost(costs, layout.model_chunks)  # of each chunk
    begin = sum(layers[:index])
    last = index == layout.model_chunks - 1
    return Chunk(plan, range(begin, begin + layers[index]), first=index == 0, last=last)


class PipelineTrainer(_Trainer):
    """Chunks of the model on each rank, each sharded as a replica's model is."""

    def __init__(self, plan: Blueprint, groups: Groups, beat: Beat) -> None:
        layout, place = plan.layout, groups.place
        self._plan = plan
        beat("building the model")
        sharding = Sharding(plan, groups)
        self._indices = chunks_of_rank(layout, place.pp_rank)
        self._chunks: list[Chunk] = []
        for index in self._indices:
            with sharding.applied_while_building():
                chunk = _chunk(plan, index)
            sharding.apply(chunk)
            if layout.compile:
                compile_modules(chunk, LAYERS)
            self._chunks.append(chunk)
        beat("building the engine")
        group = groups.group_by(lambda p: (p.tp_rank, p.cp_rank, p.dp_rank))
        self._stages = [
            PipelineStage(
                chunk,
                index,
                layout.model_chunks,
                plan.device,
                input_args=_boundary_tensor(plan, index),
                output_args=_boundary_tensor(plan, index + 1),
                group=group,
            )
            for chunk, index in zip(self._chunks, self._indices, strict=True)
        ]
        self._schedules: dict[int, Any] = {}  # by number of micro-batches
        weights = [weight for chunk in self._chunks for weight in chunk.parameters()]
        tied = _tied_weight(plan, groups, self._chunks) if plan.shape.tied_embeddings else None
        optimizer_step = OptimizerStep(weights, plan, replicas=sharding.replicas, tied=tied)
        self.engine = Engine(module=nn.ModuleList(self._chunks), optimizer_step=optimizer_step)
        self._losses: list[Tensor] = []

    def step(self, batches: Sequence[MicroBatch]) -> None:
        """Train on these micro-batches, one optimizer step."""
        if len(batches) not in self._schedules:
            self._prepare_schedules(len(batches))
        schedule = self._schedules[len(batches)]
        self._losses = []
        ids = [torch.cat([ids for ids, _ in batches])] if self._chunks[0].first else []
        if self._chunks[-1].last:
            labels = torch.cat([labels for _, labels in batches])
            schedule.step(*ids, target=labels, losses=self._losses, return_outputs=False)
        else:
            schedule.step(*ids)
        self.engine.optimizer_step()

    def _prepare_schedules(self, count: int) -> None:
        """Make a schedule for each number of micro-batches to come; a torch schedule has one.

        `count` is the number in this step. If it is not the layout's this is a short step, and
        short steps of all lengths follow. All schedules are prepared at once, in the warm-up, so
        that no timed step prepares one. The largest comes last: all schedules use its buffers, so
        memory is that of full steps.
        """
        layout = self._plan.layout
        full, multiple = layout.gradient_accumulation_steps, layout.pipeline_schedule != "1f1b"
        counts = {count, full} | (set(short_step_sizes(layout)) if count != full else set())
        loss = loss_function(self._plan)
        for stage in self._stages:
            stage.has_backward = True  # torch 2.11 sets it only when a step begins
        for micro_batches in sorted(counts):
            schedule = _SCHEDULES[layout.pipeline_schedule](
                self._stages if multiple else self._stages[0],
                micro_batches,
                loss_fn=lambda logits, labels, n=micro_batches: loss(logits, labels) / n,
                scale_grads=False,
            )
            prepare = schedule._initialize_stages if multiple else schedule._initialize_stage
            prepare((), {})
            self._schedules[micro_batches] = schedule

    def loss(self) -> float:
        """The mean over all micro-batches and replicas: the ranks of the last chunk know theirs."""
        layout = self._plan.layout
        total = torch.zeros((), device=self._plan.device)
        if self._losses:
            total = torch.stack(self._losses).detach().float().sum()
        dist.all_reduce(total)
        return total.item() / (layout.dp * layout.cp * layout.tp)


def _boundary_tensor(plan: Blueprint, index: int) -> Tensor:
    """The tensor that enters chunk `index`, or leaves the last one, on the meta device."""
    layout = plan.layout
    ids = (layout.micro_batch_size, layout.seq_length // layout.cp)
    if index == 0:
        return torch.empty(ids, dtype=torch.int64, device="meta")
    size = activation_shape(plan.shape, layout)
    if index == layout.model_chunks:
        size = (*ids, plan.shape.vocab_size // layout.tp)
    return torch.empty(size, dtype=plan.dtype, device="meta", requires_grad=True)


def _tied_weight(plan: Blueprint, groups: Groups, chunks: list[Chunk]) -> TiedWeight | None:
    """This rank's copies of the weight that embedding and head share, and the ranks with others."""
    last = 0 if plan.layout.pipeline_schedule in V_SCHEDULES else plan.layout.pp - 1
    both_ends = groups.group_by(
        lambda p: (p.tp_rank, p.cp_rank, p.dp_rank, 0 if p.pp_rank == last else p.pp_rank)
    )
    parts = [chunk.embedding or chunk.head for chunk in chunks]
    copies = [part.weight for part in parts if part is not None]
    if not copies:
        return None
    return TiedWeight(copies=copies, first_is_here=chunks[0].first, group=both_ends)
