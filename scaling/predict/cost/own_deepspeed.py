"""Memory of this project's DeepSpeed engine beside a model's activations, as rehearsals show.

Element counts are those of a tp rank; z is the zero_stage.
"""

import numpy as np

from scaling.arrays import Floats
from scaling.predict.cost.own_layer import FP32, vocab_init_bytes
from scaling.predict.cost.own_memory import (
    BACKWARD,
    BUILD,
    OPTIMIZER,
    Held,
    Moment,
    Stage,
    model_moments,
)
from scaling.predict.cost.stages import head_params

_BUCKET = 5e8  # elements of reduce_bucket_size (scaling/train/engines/deepspeed)
_LIVE = 1e9  # elements of ZeRO-3's stage3_max_live_parameters and stage3_max_reuse_distance
_SUB_GROUP = 1e9  # elements of sub_group_size


class _Zero:
    """The form that ZeRO, or a bf16 pipeline, gives a stage's weights, gradients and state.

    Bytes or masks, (n,), except `shard`.
    """

    def __init__(self, t: Stage) -> None:
        s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
        z, whole = f.zero_stage, e * t.params
        self.partitions, self.gathers = (z == 1) | (z == 2), z >= 3
        # without ZeRO, pipelines in bf16 deal the state to all replicas
        self.dealt = (z == 0) & f.bf16 & s.piped
        # ZeRO-1 or 2 with one replica leaves gradients where they are; with several it moves them
        # out of its buckets
        self.alone = self.partitions & (s.replicas == 1) & ~f.offload
        self.copies = self.partitions & ~self.alone & (not s.piped) & ~f.offload
        # elements of the rank's part of the state; experts are shared by those that hold the same
        ranks = s.sharding.updates
        experts = t.layers * s.expert_params
        self.shard = (t.params - experts) / ranks + experts / np.maximum(ranks / f.ep, 1.0)
        # weights between their uses, and those that are gathered when the loss is computed
        self.weights = whole * s.sharding.weights_share(z)
        self.gathered = _gathered_bytes(t)
        # master weights and moments; training in fp32 without ZeRO has no master weights
        state = np.where(f.short_states, 6.0, np.where((e < FP32) | (z > 0), 12.0, 8.0))
        self.state = state * ~f.offload * self.shard
        self.bucket = ~self.alone * e * np.minimum(_BUCKET, t.params)
        second_bucket = self.partitions & (s.replicas > 1) & (not s.piped)
        self.buckets = (z > 0) * (1.0 + second_bucket) * self.bucket
        # gradients of every weight that overlaps rank 0's part of the flat buffer
        touched = np.maximum(self.shard, s.vocab_params if t.has_embedding else 0.0)
        touched = np.where(s.sharding.state > 1, touched, t.params)
        self.touched = self.partitions * e * touched
        # gradients in a buffer of their own, and those that a micro-batch finds of earlier ones
        self.flat_gradients = self.gathers * e * self.shard + self.dealt * whole
        self.continues = f.accumulation > t.warm_up
        earlier = (z <= 1) * whole + (z == 2) * self.touched
        self.waiting = self.flat_gradients + self.continues * earlier


def _gathered_bytes(t: Stage) -> Floats | float:
    """Bytes of the weights that ZeRO-3 holds whole when the loss is computed.

    It gathers whole layers up to _LIVE elements and lets go what is not used again within as many.
    It holds the head, the layers before it, one layer more and the embedding, which a prefetch
    takes; recomputing has let these two go.
    """
    s, f = t.sizes, t.sizes.f
    gathers = f.zero_stage >= 3
    if not gathers.any():
        return 0.0
    room = np.maximum(_LIVE - s.vocab_params, 0.0)
    layers = room - np.mod(room, s.layer_params)
    embedding = (f.embeddings >= 2) * np.minimum(s.vocab_params, room)
    prefetched = ~f.full * (s.layer_params + embedding)
    gathered = np.minimum(t.params, s.vocab_params + layers + prefetched)
    return np.asarray(gathers * f.element_bytes * gathered)


def moments_of(t: Stage) -> list[Moment]:
    """The moments of a step that may be the fullest."""
    s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
    zero = _Zero(t)
    usual = Held(zero.weights + zero.gathered, zero.waiting, zero.state, buffers=zero.buckets)
    has_buckets = zero.gathers | ((f.zero_stage == 1) & zero.continues)
    loss = usual.with_(buffers=has_buckets * zero.buckets)
    # one matrix of embedding and head: the head's gradient waits for the embedding's
    tied = t.has_embedding * t.has_head * (f.embeddings < 2) * e * s.vocab_params
    head_gradients = t.has_head * e * s.vocab_params + ~f.fused_cross_entropy * e * t.logits
    moments = [
        (BUILD, _building(t, zero)),
        *_backward_ends(t, zero, usual),
        (OPTIMIZER, _stepping(t, zero)),
        (BACKWARD, loss.plus(t.in_flight + t.final_norm, head_gradients)),
    ]
    if (f.zero_stage > 0).any():
        moments.append((BACKWARD, _bucket_full(t, zero, tied)))
    in_layer = usual.with_(gradients=zero.waiting + tied)
    return moments + model_moments(t, loss=loss, in_layer=in_layer)


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
    sharded = np.maximum((FP32 + e) * zero.shard, cast)
    # DeepSpeed's 16-bit optimizer without ZeRO takes 18 bytes a weight while it is built
    plain = np.where(low, 18.0 * t.params, zero.state)
    plain = np.where(zero.partitions | zero.dealt, flat, plain)
    return Held(zero.weights, 0.0, np.where(zero.gathers, sharded, plain))


def _backward_ends(t: Stage, zero: _Zero, usual: Held) -> tuple[Moment, Moment]:
    """The embedding's gradient is computed; the last gradients are reduced.

    By then ZeRO's buckets have taken the gradients of all micro-batches. The rest is joined in a
    copy when the last weight is done.
    """
    s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
    grown = np.where(
        (f.zero_stage == 0) | s.piped, e * t.params, zero.waiting - zero.flat_gradients
    )
    grown = zero.flat_gradients + grown
    embedding = s.vocab_params if t.has_embedding else 0.0
    at_embedding = usual.with_(gradients=grown + e * embedding)
    left = np.where(zero.copies, np.minimum(zero.touched, grown), grown)
    joined = ((s.replicas > 1) | zero.gathers | f.offload) * e * np.mod(t.params, _BUCKET)
    at_last = usual.with_(weights=zero.weights, gradients=left, buffers=zero.buckets + joined)
    return (
        (BACKWARD, at_embedding.plus(t.in_flight * t.staying)),
        (BACKWARD, at_last),
    )


def _bucket_full(t: Stage, zero: _Zero, tied: Floats | float) -> Held:
    """A full bucket is reduced, under ZeRO-3 in a copy, at any matrix.

    If the whole stage fits into one bucket, no weight is gathered any more by then.
    """
    s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
    several = t.params > _BUCKET
    unreduced = np.maximum(1 - _BUCKET / np.maximum(t.params, 1.0), 0.0)
    left = np.where(zero.copies & ~several, np.minimum(zero.touched, zero.waiting), zero.waiting)
    return Held(
        zero.weights + (several | s.sharding.second) * zero.gathered,
        left + tied,
        zero.state,
        activations=e * s.hidden + several * t.in_flight * unreduced,
        buffers=zero.buckets + (f.zero_stage > 0) * zero.bucket,
    )


def _stepping(t: Stage, zero: _Zero) -> Held:
    """The optimizer's step: gradients, state and its working copies.

    ZeRO works on flat copies in 16 and 32 bits, at stage 3 of one group of weights after the other.
    A bf16 pipeline takes the norm of fp32 copies, one gradient after the other.
    """
    s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
    low, largest = e < FP32, np.maximum(s.vocab_params, s.ffn_params)
    flat = np.where(f.short_states | ~low, e, e + FP32)
    by_zero = flat * np.minimum(zero.shard, np.where(zero.gathers, _SUB_GROUP, np.inf))
    copies = low * FP32 * np.where(zero.dealt, np.maximum(zero.shard, largest), t.params)
    no_zero = f.zero_stage == 0
    return Held(
        zero.weights,
        no_zero * e * t.params + zero.touched + zero.flat_gradients,
        zero.state + np.where(no_zero, copies, by_zero),
        buffers=zero.gathers * zero.buckets,
    )
