"""Peak memory of this project's engine on DeepSpeed, phase by phase, as its rehearsals count it."""

from collections.abc import Mapping

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.cost.own_parts import WIDE, Held, Memory, Moment, fullest_of, layer_of, loss_of
from scaling.predict.cost.sharding import sharding_of
from scaling.predict.cost.stages import Stages, head_params, layer_params, stages_of
from scaling.predict.read.features import Features, Group

_BUCKET = 5e8  # elements of DeepSpeed's reduce_bucket_size (scaling/train/engines/deepspeed)
_LIVE = 1e9  # elements of ZeRO-3's stage3_max_live_parameters and stage3_max_reuse_distance
_PREFETCH = 5e7  # elements of its stage3_prefetch_bucket_size
_NORM = 8.0  # bytes of fp64, in which DeepSpeed takes the norm of a gradient


def own_memory_of(group: Group, f: Features, p: Mapping[str, float]) -> Memory:
    """The fullest moment of the fullest stage."""
    stages = stages_of(f, group.stack)
    return fullest_of([_moments(group, f, p, stages, last=last) for last in (False, True)])


def _moments(
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
    layer = layer_of(f, tokens, np.zeros(len(f), dtype=bool))
    rounds = f.accumulation
    flying = np.where(piped, 1.0 if last else np.minimum(rounds, f.pp), 1.0)
    sharding = sharding_of(group, f)
    replicas = f.dp * f.cp
    # DeepSpeed's optimizer of bf16 pipelines deals the state to all replicas, though no ZeRO does,
    # and has a buffer for all gradients
    dealt = (z == 0) & piped & f.bf16
    part = weights / np.where(dealt, replicas, sharding.state)
    low = e < WIDE
    # what lives all the time
    state_bytes = np.where(f.short_states, 6.0, np.where(low | (z >= 1), 12.0, 8.0))
    state = np.where(f.offload, 0.0, state_bytes * part)
    held = e * weights * np.where(z >= 3, sharding.weights_share(z), 1.0)
    gradients = e * weights
    # a buffer of its own
    accumulated = np.where(z >= 3, e * part, np.where(dealt, gradients, 0.0))
    # a single replica under ZeRO-1 or 2 leaves its gradients where they are
    single = (z >= 1) & (z <= 2) & (replicas == 1) & ~f.offload
    bucket = np.where(single, 0.0, e * np.minimum(_BUCKET, weights))
    overlapped = (z >= 1) & (z <= 2) & ~piped & (replicas > 1)
    buckets = np.where(z == 0, 0.0, np.where(overlapped, 2.0, 1.0)) * bucket
    # gradients of every weight that rank 0's part of the flat buffer touches
    largest = np.maximum(np.where(has_head | (not last), table, 0.0), h * f.ffn_hidden_size / f.tp)
    first_table = 0.0 if last else table
    touched = np.where(part <= first_table, first_table, part + h * f.ffn_hidden_size / f.tp / 2)
    touched = e * np.where(sharding.state > 1, np.minimum(touched, weights), weights)
    touched = np.where((z == 1) | (z == 2), touched, 0.0)
    # from the first micro-batch on that finds gradients there
    going_on = rounds > flying
    whole_kept = ((z == 0) | (z == 1)) & going_on
    kept_gradients = accumulated + np.where(whole_kept, gradients, 0.0)
    kept_gradients = kept_gradients + np.where((z == 2) & going_on, touched, 0.0)
    kept_buckets = np.where((z == 3) | ((z == 1) & going_on), buckets, 0.0)
    gathered = np.where(z >= 3, e * _gathered(f, weights, table), 0.0)
    feed_forward = (f.mlp_inputs + 1) * h * f.ffn_hidden_size / f.tp
    gathered_after_ffn = np.where(
        z >= 3, np.minimum(gathered, e * (weights - table - feed_forward)), 0.0
    )
    # activations when the last layer is done
    per_stage = flying * layers * layer.kept
    messages = np.where(piped, (flying / f.tp + 1.5) * e * own, 0.0)
    # recomputing keeps the position tables of encoder and decoder, which every layer is given
    bias = np.where(f.attentions > 1, e * f.num_heads / f.tp * f.seq_length**2, 0.0)
    final = np.where(f.fused_norm, e, WIDE + e) * own + e * tokens * h
    per_stage = per_stage + np.where(f.full, 2 * bias, 0.0)
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

    others = (per_stage + messages) * (1 - 1 / flying)  # of micro-batches still on their way
    residual = np.where(has_head & ~f.fused_norm, e * own, 0.0)
    # of a matrix that is gathered for the second time the parts and the whole
    again = np.where((z >= 3) & f.full, e * h * f.ffn_hidden_size / f.tp, 0.0)
    working = kept - np.where(has_head, final, 0.0) + layer.again + e * own + again
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
    flat = np.where(f.short_states | ~low, e, e + WIDE) * part
    stepping = np.where(z == 0, np.where(low, WIDE * weights, 0.0), np.maximum(in_norm, flat))
    stepping = np.where(dealt, WIDE * part, np.where(z >= 3, flat, stepping))
    left = np.where(z == 0, gradients, touched) + accumulated
    outputs = np.where(piped, 2 * e * logits, 0.0)  # of a pipeline's buffers
    building = np.where(z == 0, np.where(low, 18.0 * weights, state), 0.0)
    # a matrix is drawn whole, in fp32, before a rank takes its slice
    whole = WIDE * head_params(f) * (1 + np.where(f.tp > 1, 1 / f.tp, 0.0))
    flat_copy = np.maximum(e * weights, WIDE * part)
    flat_copy = np.where(dealt, e * weights + WIDE * part, flat_copy)
    building = np.where(
        (z == 1) | (z == 2) | dealt, np.maximum(flat_copy, whole - e * table), building
    )
    sharded = np.maximum(buckets + WIDE * part + e * part + e * table, 1.5 * whole)
    building = np.where(z >= 3, sharded, building)
    # the first micro-batch of all: hpZ lets a weight go that the head's backward holds, and gathers
    # it again; there are no moments yet
    alone = np.where(sharding.second & ~f.offload, WIDE * part, 0.0)
    twice = np.where(sharding.second, 2 * e * table, 0.0)
    gradient_of_head = np.where(sharding.second & has_head, e * (logits + table), 0.0)
    in_step = np.where(z >= 3, buckets, 0.0)
    in_backward = np.where(z >= 1, buckets, 0.0)
    # joined in a copy when the last weight is done
    joined = (replicas > 1) | (z >= 3) | f.offload
    remainder = np.where(joined, e * np.mod(weights, _BUCKET), 0.0)
    grown = (
        np.where((z == 0) | piped | single, gradients, kept_gradients - accumulated) + accumulated
    )
    return [
        (0, at(nothing, building, buffers=nothing, more=nothing)),
        (1, at(activations=kept + residual, logits=forward)),
        (2, at(activations=kept, logits=backward)),
        (2, at(activations=kept, logits=np.where(has_head, e * (logits + table), 0.0))),
        (2, at(activations=kept, logits=after, buffers=in_backward)),
        (2, at(accumulated, alone, kept, gradient_of_head, in_backward, twice)),
        (
            2,
            at(
                activations=kept + np.where(has_head & ~f.fused_norm, 16.0 * own, 0.0),
                buffers=in_backward,
            ),
        ),
        (2, at(activations=working + layer.in_ffn, buffers=in_backward)),
        (
            2,
            at(
                activations=working + layer.in_attention,
                buffers=in_backward,
                more=gathered_after_ffn,
            ),
        ),
        (
            2,
            at(
                activations=at_flush,
                buffers=in_backward + np.where(z >= 1, bucket, 0.0),
            ),
        ),
        (2, at(grown, activations=others + e * own + e * first_table, buffers=in_backward)),
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
    # all of a model whose look-up alone is left: a prefetch does not look at what it begins
    everything = weights - table < _LIVE
    held: Floats = np.where(everything, weights, np.minimum(weights, filled))
    return held
