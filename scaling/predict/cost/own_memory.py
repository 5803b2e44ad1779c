"""Peak memory of this project's engines: what is alive at which moment of a step.

The formulas follow a rank's bytes through a step: what lives all the time, what a layer keeps for
backward, and what the fullest moment of each phase adds. Every term stands for tensors that the
engine holds (`scaling memory` names them by file and line). `python benchmarks/counted_memory.py`
compares the two. The memory that a rehearsal cannot see is calibrated, as `buffers_bytes` and
`fragmentation`: kernels' workspaces, NCCL, blocks that a side stream still reads.

1F1B is counted. The schedules interleaved, zbv and dualpipev get a bound that is seldom too low.
That of zero_bubble is up to 18 % too low. In a V the first rank holds both vocabulary matrices. If
gradients of weights wait, every rank has as many micro-batches in flight as the first one.
Rehearsals count them exactly.
"""

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np

from scaling.arrays import Flags, Floats, Strings
from scaling.predict.cost.own_layer import FP32, layer_memory, loss_memory, position_bias_bytes
from scaling.predict.cost.sharding import expert_sharding_of, sharding_of
from scaling.predict.cost.stages import (
    ZBV,
    ZERO_BUBBLE,
    has_experts,
    head_params,
    held_expert_params,
    in_flight,
    layer_params,
    shared_ffn,
    stages_of,
)
from scaling.predict.read.features import Features, Group
from scaling.predict.read.stacks import own_framework

BUILD, FORWARD, BACKWARD, OPTIMIZER = "build", "forward", "backward", "optimizer"


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes held at one moment, by what they are; (n,), or one number for all layouts."""

    weights: Floats | float
    gradients: Floats | float
    optimizer: Floats | float
    activations: Floats | float = 0.0
    logits: Floats | float = 0.0
    buffers: Floats | float = 0.0

    def with_(self, **parts: Floats | float) -> "Held":
        """The same with these parts replaced."""
        return dataclasses.replace(self, **parts)

    def plus(self, activations: Floats | float, logits: Floats | float = 0.0) -> "Held":
        """The same with these bytes added."""
        return self.with_(activations=self.activations + activations, logits=self.logits + logits)

    @property
    def total(self) -> Floats:
        """Sum of all parts, (n,)."""
        return np.asarray(sum(getattr(self, name) for name in TERMS))


TERMS = tuple(Held.__dataclass_fields__)
Moment = tuple[str | None, Held]  # and its phase


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes allocated at the peak, float64 (n,): `terms` of the fullest stage add up to `total`.

    The phases of other software are not counted: None.
    """

    total: Floats
    terms: dict[str, Floats]
    phase: Strings


def peak_of(moments: list[Moment], uncounted: Floats | float) -> Memory:
    """The fullest of the moments; `uncounted` bytes, which no rehearsal sees, are added to all."""
    total = np.zeros(len(moments[0][1].total))
    fullest = np.zeros(len(total), dtype=np.int64)
    for index, (_, held) in enumerate(moments):  # a stack of them would leave the cache
        moment = held.total
        fullest[moment > total] = index
        np.maximum(total, moment, out=total)
    terms: dict[str, Floats] = {f"{name}_bytes": total for name in TERMS}
    for index in np.flatnonzero(np.bincount(fullest)).tolist():
        rows, held = fullest == index, moments[index][1]
        for name in TERMS:
            term = f"{name}_bytes"
            terms[term] = np.where(rows, getattr(held, name), terms[term])
    terms["buffers_bytes"] = terms["buffers_bytes"] + uncounted
    phases = np.array([phase for phase, _ in moments], dtype=object)[fullest]
    return Memory(total + uncounted, terms, phases)


class Sizes:
    """The common part of all stages of a layout, (n,); parameters are those of a tp rank."""

    def __init__(self, group: Group, f: Features) -> None:
        self.group, self.f, self.piped = group, f, f.pp > 1
        self.stages, self.replicas = stages_of(f, group.stack), f.dp * f.cp
        # elements of a micro-batch's hidden states that a rank holds
        self.hidden = f.tokens * f.hidden_size / np.where(f.sequence_parallel, f.tp, 1.0)
        self.expert_params = held_expert_params(f)  # of the average layer
        self.layer_params = layer_params(f) / f.tp + self.expert_params
        self.vocab_params = head_params(f) / f.tp  # of one vocabulary matrix
        self.ffn_params = f.hidden_size * f.ffn_hidden_size / f.tp  # of one matrix
        self.sharding = sharding_of(group, f)
        self.expert_sharding = expert_sharding_of(group, f) if has_experts(f) else self.sharding
        # FSDP2 wraps all models but those of a rank with nothing to cast that has nothing to gather
        # where it is alone or holds everything. Its pipelines reduce gradients once a step,
        # replicas every micro-batch from zero_stage 2 on.
        gathers = (self.replicas > 1) & ((f.zero_stage > 0) | self.piped | (f.ep > 1))
        self.wrapped = ((f.element_bytes < FP32) & ~f.short_states) | gathers | f.offload
        self.reduces_once = (f.zero_stage < 2) | self.piped
        # Then a layer's gradients stay whole until all of them are there and reduced. Those that
        # are added to the gradients of the micro-batch before go one by one.
        self.is_torch = group.stack.name == own_framework("torch")
        stay = self.wrapped & ~(self.reduces_once & (f.accumulation > 1))
        self.gradients_stay: Flags = stay & self.is_torch
        self.layer = layer_memory(f, self.gradients_stay)

    @functools.cached_property
    def of_later_ranks(self) -> "Sizes":
        """The same without the first layers, which may have no experts."""
        f = self.f
        if not has_experts(f):
            return self
        share = np.where(self.piped, np.ceil(f.expert_share), f.expert_share)
        ffn = np.where(self.piped & (share > 0), shared_ffn(f), f.ffn_hidden_size)
        return Sizes(self.group, f.but(expert_share=share, ffn_hidden_size=ffn))


class Stage:
    """The part of a model on a rank of the pipeline, all of it without one, (n,)."""

    def __init__(self, sizes: Sizes, rank: Floats) -> None:
        s, f, e = sizes, sizes.f, sizes.f.element_bytes
        self.sizes, stages, last = sizes, s.stages, f.pp - 1
        is_v, is_last = s.piped & (f.schedule >= ZBV), rank == last
        # stages with one layer more than the first are those before the last
        fuller = f.num_layers - stages.last - stages.first * last >= f.pp - 2
        self.layers = np.where(is_last, stages.last, stages.first + (fuller & (rank > 0)))
        self.has_embedding = rank == 0
        self.has_head = np.where(is_v, self.has_embedding, is_last)
        matrices = np.where(s.piped, 1.0 * self.has_embedding + self.has_head, f.embeddings)
        params = self.layers * s.layer_params + matrices * s.vocab_params
        self.params = params + self.has_embedding * f.positions * f.hidden_size
        # micro-batches in flight, and the share of them left when the first layer ends its backward
        passes = np.where(s.piped, in_flight(f, rank), 1.0)
        self.warm_up = np.where(is_last, 1.0, passes)  # until each weight has a gradient
        chunks = np.where(is_v, 2.0, f.virtual)
        if s.is_torch:
            left, messages = np.minimum(passes, f.accumulation - 1), passes * chunks
            outputs = np.where(f.schedule == ZERO_BUBBLE, passes, 1.0)
        else:
            # tp ranks each keep a part of the message that came in, where all of them have the same
            kept = np.where(f.attentions > 1, 2.0, np.where(f.sequence_parallel, 1.0, 1 / f.tp))
            left, messages = passes, passes * np.where(is_v, 2.0, kept) + 1.5
            outputs = np.where(is_v, 1.0, np.minimum(f.accumulation, 2.0))
        self.staying = np.maximum(left - 1, 0.0) / passes
        self.received = s.piped * (2 * chunks - self.has_embedding - self.has_head)
        # Bytes of activations and messages when the last layer is done. Recomputing keeps position
        # biases, which every layer reads: for each micro-batch in flight those of the stage's.
        biases = (f.full | f.selective) * np.where(s.piped, passes, 2.0) * position_bias_bytes(f)
        self.in_flight = passes * self.layers * s.layer.kept + biases
        self.in_flight = self.in_flight + s.piped * messages * e * s.hidden
        norm = e * s.hidden + e * f.tokens * f.hidden_size
        self.final_norm = self.has_head * norm  # bytes
        self.logits = self.has_head * f.tokens * f.vocab_size / f.tp  # elements
        self.loss_forward, self.loss_backward = loss_memory(
            f, self.logits, s.vocab_params, 1.0 * s.piped * outputs
        )


def stages_in(sizes: Sizes) -> list[Stage]:
    """The first, the second and the last rank's part, as far as any layout has them."""
    last = sizes.f.pp - 1
    ranks = (0.0 * last, np.minimum(1.0, last), last)[: int(sizes.f.pp.max(initial=1))]
    stages = [Stage(sizes.of_later_ranks if rank.any() else sizes, rank) for rank in ranks]
    # DeepSpeed has no buffers for messages, so only more weights make the second the fullest
    more = sizes.is_torch or has_experts(sizes.f) or len(stages) < 3
    if not (more or (stages[1].layers > stages[0].layers).any()):
        del stages[1]
    return stages


def model_moments(
    t: Stage, *, loss: Held, in_layer: Held, earlier_layer: Held | None = None
) -> list[Moment]:
    """Moments from the loss back through the layers.

    The model itself keeps the same under both engines. The arguments are what an engine holds
    beside it: in the loss, in the backward of the last layer, and of earlier ones where it differs.
    """
    f, layer, kept = t.sizes.f, t.sizes.layer, t.in_flight + t.final_norm
    activations = t.in_flight + layer.recomputed + f.element_bytes * t.sizes.hidden
    activations = activations + layer.in_backward
    moments: list[Moment] = [
        (FORWARD, loss.plus(kept, t.loss_forward)),
        (BACKWARD, in_layer.plus(activations)),
        (BACKWARD, loss.plus(kept, t.loss_backward)),
    ]
    if earlier_layer is not None or (f.attentions > 1).any():
        # an earlier layer's backward begins when the last one's activations are gone
        activations = activations - layer.kept + position_bias_bytes(f)
        moments.append((BACKWARD, (earlier_layer or in_layer).plus(activations)))
    return moments
