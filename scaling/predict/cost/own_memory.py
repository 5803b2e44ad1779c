"""Peak memory of this project's engines: what is alive at which moment of a step.

The formulas follow a rank's bytes through a step: what lives all the time, what a layer keeps for
backward, and what the fullest moment of each phase adds. Every term stands for tensors that the
engine holds (`scaling memory` names them by file and line); `python benchmarks/memory.py` compares
the two. What a rehearsal cannot see is calibrated, as `buffers_bytes` and `fragmentation`: kernels'
workspaces, NCCL, blocks that a side stream still reads.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.foreign.arrays import Flags, Floats, Words
from scaling.predict.cost.experts import held_expert_params
from scaling.predict.cost.own_layer import (
    FP32,
    LayerMemory,
    LossMemory,
    layer_memory,
    loss_memory,
    position_bias_bytes,
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
        parts = (self.weights, self.gradients, self.optimizer, self.activations, self.logits)
        # parts that are numbers are 0, and no moment has fewer than two arrays
        arrays = [part for part in (*parts, self.buffers) if isinstance(part, np.ndarray)]
        total: Floats = arrays[0] + arrays[1]
        for part in arrays[2:]:
            total += part
        return total


TERMS = tuple(Held.__dataclass_fields__)
Moment = tuple[int, Held]  # index into PHASES


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes allocated at the peak, float64 (n,): `terms` of the fullest stage add up to `total`.

    For other software `first_stage` is the total of the first rank, and `phase` is None because its
    phases are not counted.
    """

    total: Floats
    terms: dict[str, Floats]
    first_stage: Floats
    phase: Words | None = None


def peak_of(moments: list[Moment], uncounted: float) -> Memory:
    """The fullest of the moments; `uncounted` bytes, which no rehearsal sees, are added to all."""
    total = moments[0][1].total
    fullest = np.zeros(len(total), dtype=np.int64)
    for index, (_, held) in enumerate(moments[1:], start=1):
        moment_total = held.total
        fullest[moment_total > total] = index
        np.maximum(total, moment_total, out=total)
    terms: dict[str, Floats] = {f"{name}_bytes": np.empty(len(total)) for name in TERMS}
    for index in np.flatnonzero(np.bincount(fullest)).tolist():
        rows, held = np.flatnonzero(fullest == index), moments[index][1]
        for name, values in zip(TERMS, terms.values(), strict=True):
            part = getattr(held, name)
            values[rows] = part[rows] if isinstance(part, np.ndarray) else part
    terms["buffers_bytes"] += uncounted
    phases = np.array([PHASES[phase] for phase, _ in moments], dtype=object)[fullest]
    return Memory(total + uncounted, terms, total + uncounted, phases)


def split_rows(
    mask: Flags,
    f: Features,
    where_true: Callable[[Features], Memory],
    where_false: Callable[[Features], Memory],
) -> Memory:
    """Memory of the rows under `mask` by one function, of the others by another."""
    if mask.all():
        return where_true(f)
    if not mask.any():
        return where_false(f)
    rows = [np.flatnonzero(mask), np.flatnonzero(~mask)]
    parts = [where_true(f.take(rows[0])), where_false(f.take(rows[1]))]
    order = np.argsort(np.concatenate(rows))

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
    """All model chunks of one rank together, (n,) or one value for all layouts.

    A pass is one micro-batch through one chunk. The fields from `passes` on are of torch's
    pipelines alone, most of them of schedules whose backward has two parts: gradients of
    activations first, gradients of weights later.
    """

    layers: Floats
    vocab_matrices: Floats | float
    layer_passes: Floats  # most layers times passes whose activations are held at once
    staying: Floats | float  # share of it left when the last chunk's first layer ends its backward
    messages: Floats | float  # hidden states of a micro-batch that are kept or on their way
    has_embedding: Flags | bool
    has_head: Flags | bool
    warm_up: Floats | float = 1.0  # micro-batches that begin before each weight has a gradient
    logit_buffers: Floats | float = 0.0
    position_biases: Floats | float = 0.0  # of an encoder-decoder, which recomputing reads
    passes: Floats | float = 1.0  # most whose activations are held at once
    final_layer_passes: Floats | float = 0.0  # `layer_passes` when most weight gradients wait
    waiting_layer_passes: Floats | float = 0.0  # those of them whose weight gradients wait
    waiting_heads: Floats | float = 0.0  # micro-batches whose head's weight gradient waits
    received: Floats | float = 0.0  # messages of a micro-batch, both ways
    kept_received: Floats | float = 0.0  # those whose gradients stay for the whole step
    dense_layers: Floats | None = None  # layers without experts; None: as many as on average


def whole_model(f: Features) -> Chunks:
    """All layers on every rank."""
    return Chunks(
        layers=f.num_layers, vocab_matrices=f.embeddings, layer_passes=f.num_layers, staying=0.0,
        messages=0.0, has_embedding=True, has_head=True, position_biases=2.0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What all stages of a layout share, (n,); parameters are those of a tp rank."""

    f: Features
    piped: bool
    hidden: Floats  # elements of a micro-batch's hidden states that a rank holds
    layer: LayerMemory
    expert_params: Floats  # routed experts of the average layer
    layer_params: Floats  # the whole average layer, routed experts included
    vocab_params: Floats  # one vocabulary matrix
    ffn_params: Floats  # one matrix of a feed-forward
    sharding: Sharding
    replicas: Floats


def with_dense_layers(f: Features, chunks: Chunks) -> Features:
    """The layouts with the average layer of these chunks, which may have more dense ones."""
    if chunks.dense_layers is None:
        return f
    share = 1 - chunks.dense_layers / np.maximum(chunks.layers, 1.0)
    ffn = (1 - share) * f.dense_ffn + share * shared_ffn(f)
    return dataclasses.replace(f, expert_share=share, ffn_hidden_size=ffn)


def sizes_of(group: Group, f: Features, *, piped: bool, whole_gradients: Flags | None) -> Sizes:
    """Sizes of these layouts; see `layer_memory` for `whole_gradients`."""
    expert_params = held_expert_params(f)
    return Sizes(
        f=f,
        piped=piped,
        hidden=f.tokens * f.hidden_size / np.where(f.sequence_parallel, f.tp, 1.0),
        layer=layer_memory(f, whole_gradients),
        expert_params=expert_params,
        layer_params=weights_of_layer(f) + expert_params,
        vocab_params=head_params(f) / f.tp,
        ffn_params=f.hidden_size * f.ffn_hidden_size / f.tp,
        sharding=sharding_of(group, f),
        replicas=f.dp * f.cp,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one rank holds of its model's parameters and activations; bytes or elements, (n,).

    `in_flight` are the bytes of activations and messages when the last layer is done, `final_norm`
    those of the final norm. Recomputing keeps position biases, which every layer reads: for each
    micro-batch in flight those of the stage's layers.
    """

    sizes: Sizes
    chunks: Chunks
    params: Floats  # elements of a tp rank
    in_flight: Floats
    final_norm: Floats
    logits: Floats  # elements
    plain_norm: Floats  # elements of the hidden states where the final norm is not fused
    loss: LossMemory


def stage_of(s: Sizes, c: Chunks) -> Stage:
    """What a rank with these chunks holds."""
    f, e = s.f, s.f.element_bytes
    params = c.layers * s.layer_params + c.vocab_matrices * s.vocab_params
    in_flight = c.layer_passes * s.layer.kept
    in_flight = in_flight + (f.full | f.selective) * c.position_biases * position_bias_bytes(f)
    if s.piped:
        in_flight = in_flight + c.messages * e * s.hidden
    norm = np.where(f.fused_norm, e, FP32 + e) * s.hidden + e * f.tokens * f.hidden_size
    logits = c.has_head * f.tokens * f.vocab_size / f.tp
    return Stage(
        sizes=s,
        chunks=c,
        params=params + c.has_embedding * f.positions * f.hidden_size,
        in_flight=in_flight,
        final_norm=c.has_head * norm,
        logits=logits,
        plain_norm=c.has_head * ~f.fused_norm * s.hidden,
        loss=loss_memory(f, logits, s.vocab_params, c.logit_buffers),
    )


def model_moments(
    t: Stage,
    *,
    loss_forward: Held,
    loss_backward: Held,
    head_backward: Held,
    head_done: Held,
    in_ffn: Held,
    in_attention: Held,
    earlier_layer: Held | None = None,
) -> list[Moment]:
    """Moments from the loss back through the layers.

    What the model itself keeps then is the same under both engines. The arguments say what an
    engine holds beside it: in the loss's forward and backward, in the head's backward and after it,
    in the backward of the last layer's feed-forward and of its attention, and in that of earlier
    layers where it differs.
    """
    f, layer, kept = t.sizes.f, t.sizes.layer, t.in_flight + t.final_norm
    in_layer = t.in_flight + layer.recomputed + f.element_bytes * t.sizes.hidden
    moments = [
        (FORWARD, loss_forward.plus(kept, t.loss.forward)),
        (BACKWARD, head_done.plus(kept, t.loss.after)),
        (BACKWARD, in_ffn.plus(in_layer + layer.in_ffn)),
        (BACKWARD, in_attention.plus(in_layer + layer.in_attention)),
    ]
    if np.any(t.chunks.has_head):
        moments.append((BACKWARD, loss_backward.plus(kept, t.loss.backward)))
        moments.append((BACKWARD, head_backward.plus(kept, t.loss.of_logits)))
    if earlier_layer is not None or (f.attentions > 1).any():
        # an earlier layer's backward begins when the last one's activations are gone
        activations = in_layer - layer.kept + layer.in_backward + position_bias_bytes(f)
        moments.append((BACKWARD, (earlier_layer or in_attention).plus(activations)))
    return moments
