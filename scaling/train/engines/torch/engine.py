"""PyTorch's own parallelism under one step: sharded replicas, or a pipeline of them.

A pipeline is torch.distributed.pipelining's, with chunks of a decoder's layers on each rank. Under
1F1B a rank holds one chunk. Interleaved schedules give it `virtual_stages`, every pp-th of
the model's; a schedule in the shape of a V two, of which the second lies as far from the end as the
first from the beginning, so that the first rank has look-up and head.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
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
from scaling.train.engines.torch.sharding import LAYERS, Sharding
from scaling.train.engines.torch.update import Engine, Tied, Update
from scaling.train.engines.trainer import Beat, Trainer, mean_loss
from scaling.train.kernels.compiled import compile_each
from scaling.train.model.blueprint import Blueprint
from scaling.train.model.decoder import Chunk, Decoder, loss_of
from scaling.train.model.encoder_decoder import EncoderDecoder
from scaling.train.parallel.groups import Groups

_SCHEDULES: dict[PipelineSchedule, Any] = {
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}


def join(_: int) -> None:
    """Nothing is left to do: the ranks' process group is torch's."""


def build(plan: Blueprint, groups: Groups, beat: Beat) -> Trainer:
    """The trainer of this layout, weights drawn and sharded."""
    plan = dataclasses.replace(plan, tp=dataclasses.replace(plan.tp, sums_each=False))
    trainer = PipelineTrainer if plan.layout.pp > 1 else ReplicaTrainer
    return trainer(plan, groups, beat)


class ReplicaTrainer:
    """The whole model on each tp group, sharded over the ranks that see other tokens."""

    def __init__(self, plan: Blueprint, groups: Groups, beat: Beat) -> None:
        beat("building the model")
        self._sharding = Sharding(plan, groups)
        with self._sharding.of_parts():
            model = EncoderDecoder(plan) if plan.shape.family == "t5" else Decoder(plan)
        self._sharding.of(model)
        beat("building the engine")
        if plan.layout.compile:
            compile_each(model, LAYERS)
        update = Update(list(model.parameters()), plan, copies=self._sharding.copies)
        self.engine = Engine(module=model, update=update)
        self._groups = groups
        self._losses: list[Tensor] = []

    def step(self, batches: Sequence[MicroBatch]) -> None:
        """Train on these micro-batches, one optimizer step."""
        self._losses = []
        for index, (ids, labels) in enumerate(batches, start=1):
            self._sharding.before_micro_batch(self.engine.module, last=index == len(batches))
            loss = self.engine.module(ids, labels)
            (loss / (len(batches) * self._sharding.summed)).backward()
            self._losses.append(loss.detach())
        self._sharding.wait()
        self.engine.update()

    def loss(self) -> float:
        """See `mean_loss`."""
        return mean_loss(self._losses, self._groups)

    def grad_norm(self) -> float | None:
        """The last step's gradient norm."""
        return self.engine.update.last_norm()


def chunks_of_rank(layout: Layout, pp_rank: int) -> tuple[int, ...]:
    """Which of the model's chunks this pipeline rank holds, the first of the model's is 0."""
    if layout.pipeline_schedule in V_SCHEDULES:
        return pp_rank, 2 * layout.pp - 1 - pp_rank
    return tuple(range(pp_rank, layout.pp * layout.virtual_stages, layout.pp))


def _chunk(plan: Blueprint, index: int) -> Chunk:
    layout = plan.layout
    costs = layer_and_head_costs(plan.shape, layout.seq_length, layout.activation_checkpointing)
    dealt = split_by_cost(costs, layout.model_chunks)
    begin = sum(dealt[:index])
    last = index == layout.model_chunks - 1
    return Chunk(plan, range(begin, begin + dealt[index]), first=index == 0, last=last)


class PipelineTrainer:
    """Chunks of the model on each rank; each chunk is sharded as a replica's model is."""

    def __init__(self, plan: Blueprint, groups: Groups, beat: Beat) -> None:
        layout, place = plan.layout, groups.place
        self._plan = plan
        beat("building the model")
        sharding = Sharding(plan, groups)
        self._indices = chunks_of_rank(layout, place.pp_rank)
        self._chunks: list[Chunk] = []
        for index in self._indices:
            with sharding.of_parts():
                chunk = _chunk(plan, index)
            sharding.of(chunk)
            if layout.compile:
                compile_each(chunk, LAYERS)
            self._chunks.append(chunk)
        beat("building the engine")
        group = groups.own_group_by(lambda o: (o.tp_rank, o.cp_rank, o.dp_rank))
        self._stages = [
            PipelineStage(
                chunk,
                index,
                layout.model_chunks,
                plan.device,
                input_args=_message(plan, layout.model_chunks, index),
                output_args=_message(plan, layout.model_chunks, index + 1),
                group=group,
            )
            for chunk, index in zip(self._chunks, self._indices, strict=True)
        ]
        self._schedules: dict[int, Any] = {}  # by their number of micro-batches
        weights = [weight for chunk in self._chunks for weight in chunk.parameters()]
        tied = _tied(plan, groups, self._chunks) if plan.shape.tied_embeddings else None
        update = Update(weights, plan, copies=sharding.copies, tied=tied)
        self.engine = Engine(module=self._chunks[0], update=update)
        self._losses: list[Tensor] = []

    def step(self, batches: Sequence[MicroBatch]) -> None:
        """Train on these micro-batches, one optimizer step."""
        if len(batches) not in self._schedules:
            self._schedule_all(len(batches))
        schedule = self._schedules[len(batches)]
        self._losses = []
        ids = [torch.cat([ids for ids, _ in batches])] if self._chunks[0].first else []
        if self._chunks[-1].last:
            labels = torch.cat([labels for _, labels in batches])
            schedule.step(*ids, target=labels, losses=self._losses, return_outputs=False)
        else:
            schedule.step(*ids)
        self.engine.update()

    def _schedule_all(self, count: int) -> None:
        """One schedule for each number of micro-batches to come: torch's fix theirs.

        A step of fewer ones than the layout's is a short step, and its like follow. All are made
        ready at once, in the warm-up, so that none of the steps that are timed does it; the largest
        last, whose buffers all of them use, so that memory is as in full steps.
        """
        layout = self._plan.layout
        whole, multiple = layout.gradient_accumulation_steps, layout.pipeline_schedule != "1f1b"
        counts = {count, whole} | (set(short_step_sizes(layout)) if count != whole else set())
        loss = loss_of(self._plan)
        for stage in self._stages:
            stage.has_backward = True  # a schedule of torch 2.11 says so only as a step begins
        for each in sorted(counts):
            schedule = _SCHEDULES[layout.pipeline_schedule](
                self._stages if multiple else self._stages[0],
                each,
                loss_fn=lambda logits, labels, each=each: loss(logits, labels) / each,
                scale_grads=False,
            )
            prepare = schedule._initialize_stages if multiple else schedule._initialize_stage
            prepare((), {})
            self._schedules[each] = schedule

    def loss(self) -> float:
        """The mean over the micro-batches of all replicas, known where the last chunk is."""
        layout = self._plan.layout
        total = torch.zeros((), device=self._plan.device)
        if self._losses:
            total = torch.stack(self._losses).detach().float().sum()
        dist.all_reduce(total)
        return total.item() / (layout.dp * layout.cp * layout.tp)

    def grad_norm(self) -> float | None:
        """The last step's gradient norm."""
        return self.engine.update.last_norm()


def _message(plan: Blueprint, chunks: int, index: int) -> Tensor:
    """What passes before chunk `index`, as a tensor without numbers."""
    layout, shape = plan.layout, plan.shape
    batch, tokens = layout.micro_batch_size, layout.seq_length // layout.cp
    if index == 0:
        return torch.empty(batch, tokens, dtype=torch.int64, device="meta")
    if index == chunks:
        size = (batch, tokens, shape.vocab_size // layout.tp)
    else:
        held = tokens // layout.tp if layout.sequence_parallel else tokens
        size = (batch, held, shape.hidden_size)
    return torch.empty(size, dtype=plan.dtype, device="meta", requires_grad=True)


def _tied(plan: Blueprint, groups: Groups, chunks: list[Chunk]) -> Tied | None:
    """This rank's copies of the weight that look-up and head share, and who has the others."""
    last = 0 if plan.layout.pipeline_schedule in V_SCHEDULES else plan.layout.pp - 1
    ends = groups.own_group_by(
        lambda o: (o.tp_rank, o.cp_rank, o.dp_rank, 0 if o.pp_rank == last else o.pp_rank)
    )
    parts = [chunk.embedding or chunk.head for chunk in chunks]
    copies = [part.weight for part in parts if part is not None]
    return Tied(copies=copies, first_is_here=chunks[0].first, group=ends) if copies else None
