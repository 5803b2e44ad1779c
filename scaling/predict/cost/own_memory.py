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

from scaling.foreign.arrays import Flags, Floats, Words
from scaling.predict.read.features import Features
from scaling.predict.read.inputs import SCHEDULES

PHASES = ("build", "forward", "backward", "optimizer")
BUILD, FORWARD, BACKWARD, OPTIMIZER = range(len(PHASES))
WIDE = 4.0  # bytes of fp32
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """What an engine holds beside what the model keeps, from the last layer's forward on.

    While the head and the loss are computed (`forward`), in the loss's backward, in the head's,
    when that is done, in the backward of the last layer's feed-forward, of its attention, of the
    layers before; and `more` moments, which the other engine has not.
    """

    forward: Held
    loss: Held
    in_head: Held
    after_loss: Held
    in_ffn: Held
    in_attention: Held
    earlier: Held
    more: list[Moment]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes allocated at the peak, float64 (n,): `terms` of the fullest stage add up to `total`.

    `first_stage` is that of the first rank, told of other software alone.
    """

    total: Floats
    terms: dict[str, Floats]
    first_stage: Floats
    phase: Words | None = None  # of the peak; None of other software, whose phases nobody counts


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
