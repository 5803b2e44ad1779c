"""Peak memory of this project's engines: what is alive at which moment of a step.

A rank's bytes are followed through a step: what lives all the time, what a layer keeps for backward
and what the worst moment of each phase adds. Every line stands for tensors that the engine holds
(`scaling memory` names them by file and line); `python benchmarks/memory.py` compares the two.
What a rehearsal cannot see is `buffers_bytes` and `fragmentation`, which rows calibrate: kernels'
workspaces, NCCL, what a side stream still reads.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.foreign.arrays import Flags, Floats, Strings
from scaling.predict.cost.experts import held_params
from scaling.predict.cost.own_layer import (
    WIDE,
    Layer,
    Loss,
    layer_of,
    loss_of,
    position_tables,
    weights_of_layer,
)
from scaling.predict.cost.sharding import Sharding, sharding_of
from scaling.predict.cost.stages import head_params, shared_ffn
from scaling.predict.read.features import Features, Group
from scaling.predict.read.inputs import SCHEDULES

PHASES = ("build", "forward", "backward", "optimizer")
BUILD, FORWARD, BACKWARD, OPTIMIZER = range(len(PHASES))
ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, ZBV, DUALPIPEV = range(len(SCHEDULES))


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one moment, (n,) or the same of all, by what they are."""

    weights: Floats | float
    gradients: Floats | float
    optimizer: Floats | float
    activations: Floats | float = 0.0
    logits: Floats | float = 0.0
    buffers: Floats | float = 0.0

    def but(self, **parts: Floats | float) -> "Held":
        """The same with these in the place of its own."""
        return dataclasses.replace(self, **parts)

    def plus(self, activations: Floats | float, logits: Floats | float = 0.0) -> "Held":
        """The same with these beside its own."""
        return self.but(activations=self.activations + activations, logits=self.logits + logits)

    @property
    def total(self) -> Floats:
        """All of them."""
        parts = (self.weights, self.gradients, self.optimizer, self.activations, self.logits)
        arrays = [part for part in (*parts, self.buffers) if isinstance(part, np.ndarray)]
        total: Floats = arrays[0] + arrays[1]  # no moment has fewer; a number is 0
        for part in arrays[2:]:
            total += part
        return total


TERMS = tuple(Held.__dataclass_fields__)
Moment = tuple[int, Held]  # of PHASES


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes allocated at the peak, float64 (n,): `terms` of the fullest stage add up to `total`.

    `first_stage` is that of the first rank, told of other software alone.
    """

    total: Floats
    terms: dict[str, Floats]
    first_stage: Floats
    phase: Strings | None = None  # of the peak; None of other software, whose phases nobody counts


def fullest_of(moments: list[Moment], unseen: float) -> Memory:
    """The fullest moment; `unseen` are bytes that no rehearsal counts, the same at all times."""
    total = moments[0][1].total
    fullest = np.zeros(len(total), dtype=np.int64)
    for number, (_, held) in enumerate(moments[1:], start=1):
        here = held.total
        fullest[here > total] = number
        np.maximum(total, here, out=total)
    terms: dict[str, Floats] = {f"{name}_bytes": np.empty(len(total)) for name in TERMS}
    for number in np.flatnonzero(np.bincount(fullest, minlength=1)).tolist():
        rows, held = np.flatnonzero(fullest == number), moments[number][1]
        for name, values in zip(TERMS, terms.values(), strict=True):
            part = getattr(held, name)
            values[rows] = part[rows] if isinstance(part, np.ndarray) else part
    terms["buffers_bytes"] += unseen
    phases = np.array([PHASES[phase] for phase, _ in moments], dtype=object)[fullest]
    return Memory(total + unseen, terms, total + unseen, phases)


def by_rows(
    chosen: Flags,
    f: Features,
    this: Callable[[Features], Memory],
    other: Callable[[Features], Memory],
) -> Memory:
    """Memory of the rows that are `chosen` by one way, of the rest by another."""
    if chosen.all():
        return this(f)
    if not chosen.any():
        return other(f)
    places = [np.flatnonzero(chosen), np.flatnonzero(~chosen)]
    parts = [way(f.take(rows)) for way, rows in zip((this, other), places, strict=True)]
    order = np.argsort(np.concatenate(places))

    def joined(values: list[Any]) -> Any:
        return np.concatenate(values)[order]

    return Memory(
        joined([part.total for part in parts]),
        {name: joined([part.terms[name] for part in parts]) for name in parts[0].terms},
        joined([part.first_stage for part in parts]),
        joined([np.full(len(p.total), None) if p.phase is None else p.phase for p in parts]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """The chunks of one rank together, (n,) or the same of all.

    Of torch's pipelines alone: `passes` sums over chunks the micro-batches of `flying`. Where
    backward has two parts, `left` is what `flying` is when most gradients of weights wait, and
    `split` the part of it whose gradients do, `split_heads` the micro-batches whose head's gradient
    does. `received` are messages that a micro-batch brings: what enters each chunk but the first
    and the gradient of what leaves each but the last; `deferred` those of them whose gradients stay
    for the step, where backward is in two parts.
    """

    layers: Floats
    tables: Floats | float  # vocabulary matrices
    flying: Floats  # sums over chunks layers times the micro-batches whose activations wait
    staying: Floats | float  # share of it when the first layer's backward of the last is done
    messages: Floats | float  # hidden states of a micro-batch that are kept or on their way
    looks_up: Flags | bool
    has_head: Flags | bool
    rounds: Floats | float = 1.0  # micro-batches that begin before each weight has a gradient
    outputs: Floats | float = 0.0  # buffers of logits
    positions: Floats | float = 0.0  # tables of an encoder-decoder's that recomputing reads
    passes: Floats | float = 1.0
    left: Floats | float = 0.0
    split: Floats | float = 0.0
    split_heads: Floats | float = 0.0
    received: Floats | float = 0.0
    deferred: Floats | float = 0.0
    dense: Floats | None = None  # layers without experts; None: as many as on average


def whole_model(f: Features) -> Chunks:
    """All layers on every rank."""
    return Chunks(
        layers=f.num_layers, tables=f.embeddings, flying=f.num_layers, staying=0.0, messages=0.0,
        looks_up=True, has_head=True, positions=2.0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What all stages of a layout share; elements of a micro-batch, bytes of a layer, (n,)."""

    f: Features
    piped: bool
    tokens: Floats
    own: Floats  # hidden states of a rank's own tokens
    layer: Layer
    routed: Floats  # weights of a rank's average layer that are its experts'
    layer_weights: Floats  # all of them
    table: Floats  # of a vocabulary matrix
    matrix: Floats  # of a feed-forward's matrix
    sharding: Sharding
    replicas: Floats


def of_rank(f: Features, c: Chunks) -> Features:
    """The layouts with the average layer of these chunks, which have other dense ones than most."""
    if c.dense is None:
        return f
    share = 1 - c.dense / np.maximum(c.layers, 1.0)
    ffn = (1 - share) * f.dense_ffn + share * shared_ffn(f)
    return dataclasses.replace(f, expert_share=share, ffn_hidden_size=ffn)


def step_of(group: Group, f: Features, *, piped: bool, gradients_stay: Flags | None) -> Step:
    """What all stages of these layouts share; see `layer_of` for the gradients that stay."""
    tokens, routed = f.micro_batch_size * f.seq_length / f.cp, held_params(f)
    return Step(
        f=f,
        piped=piped,
        tokens=tokens,
        own=tokens * f.hidden_size / np.where(f.sequence_parallel, f.tp, 1.0),
        layer=layer_of(f, tokens, gradients_stay),
        routed=routed,
        layer_weights=weights_of_layer(f) + routed,
        table=head_params(f) / f.tp,
        matrix=f.hidden_size * f.ffn_hidden_size / f.tp,
        sharding=sharding_of(group, f),
        replicas=f.dp * f.cp,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a rank of a pipeline keeps of its model's work; bytes unless said otherwise, (n,).

    When the last layer is done it holds `passing`, activations of layers and messages, and `final`,
    those of the final norm. Recomputing keeps the position tables of encoder and decoder, which
    every layer is given: of each micro-batch on its way the one of the stage's layers.
    """

    step: Step
    chunks: Chunks
    weights: Floats  # elements of a tp rank
    passing: Floats
    final: Floats
    logits: Floats  # elements
    unfused: Floats  # of the hidden states that a plain final norm works on
    loss: Loss


def stage_of(s: Step, c: Chunks) -> Stage:
    """What a rank that holds these chunks keeps."""
    f, e = s.f, s.f.element_bytes
    weights = c.layers * s.layer_weights + c.tables * s.table
    passing = c.flying * s.layer.kept
    passing = passing + (f.full | f.selective) * c.positions * position_tables(f)
    if s.piped:
        passing = passing + c.messages * e * s.own
    normed = np.where(f.fused_norm, e, WIDE + e) * s.own + e * s.tokens * f.hidden_size
    logits = c.has_head * s.tokens * f.vocab_size / f.tp
    return Stage(
        step=s,
        chunks=c,
        weights=weights + c.looks_up * f.positions * f.hidden_size,
        passing=passing,
        final=c.has_head * normed,
        logits=logits,
        unfused=c.has_head * ~f.fused_norm * s.own,
        loss=loss_of(f, logits, s.tokens, s.table, c.outputs),
    )


def model_moments(
    t: Stage,
    *,
    forward: Held,
    loss: Held,
    in_head: Held,
    after_loss: Held,
    in_ffn: Held,
    in_attention: Held,
    earlier: Held | None = None,
) -> list[Moment]:
    """From the last layer's forward on: the loss, and the layers from the last to the first.

    What the model keeps is the same under both engines; each says what it holds beside it while the
    head and the loss are computed (`forward`), in the loss's backward, in the head's, when that is
    done, in the backward of the last layer's feed-forward, of its attention, and of the layers
    before where that is something else.
    """
    f, layer, kept = t.step.f, t.step.layer, t.passing + t.final
    in_layer = t.passing + layer.again + f.element_bytes * t.step.own
    moments = [
        (FORWARD, forward.plus(kept, t.loss.forward)),
        (BACKWARD, after_loss.plus(kept, t.loss.after)),
        (BACKWARD, in_ffn.plus(in_layer + layer.in_ffn)),
        (BACKWARD, in_attention.plus(in_layer + layer.in_attention)),
    ]
    if np.any(t.chunks.has_head):
        moments.append((BACKWARD, loss.plus(kept, t.loss.backward)))
        moments.append((BACKWARD, in_head.plus(kept, t.loss.of_logits)))
    if earlier is not None or (f.attentions > 1).any():
        # an earlier layer begins when the last one's activations are gone
        activations = in_layer - layer.kept + layer.above + position_tables(f)
        moments.append((BACKWARD, (earlier or in_attention).plus(activations)))
    return moments
