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


def moments_of(t: Stage) -> list[Moment]:
    """The moments of a step that may be the fullest."""
    s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
    z, low, whole = f.zero_stage, e < FP32, e * t.params
    partitions, gathers, no_zero = (z == 1) | (z == 2), z >= 3, z == 0
    # without ZeRO, pipelines in bf16 deal the state to all replicas
    dealt = no_zero & f.bf16 & s.piped
    # ZeRO-1 or 2 with one replica leaves gradients where they are; with several it moves them out
    # of its buckets
    alone = partitions & (s.replicas == 1) & ~f.offload
    copies = partitions & ~alone & ~s.piped & ~f.offload
    # elements of the rank's part of the state; experts are shared by those that hold the same
    ranks, experts = s.sharding.updates, t.layers * s.expert_params
    shard = (t.params - experts) / ranks + experts / np.maximum(ranks / f.ep, 1.0)
    # weights between their uses, and those that are gathered when the loss is computed
    weights, gathered = whole * s.sharding.weights_share(z), _gathered_bytes(t)
    # master weights and moments; training in fp32 without ZeRO has no master weights
    state = np.where(f.short_states, 6.0, np.where(low | (z > 0), 12.0, 8.0))
    state = state * ~f.offload * shard
    bucket = (z > 0) * ~alone * e * np.minimum(_BUCKET, t.params)
    buckets = (1.0 + (partitions & (s.replicas > 1) & ~s.piped)) * bucket
    # gradients of every weight that overlaps rank 0's part of the flat buffer
    touched = np.maximum(shard, t.has_embedding * s.vocab_params)
    touched = partitions * e * np.where(s.sharding.state > 1, touched, t.params)
    # gradients in a buffer of their own, and those that a micro-batch finds of earlier ones
    flat, continues = gathers * e * shard + dealt * whole, f.accumulation > t.warm_up
    waiting = flat + continues * ((z <= 1) * whole + (z == 2) * touched)
    usual = Held(weights + gathered, waiting, state, buffers=buckets)
    loss = usual.with_(buffers=(gathers | ((z == 1) & continues)) * buckets)
    # one matrix of embedding and head: the head's gradient waits for the embedding's
    tied = t.has_embedding * t.has_head * (f.embeddings < 2) * e * s.vocab_params
    head_gradients = t.has_head * e * s.vocab_params + ~f.fused_cross_entropy * e * t.logits

    # While the engine is built: flat copies that become state. ZeRO-3 casts a matrix before a rank
    # takes its slice of it. DeepSpeed's 16-bit optimizer without ZeRO takes 18 bytes a weight.
    drawn, master = vocab_init_bytes(f), FP32 * shard
    flattened = np.where(dealt, whole + master, np.maximum(whole, master))
    flattened = np.maximum(flattened, drawn - e * s.vocab_params)
    plain = np.where(partitions | dealt, flattened, np.where(low, 18.0 * t.params, state))
    cast = np.where(low, (FP32 + e) * head_params(f), drawn) - (f.embeddings < 2) * weights
    built = np.where(gathers, np.maximum((FP32 + e) * shard, cast), plain)

    # A full bucket is reduced, under ZeRO-3 in a copy, at any matrix. If the whole stage fits into
    # one bucket, no weight is gathered any more by then.
    several, taken = t.params > _BUCKET, np.minimum(touched, waiting)
    unreduced = np.maximum(1 - _BUCKET / np.maximum(t.params, 1.0), 0.0)
    bucket_full = Held(
        weights + (several | s.sharding.second) * gathered,
        np.where(copies & ~several, taken, waiting) + tied,
        state,
        activations=e * s.hidden + several * t.in_flight * unreduced,
        buffers=buckets + bucket,
    )

    # By the embedding's gradient ZeRO's buckets have taken those of all micro-batches. The rest is
    # joined in a copy when the last weight is done.
    grown = flat + np.where(no_zero | s.piped, whole, waiting - flat)
    at_embedding = usual.with_(gradients=grown + t.has_embedding * e * s.vocab_params)
    joined = ((s.replicas > 1) | gathers | f.offload) * e * np.mod(t.params, _BUCKET)
    left = np.where(copies, np.minimum(touched, grown), grown)

    # ZeRO's step works on flat copies in 16 and 32 bits, at stage 3 of one group of weights after
    # the other. A bf16 pipeline takes the norm of fp32 copies, one gradient after the other.
    group = np.minimum(shard, np.where(gathers, _SUB_GROUP, np.inf))
    by_zero = np.where(f.short_states | ~low, e, e + FP32) * group
    largest = np.maximum(s.vocab_params, s.ffn_params)
    unzeroed = low * FP32 * np.where(dealt, np.maximum(shard, largest), t.params)
    stepping = Held(
        weights,
        no_zero * whole + touched + flat,
        state + np.where(no_zero, unzeroed, by_zero),
        buffers=gathers * buckets,
    )
    return [
        (BUILD, Held(weights, 0.0, built)),
        *model_moments(t, loss=loss, in_layer=usual.with_(gradients=waiting + tied)),
        (BACKWARD, loss.plus(t.in_flight + t.final_norm, head_gradients)),
        (BACKWARD, bucket_full),
        (BACKWARD, at_embedding.plus(t.in_flight * t.staying)),
        (BACKWARD, usual.with_(weights=weights, gradients=left, buffers=buckets + joined)),
        (OPTIMIZER, stepping),
    ]


def _gathered_bytes(t: Stage) -> Floats | float:
    """Bytes of the weights that ZeRO-3 holds whole when the loss is computed.

    It gathers whole layers up to _LIVE elements and lets go what is not used again within as many.
    It holds the head, the layers before it, one layer more and the embedding, which a prefetch
    takes; recomputing has let these two go.
    """
    s, f = t.sizes, t.sizes.f
    room = np.maximum(_LIVE - s.vocab_params, 0.0)
    layers = room - np.mod(room, s.layer_params)
    embedding = (f.embeddings >= 2) * np.minimum(s.vocab_params, room)
    prefetched = ~f.full * (s.layer_params + embedding)
    gathered = np.minimum(t.params, s.vocab_params + layers + prefetched)
    return np.asarray((f.zero_stage >= 3) * f.element_bytes * gathered)
