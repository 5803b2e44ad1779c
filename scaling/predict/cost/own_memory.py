"""Peak memory of this project's own engine, phase by phase, as its rehearsals count it.

A rank's bytes are followed through a step: what lives all the time, what a layer keeps for backward
and what the worst moment of each phase adds. Every line stands for tensors that the engine holds
(`scaling memory` names them by file and line); `python benchmarks/memory.py` compares the two.
What a rehearsal cannot see is `buffers_bytes` and `fragmentation`, which rows calibrate: kernels'
workspaces, NCCL, what a side stream still reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats, Words
from scaling.predict.cost import saved
from scaling.predict.cost.sharding import sharding_of
from scaling.predict.cost.stages import Stages, head_params, layer_params, stages_of
from scaling.predict.read.features import Features, Group

PHASES = ("build", "forward", "backward", "optimizer")
_BUCKET = 5e8  # elements of DeepSpeed's reduce_bucket_size (scaling/train/engines/deepspeed)
_LIVE = 1e9  # elements of ZeRO-3's stage3_max_live_parameters and stage3_max_reuse_distance
_PREFETCH = 5e7  # elements of its stage3_prefetch_bucket_size
_WIDE = 4.0  # bytes of fp32
_NORM = 8.0  # bytes of fp64, in which DeepSpeed takes the norm of a gradient


@dataclass(frozen=True, slots=True)
class _Layer:
    """Bytes of one layer and micro-batch, (n,).

    `kept` for backward, `again` what recomputing adds before backward begins, `above` what backward
    needs at most beyond what lived when it came to the layer.
    """

    kept: Floats
    again: Floats
    above: Floats


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one moment, (n,), by what they are."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    logits: Floats
    buffers: Floats

    @property
    def total(self) -> Floats:
        """All of them."""
        return (
            self.weights + self.gradients + self.optimizer
            + self.activations + self.logits + self.buffers
        )  # fmt: skip


Moment = tuple[int, Held]  # of PHASES


@dataclass(frozen=True, slots=True)
class OwnMemory:
    """The fullest moment, (n,): its bytes, whose they are, the first stage's, its phase."""

    total: Floats
    terms: dict[str, Floats]
    first_stage: Floats
    phase: Words


def layer_of(f: Features, tokens: Floats) -> _Layer:
    """One layer of the engine's own blocks (scaling/train/model), `tokens` of a rank."""
    e, shared = f.element_bytes, np.where(f.sequence_parallel, f.tp, 1.0)
    whole, own = tokens * f.hidden_size, tokens * f.hidden_size / shared  # elements
    queries, keys = e * tokens * f.query_width / f.tp, e * tokens * f.kv_width / f.tp
    inner = e * tokens * f.ffn_hidden_size / f.tp
    scores = e * f.micro_batch_size * f.num_heads / f.tp * f.seq_length**2 / f.cp
    plain = f.math | f.fused_softmax
    gated = f.mlp_inputs > 1
    # a norm keeps its input in fp32 and the normed in 16 bits; then what the matrices behind it
    # read, whole
    fused_norm = saved.rms_norm(e * own, tokens / shared)
    norm = np.where(f.fused_norm, fused_norm, (_WIDE + e) * own) + e * whole
    # without a flash kernel keys are repeated where a product needs them so; a second all-to-all
    # copies
    none = np.zeros_like(queries)
    flash = saved.flash_attention(queries, keys, none)
    attention = np.where(plain, 4 * queries, flash) + np.where(f.cp > 1, queries, 0.0)
    # what the last matrix reads, and what makes it
    gate = inner + np.where(gated, np.where(f.fused_mlp, saved.gate(inner), 3 * inner), inner)
    logsumexp = saved.flash_attention(none, none, tokens * f.num_heads / f.tp)
    in_core = f.attentions * np.where(plain, scores, logsumexp)
    outside = (1 + f.attentions) * norm + f.attentions * attention + gate
    # backward comes to the feed-forward first, then to its norm, then to attention
    down = e * f.hidden_size * f.ffn_hidden_size / f.tp  # the gradient of its last matrix
    at_gate = np.maximum(inner + down, np.where(f.fused_mlp, 0.0, 2 * inner))
    at_norm = np.where(f.fused_norm, e * own, 16.0 * own) - gate
    again = np.where(f.selective | f.full, 1.0, 0.0)
    at_scores = np.where(f.math, 2.0, 1.0) + np.where(f.selective, 1.0, 0.0)
    at_scores = np.where(plain, at_scores * scores, 0.0) - gate - norm
    above = np.maximum(np.maximum(at_gate, at_norm), at_scores)
    boundary = e * own
    kept = np.where(f.full, boundary, outside + np.where(f.selective, 0.0, in_core))
    recomputed = outside + in_core - np.where(f.fused_norm, boundary, 0.0)
    return _Layer(kept, np.where(f.full, recomputed, 0.0) * again, above)


def own_memory_of(group: Group, f: Features, p: Mapping[str, float]) -> OwnMemory:
    """The fullest moment of the fullest stage."""
    stages = stages_of(f, group.stack)
    first, last = (_moments_of_stage(group, f, p, stages, last=end) for end in (False, True))
    return fullest_of(first, last)


def fullest_of(first: list[Moment], last: list[Moment]) -> OwnMemory:
    """The fullest of the moments of the first stage and of the last."""
    moments = first + last
    totals = np.stack([held.total for _, held in moments])
    fullest = totals.argmax(axis=0)
    rows = np.arange(totals.shape[1])

    def chosen(name: str) -> Floats:
        values: Floats = np.stack([getattr(held, name) for _, held in moments])[fullest, rows]
        return values

    return OwnMemory(
        total=totals[fullest, rows],
        terms={f"{name}_bytes": chosen(name) for name in Held.__dataclass_fields__},
        first_stage=totals[: len(first)].max(axis=0),
        phase=np.array([PHASES[phase] for phase, _ in moments], dtype=object)[fullest],
    )


def phases_of(
    group: Group, f: Features, p: Mapping[str, float], *, last: bool
) -> dict[str, Floats]:
    """Bytes of each phase of the first or last stage, (n,)."""
    peaks: dict[str, Floats] = {}
    for phase, held in _moments_of_stage(group, f, p, stages_of(f, group.stack), last=last):
        name = PHASES[phase]
        peaks[name] = np.maximum(peaks.get(name, 0.0), held.total)
    return peaks


def _moments_of_stage(
    group: Group, f: Features, p: Mapping[str, float], stages: Stages, *, last: bool
) -> list[Moment]:
    z, e, h, piped = f.zero_stage, f.element_bytes, f.hidden_size, stages.piped
    tokens = f.micro_batch_size * f.seq_length / f.cp
    own = tokens * h / np.where(f.sequence_parallel, f.tp, 1.0)
    layers = np.where(piped & last, stages.last, stages.first)
    table = head_params(f) / f.tp
    has_head = ~piped | last
    matrices = np.where(piped, 1.0, f.embeddings)
    weights = layers * (layer_params(f) / f.tp + (1 + f.attentions) * h) + matrices * table
    layer = layer_of(f, tokens)
    rounds = f.accumulation
    flying = np.where(piped, 1.0 if last else np.minimum(rounds, f.pp), 1.0)
    sharding = sharding_of(group, f)
    replicas = f.dp * f.cp
    part = weights / sharding.state
    low = e < _WIDE
    # what lives all the time
    state_bytes = np.where(f.short_states, 6.0, np.where(low | (z >= 1), 12.0, 8.0))
    state = np.where(f.offload, 0.0, state_bytes * part)
    held = e * weights * np.where(z >= 3, sharding.weights_share(z), 1.0)
    gradients = e * weights
    accumulated = np.where(z >= 3, e * part, 0.0)  # a buffer of its own
    # a single replica under ZeRO-1 or 2 leaves its gradients where they are
    alone = (z >= 1) & (z <= 2) & (replicas == 1) & ~f.offload
    bucket = np.where(alone, 0.0, e * np.minimum(_BUCKET, weights))
    overlapped = (z >= 1) & (z <= 2) & ~piped & (replicas > 1)
    buckets = np.where(z == 0, 0.0, np.where(overlapped, 2.0, 1.0)) * bucket
    # gradients of every weight that rank 0's part of the flat buffer touches
    largest = np.maximum(np.where(has_head | (not last), table, 0.0), h * f.ffn_hidden_size / f.tp)
    first_table = 0.0 if last else table
    touched = np.where(part <= first_table, first_table, part + h * f.ffn_hidden_size / f.tp / 2)
    touched = e * np.where(sharding.state > 1, np.minimum(touched, weights), weights)
    touched = np.where((z == 1) | (z == 2), touched, 0.0)
    # from the second micro-batch on
    going_on = rounds > 1
    whole_kept = ((z == 0) | (z == 1)) & going_on
    kept_gradients = accumulated + np.where(whole_kept, gradients, 0.0)
    kept_gradients = kept_gradients + np.where((z == 2) & going_on, touched, 0.0)
    kept_buckets = np.where((z == 3) | ((z == 1) & going_on), buckets, 0.0)
    gathered = np.where(z >= 3, e * _gathered(f, weights, table), 0.0)
    # activations when the last layer is done
    per_stage = flying * layers * layer.kept
    messages = np.where(piped, (flying / f.tp + 1.5) * e * own, 0.0)
    bias = np.where(f.attentions > 1, e * f.num_heads / f.tp * f.seq_length**2, 0.0)
    final = np.where(f.fused_norm, e, _WIDE + e) * own + e * tokens * h
    kept = per_stage + messages + np.where(has_head, final, 0.0)
    logits = np.where(has_head, tokens * f.vocab_size / f.tp, 0.0)
    forward, backward, after = loss_of(f, logits, tokens, table, piped)
    nothing = np.zeros_like(weights)
    unseen = p["buffers_bytes"] + nothing

    def at(
        gradients: Floats = kept_gradients,
        optimizer: Floats = state,
        activations: Floats = nothing,
        logits: Floats = nothing,
        buffers: Floats = kept_buckets,
        more: Floats = gathered,
    ) -> Held:
        return Held(held + more, gradients, optimizer, activations, logits, buffers + unseen)

    residual = np.where(has_head & ~f.fused_norm, e * own, 0.0)
    working = layer.again + layer.above + e * own
    # of a matrix that is gathered for the second time the parts and the whole
    working = working + np.where((z >= 3) & f.full, e * h * f.ffn_hidden_size / f.tp, 0.0)
    flushed = np.clip(1 - _BUCKET / np.maximum(weights, 1.0), 0.0, 1.0)
    # ZeRO-3 joins a full bucket in a copy, at any matrix; where a layer is more than a bucket, not
    # at its last one, with which its backward begins
    anywhere = (z >= 3) & (layer_params(f) / f.tp <= _BUCKET)
    down = e * h * f.ffn_hidden_size / f.tp
    at_flush = (kept - np.where(has_head, final, 0.0)) * flushed + e * own
    at_flush = at_flush + np.where(anywhere, layer.again + down, 0.0)
    at_flush = np.where(weights > _BUCKET, at_flush, e * own)
    # the norm of the largest gradient in fp64, or flat copies in 16 and 32 bits
    in_norm = _NORM * np.minimum(part, largest)
    flat = np.where(f.short_states | ~low, e, e + _WIDE) * part
    stepping = np.where(z == 0, np.where(low, _WIDE * weights, 0.0), np.maximum(in_norm, flat))
    stepping = np.where(z >= 3, flat, stepping)
    left = np.where(z == 0, gradients, touched) + accumulated
    outputs = np.where(piped, 2 * e * logits, 0.0)  # of a pipeline's buffers
    building = np.where(z == 0, np.where(low, 18.0 * weights, state), 0.0)
    # a matrix is drawn whole, in fp32, before a rank takes its slice
    whole = _WIDE * head_params(f) * (1 + np.where(f.tp > 1, 1 / f.tp, 0.0))
    flat_copy = np.maximum(e * weights, _WIDE * part)
    building = np.where((z == 1) | (z == 2), np.maximum(flat_copy, whole - e * table), building)
    sharded = np.maximum(buckets + _WIDE * part + e * part + e * table, 1.5 * whole)
    building = np.where(z >= 3, sharded, building)
    in_step = np.where(z >= 3, buckets, 0.0)
    in_backward = np.where(z >= 1, buckets, 0.0)
    # joined in a copy when the last weight is done
    joined = (replicas > 1) | (z >= 3) | f.offload
    remainder = np.where(joined, e * np.mod(weights, _BUCKET), 0.0)
    grown = (
        np.where((z == 0) | piped | alone, gradients, kept_gradients - accumulated) + accumulated
    )
    return [
        (0, at(nothing, building, buffers=nothing, more=nothing)),
        (1, at(activations=kept + residual + bias, logits=forward)),
        (2, at(activations=kept, logits=backward)),
        (2, at(activations=kept, logits=np.where(has_head, e * (logits + table), 0.0))),
        (2, at(activations=kept, logits=after, buffers=in_backward)),
        (
            2,
            at(
                activations=kept + np.where(has_head & ~f.fused_norm, 16.0 * own, 0.0),
                buffers=in_backward,
            ),
        ),
        (2, at(activations=kept - np.where(has_head, final, 0.0) + working, buffers=in_backward)),
        (
            2,
            at(
                activations=at_flush,
                buffers=in_backward + np.where(z >= 1, bucket, 0.0),
            ),
        ),
        (2, at(grown, activations=e * own + e * table, buffers=in_backward)),
        (2, at(grown, activations=e * own, buffers=in_backward + remainder, more=nothing)),
        (3, at(left, state + stepping, logits=outputs, buffers=in_step, more=nothing)),
    ]


def _gathered(f: Features, weights: Floats, table: Floats) -> Floats:
    """Elements that ZeRO-3 holds whole when the loss is computed, (n,).

    It gathers up to 1e9 and lets go what is not used again within as many: the head, the layers
    before it, and of one more the feed-forward where that has room, or else what a prefetch takes
    (whole matrices; recomputing has let them go).
    """
    layer = layer_params(f) / f.tp
    feed_forward = (f.mlp_inputs + 1) * f.hidden_size * f.ffn_hidden_size / f.tp
    room = np.maximum(_LIVE - table, 0.0)
    rest = np.mod(room, layer)
    matrix = f.hidden_size * f.ffn_hidden_size / f.tp
    fetched = np.ceil(np.minimum(rest, _PREFETCH) / matrix) * matrix * ~f.full
    part = np.where(rest >= feed_forward, feed_forward, np.minimum(fetched, feed_forward))
    filled = table + room - rest + part
    held: Floats = np.minimum(weights, filled)
    return held


def loss_of(
    f: Features, logits: Floats, tokens: Floats, table: Floats, piped: Flags
) -> tuple[Floats, Floats, Floats]:
    """Bytes of the loss in forward, in backward, and of the head's gradient after it."""
    e, parallel = f.element_bytes, f.tp > 1
    wide = np.where(e < _WIDE, e, 0.0)  # an fp32 copy stands beside
    forward = np.where(parallel, 8.0, 8.0 + wide) * logits
    backward = np.where(parallel, 16.0, 12.0) * logits
    held = np.where(piped, np.where(parallel, 2.0, 1.0) * e, 0.0) * logits
    held_back = np.where(piped, 2.0 * e, 0.0) * logits
    joined = f.fused_cross_entropy & (logits > 0)
    width = np.maximum(f.hidden_size, 1.0)
    pieces = np.ceil(f.vocab_size / (4 * width))
    rows = np.minimum(tokens, 2 ** np.ceil(np.log2(np.ceil(tokens / pieces))))
    fused = e * tokens * width + _WIDE * table + np.maximum(e * rows * f.vocab_size, e * table)
    both = saved.linear_cross_entropy(e * tokens * width, e * table)
    return (
        np.where(joined, fused, forward + held),
        np.where(joined, both, backward + held_back),
        np.where(joined, both, np.where(logits > 0, e * table, 0.0)),
    )
