"""What this project's engine on DeepSpeed holds beside a model's activations, as rehearsals show.

Element counts are those of a tp rank; z is the zero_stage.
"""

from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.own_layer import FP32, vocab_init_bytes
from scaling.predict.cost.own_memory import (
    BACKWARD,
    BUILD,
    ONE_F_ONE_B,
    OPTIMIZER,
    Chunks,
    Held,
    Moment,
    Stage,
    model_moments,
)
from scaling.predict.cost.stages import head_params, stages_of
from scaling.predict.read.features import Features, Group

_BUCKET = 5e8  # elements of reduce_bucket_size (scaling/train/engines/deepspeed)
_LIVE = 1e9  # elements of ZeRO-3's stage3_max_live_parameters and stage3_max_reuse_distance
_SUB_GROUP = 1e9  # elements of sub_group_size
_PREFETCH = 5e7  # elements of stage3_prefetch_bucket_size
_FP64 = 8.0  # bytes of an element; DeepSpeed takes a gradient's norm in fp64


def whole_gradients(f: Features, piped: bool) -> None:
    """None: a layer's gradients go into buckets one by one."""


def chunks_of_ranks(group: Group, f: Features) -> tuple[Chunks, Chunks]:
    """The first and the last rank's chunks; the layouts all run 1F1B or all DualPipeV."""
    is_1f1b = (f.schedule == ONE_F_ONE_B).all()
    return _ends_of_1f1b(group, f) if is_1f1b else _ends_of_dualpipev(f)


def _ends_of_1f1b(group: Group, f: Features) -> tuple[Chunks, Chunks]:
    """The first rank has min(accumulation, pp) micro-batches in flight, the last one."""
    stages, in_flight = stages_of(f, group.stack), np.minimum(f.accumulation, f.pp)
    # tp ranks each keep a part of the message that came in, where all of them have the same
    kept = np.where(f.attentions > 1, 2.0, np.where(f.sequence_parallel, 1.0, 1 / f.tp))
    first = Chunks(
        layers=stages.first, vocab_matrices=1.0, layer_passes=in_flight * stages.first,
        staying=1 - 1 / in_flight, messages=in_flight * kept + 1.5, has_embedding=True,
        has_head=False, warm_up=in_flight, position_biases=in_flight,
    )  # fmt: skip
    last = Chunks(
        layers=stages.last, vocab_matrices=1.0, layer_passes=stages.last,
        staying=1.0 * (stages.last == 0), messages=kept + 1.5, has_embedding=False, has_head=True,
        position_biases=1.0, logit_buffers=np.minimum(f.accumulation, 2.0),
    )  # fmt: skip
    return first, last


def _ends_of_dualpipev(f: Features) -> tuple[Chunks, Chunks]:
    """The first and the last rank, each with a stage on the way out and one on the way back.

    DeepSpeed deals layers evenly to 2 pp stages, one more to the first ones if need be. Rank r
    holds 2 pp - r micro-batches on their way out and r + 1 on their way back, with the input and
    output of its stages (deepspeed/runtime/pipe/schedule.py, DualPipeVSchedule.steps, from step 4).
    """
    stages = 2 * f.pp
    fewest, fuller = np.divmod(f.num_layers, stages)

    def chunks_of(rank: Floats | float, is_first: bool) -> Chunks:
        out, back = fewest + (rank < fuller), fewest + (stages - 1 - rank < fuller)
        going, coming = np.minimum(stages - rank, f.accumulation - 1), rank + 1.0
        layer_passes = going * out + coming * back
        return Chunks(
            layers=out + back,
            vocab_matrices=f.embeddings * is_first,
            layer_passes=layer_passes,
            staying=1 - back / np.maximum(layer_passes, 1.0),
            messages=(going + coming) * (1.0 if is_first else 2.0),
            has_embedding=is_first,
            has_head=is_first,
            warm_up=0.0,
            logit_buffers=1.0 * is_first,
        )

    return chunks_of(0.0, True), chunks_of(f.pp - 1, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Zero:
    """What ZeRO, or a bf16 pipeline, makes of a stage's weights, gradients and state, (n,).

    Bytes, except `shard`.
    """

    partitions: Flags  # ZeRO-1 and 2: gradients and state
    gathers: Flags  # ZeRO-3: weights too
    dealt: Flags  # bf16 pipelines deal the state to all replicas, without ZeRO
    alone: Flags  # ZeRO-1 or 2 with one replica: gradients stay where they are
    copied: Flags  # ZeRO-1 or 2 moves gradients out of its buckets
    continues: Flags  # micro-batches follow that find gradients of earlier ones
    shard: Floats  # elements of the rank's part of the state
    weights: Floats  # between their uses
    gathered: Floats | float  # weights that ZeRO-3 holds whole when the loss is computed
    state: Floats  # master weights and moments
    flat_gradients: Floats  # in a buffer of their own
    touched: Floats  # gradients of every weight that overlaps rank 0's part of the flat buffer
    waiting: Floats  # gradients of earlier micro-batches
    bucket: Floats
    buckets: Floats


def _zero_of(t: Stage) -> _Zero:
    s, c, f, e, z = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes, t.sizes.f.zero_stage
    partitions, gathers = (z == 1) | (z == 2), z >= 3
    dealt = (z == 0) & f.bf16 & s.piped
    ranks = np.where(dealt, s.replicas, s.sharding.state)
    experts = c.layers * s.expert_params  # sharded over the ranks that hold the same experts
    shard = (t.params - experts) / ranks + experts / np.maximum(ranks / f.ep, 1.0)
    gradients = e * t.params
    # master weights and moments; fp32 without ZeRO has no master weights
    state = np.where(f.short_states, 6.0, np.where((e < FP32) | (z > 0), 12.0, 8.0)) * ~f.offload
    alone = partitions & (s.replicas == 1) & ~f.offload
    bucket = ~alone * e * np.minimum(_BUCKET, t.params)
    second_bucket = partitions & (s.replicas > 1) & (not s.piped)
    embedding = s.vocab_params if c.has_embedding else 0.0
    touched = np.where(shard <= embedding, embedding, shard + s.ffn_params / 2)
    touched = np.where(s.sharding.state > 1, np.minimum(touched, t.params), t.params)
    touched = partitions * e * touched
    flat_gradients = gathers * e * shard + dealt * gradients
    continues = f.accumulation > c.warm_up
    waiting = ((z <= 1) & continues) * gradients + ((z == 2) & continues) * touched
    # a rank that shares its experts with no other gathers them from nobody
    own_experts = (gathers & (f.ep > 1) & (ranks == f.ep)) * e * experts
    return _Zero(
        partitions=partitions,
        gathers=gathers,
        dealt=dealt,
        alone=alone,
        copied=partitions & ~alone & (not s.piped) & ~f.offload,
        continues=continues,
        shard=shard,
        weights=np.where(gathers & (f.ep > 1), e * shard, gradients * s.sharding.weights_share(z)),
        gathered=np.maximum(_gathered_bytes(t) - own_experts, 0.0),
        state=state * shard,
        flat_gradients=flat_gradients,
        touched=touched,
        waiting=flat_gradients + waiting,
        bucket=bucket,
        buckets=(z > 0) * (1.0 + second_bucket) * bucket,
    )


def _gathered_bytes(t: Stage) -> Floats | float:
    """Bytes of the weights that ZeRO-3 holds whole when the loss is computed.

    It gathers up to _LIVE elements and lets go what is not used again within as many: it holds the
    head, the layers before it, and of one more layer the feed-forward where there is room, or else
    what a prefetch takes (whole matrices; recomputing has let them go).
    """
    s, f = t.sizes, t.sizes.f
    gathers = f.zero_stage >= 3
    if not gathers.any():
        return 0.0
    ffn = (f.mlp_inputs + 1) * s.ffn_params
    room = np.maximum(_LIVE - s.vocab_params, 0.0)
    rest = np.mod(room, s.layer_params)
    prefetched = np.ceil(np.minimum(rest, _PREFETCH) / np.maximum(s.ffn_params, 1.0))
    prefetched = prefetched * s.ffn_params * ~f.full
    part_of_layer = np.where(rest >= ffn, ffn, np.minimum(prefetched, ffn))
    filled = np.minimum(t.params, s.vocab_params + room - rest + part_of_layer)
    # a model that fits but for its embedding is gathered whole: a prefetch may exceed the limit
    gathered = np.where(t.params - s.vocab_params < _LIVE, t.params, filled)
    # in a step's first micro-batch hpZ has no second copy yet of what was not let go
    first_only = s.sharding.second & (f.accumulation == 1)
    share = np.where(first_only, 1 - 1 / s.sharding.inside, 1.0)
    return np.asarray(gathers * f.element_bytes * gathered * share)


def moments_of(t: Stage) -> list[Moment]:
    """The moments of a step that may be the fullest."""
    s, c, f, e = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes
    zero = _zero_of(t)
    usual = Held(zero.weights + zero.gathered, zero.waiting, zero.state, buffers=zero.buckets)
    has_buckets = zero.gathers | ((f.zero_stage == 1) & zero.continues)
    loss = usual.with_(buffers=has_buckets * zero.buckets)
    # one matrix of embedding and head: the head's gradient waits for the embedding's
    tied = (f.embeddings < 2) * e * s.vocab_params if c.has_embedding and c.has_head else 0.0
    # of a matrix that is gathered for the second time both the parts and the whole are there
    twice = (zero.gathers & f.full) * e * s.ffn_params
    # the feed-forward's weights are let go after its backward
    left = t.params - s.vocab_params - (f.mlp_inputs + 1) * s.ffn_params
    after_ffn = zero.weights + np.minimum(zero.gathered, zero.gathers * e * left)
    in_attention = usual.with_(weights=after_ffn + twice, gradients=zero.waiting + tied)
    moments = [
        (BUILD, _building(t, zero)),
        *_backward_ends(t, zero, usual, tied),
        (OPTIMIZER, _stepping(t, zero)),
    ]
    kept = t.in_flight + t.final_norm
    if c.has_head:
        # a plain final norm has four fp32 tensors in its backward
        moments.append((BACKWARD, usual.plus(kept + 16.0 * t.plain_norm)))
    if c.has_head and s.sharding.second.any():
        moments.append((BACKWARD, _first_head_backward(t, zero).plus(kept)))
    if (f.zero_stage > 0).any():
        moments.append((BACKWARD, _bucket_full(t, zero, tied)))
    return moments + model_moments(
        t,
        loss_forward=loss.with_(activations=e * t.plain_norm),
        loss_backward=loss,
        head_backward=loss,
        head_done=usual,
        in_ffn=in_attention.with_(weights=usual.weights + twice),
        in_attention=in_attention,
    )


def _building(t: Stage, zero: _Zero) -> Held:
    """While the engine is built: weights, and flat copies that become state.

    ZeRO-3 casts a matrix before a rank takes its slice of it.
    """
    s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
    low, whole, master = e < FP32, e * t.params, FP32 * zero.shard
    drawn = vocab_init_bytes(f)
    flat = np.where(zero.dealt, whole + master, np.maximum(whole, master))
    flat = np.maximum(flat, drawn - e * s.vocab_params)
    cast = np.where(low, (FP32 + e) * head_params(f), drawn) - (f.embeddings < 2) * zero.weights
    sharded = zero.buckets + (FP32 + e) * zero.shard + e * s.vocab_params
    sharded = np.maximum(sharded, cast)
    # without ZeRO in 16 bits DeepSpeed's optimizer has 18 bytes a weight for a moment
    plain = np.where(low, 18.0 * t.params, zero.state)
    plain = np.where(zero.partitions | zero.dealt, flat, plain)
    return Held(zero.weights, 0.0, np.where(zero.gathers, sharded, plain))


def _backward_ends(
    t: Stage, zero: _Zero, usual: Held, tied: Floats | float
) -> tuple[Moment, Moment]:
    """The embedding's gradient is computed; the last gradients are reduced.

    By then ZeRO's buckets have taken the gradients of all micro-batches. What remains is joined in
    a copy when the last weight is done.
    """
    s, c, f, e = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes
    whole = (f.zero_stage == 0) | s.piped | zero.alone
    grown = np.where(whole, e * t.params, zero.waiting - zero.flat_gradients)
    grown = zero.flat_gradients + grown
    embedding = s.vocab_params if c.has_embedding else 0.0
    at_embedding = usual.with_(gradients=grown + e * embedding + 2 * tied)
    left = np.where(zero.copied, np.minimum(zero.touched, grown), grown)
    joined = ((s.replicas > 1) | zero.gathers | f.offload) * e * np.mod(t.params, _BUCKET)
    at_last = usual.with_(weights=zero.weights, gradients=left, buffers=zero.buckets + joined)
    return (
        (BACKWARD, at_embedding.plus(t.in_flight * c.staying + e * s.hidden)),
        (BACKWARD, at_last.plus(e * s.hidden)),
    )


def _bucket_full(t: Stage, zero: _Zero, tied: Floats | float) -> Held:
    """A full bucket is reduced, under ZeRO-3 in a copy, at any matrix.

    Where a layer is more than a bucket this is not at the last layer's backward, with which it
    begins. ZeRO-3 keeps a weight for the next micro-batch where less than _LIVE lies between its
    uses. Where the whole stage fits into one bucket no weight is gathered any more by then.
    """
    s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
    several = t.params > _BUCKET
    let_go = np.clip(t.params - _LIVE / 2, 0.0, _BUCKET) * (t.params - s.vocab_params < _LIVE)
    gathered = np.maximum(zero.gathered - zero.gathers * e * let_go, 0.0)
    within_layer = zero.gathers & (s.layer_params <= _BUCKET)
    in_layer = within_layer * (s.layer.recomputed + e * s.ffn_params)
    unreduced = np.maximum(1 - _BUCKET / np.maximum(t.params, 1.0), 0.0)
    left = np.where(zero.copied & ~several, np.minimum(zero.touched, zero.waiting), zero.waiting)
    return Held(
        zero.weights + (several | s.sharding.second) * gathered,
        left + tied,
        zero.state,
        activations=e * s.hidden + several * (t.in_flight * unreduced + in_layer),
        buffers=zero.buckets + (f.zero_stage > 0) * zero.bucket,
    )


def _first_head_backward(t: Stage, zero: _Zero) -> Held:
    """HpZ in a run's first micro-batch: the head's weight is let go, held, and gathered again.

    The optimizer has no moments yet.
    """
    s, f, e, second = t.sizes, t.sizes.f, t.sizes.f.element_bytes, t.sizes.sharding.second
    return Held(
        zero.weights + second * 2 * e * s.vocab_params,
        zero.flat_gradients,
        second * ~f.offload * FP32 * zero.shard,
        logits=second * t.loss.of_logits,
        buffers=zero.buckets,
    )


def _stepping(t: Stage, zero: _Zero) -> Held:
    """The optimizer's step: gradients, state and its working copies.

    ZeRO's working copies are the larger of two: the norm of the largest gradient in fp64, and flat
    copies in 16 and 32 bits, under ZeRO-3 of one group of weights after the other. A bf16 pipeline
    takes the norm of fp32 copies, one gradient after the other.
    """
    s, c, f, e = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes
    low, largest = e < FP32, np.maximum(s.vocab_params, s.ffn_params)
    flat = np.where(f.short_states | ~low, e, e + FP32)
    sub_group = np.minimum(zero.shard, _SUB_GROUP + s.ffn_params / 2 / s.sharding.state)
    norm = _FP64 * np.minimum(zero.shard, largest)
    by_zero = np.where(zero.gathers, flat * sub_group, np.maximum(norm, flat * zero.shard))
    copies = low * FP32 * np.where(zero.dealt, np.maximum(zero.shard, largest), t.params)
    no_zero = f.zero_stage == 0
    return Held(
        zero.weights,
        no_zero * e * t.params + zero.touched + zero.flat_gradients,
        zero.state + np.where(no_zero, copies, by_zero),
        logits=(s.piped and not c.has_embedding) * c.logit_buffers * e * t.logits,
        buffers=zero.gathers * zero.buckets,
    )
