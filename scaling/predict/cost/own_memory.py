"""Peak memory of this project's engine on DeepSpeed, phase by phase, as its rehearsals count it."""

import functools
from collections.abc import Callable, Mapping

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.cost.chunks import ONE_F_ONE_B
from scaling.predict.cost.own_parts import (
    BACKWARD,
    BUILD,
    FORWARD,
    OPTIMIZER,
    WIDE,
    Held,
    Memory,
    Moment,
    by_rows,
    drawn_whole,
    fullest_of,
    loss_of,
    position_tables,
)
from scaling.predict.cost.own_stage import (
    BUCKET,
    HeldLayers,
    Stage,
    ends_of_1f1b,
    ends_of_v,
    stage_of,
    step_of,
    whole_model,
)
from scaling.predict.cost.stages import head_params
from scaling.predict.read.features import Features, Group

Ranks = Callable[[Features], tuple[HeldLayers, ...]]

_LIVE = 1e9  # elements of ZeRO-3's stage3_max_live_parameters and stage3_max_reuse_distance
_GROUP = 1e9  # of its sub_group_size
_PREFETCH = 5e7  # elements of its stage3_prefetch_bucket_size
_NORM = 8.0  # bytes of fp64, in which DeepSpeed takes the norm of a gradient


def own_memory_of(group: Group, f: Features, p: Mapping[str, float]) -> Memory:
    """The fullest moment of the fullest stage."""

    def of_ranks(f: Features, *, ranks: Ranks, piped: bool) -> Memory:
        step = step_of(group, f, piped=piped)
        stages = [_moments(stage_of(step, held)) for held in ranks(f)]
        return fullest_of(stages, p["buffers_bytes"])

    straight = functools.partial(ends_of_1f1b, group)
    in_line, in_v = (
        functools.partial(of_ranks, ranks=ranks, piped=True) for ranks in (straight, ends_of_v)
    )
    whole = functools.partial(of_ranks, ranks=lambda f: (whole_model(f),), piped=False)

    def in_stages(f: Features) -> Memory:
        return by_rows(f.schedule == ONE_F_ONE_B, f, in_line, in_v)

    return by_rows(f.pp > 1, f, in_stages, whole)


def _moments(t: Stage) -> list[Moment]:
    s, h, f, e = t.step, t.held_layers, t.step.f, t.step.f.element_bytes
    gathered, gathers = _gathered_bytes(t), bool(s.gathers.any())
    passing, final = _kept(t)
    kept = passing + final
    behind = ~s.zero * t.buckets  # while gradients are reduced

    def at(
        gradients: Floats | float = t.waiting,
        optimizer: Floats | float = t.state,
        activations: Floats | float = 0.0,
        logits: Floats | float = 0.0,
        buffers: Floats | float = behind,
        weights: Floats | float = t.held + gathered,
    ) -> Held:
        return Held(weights, gradients, optimizer, activations, logits, buffers)

    # of a matrix that is gathered for the second time the parts and the whole
    again = (s.gathers & f.full) * e * s.matrix if gathers else 0.0
    # of a matrix of two modules the head's gradient waits for the look-up's
    both = h.looks_up and h.has_head
    tied = (f.embeddings < 2) * e * s.table if both else 0.0
    own = e * s.own
    working = passing + s.layer.again + own + again + tied
    after_ffn = t.held + gathered
    if gathers:
        feed_forward = (f.mlp_inputs + 1) * s.matrix
        left = s.gathers * e * (t.weights - s.table - feed_forward)
        after_ffn = t.held + np.minimum(gathered, left)
    # joined in a copy when the last weight is done
    remainder = ((s.replicas > 1) | s.gathers | f.offload) * e * np.mod(t.weights, BUCKET)
    grown = np.where(s.zero | s.piped | t.single, t.gradients, t.waiting - t.accumulated)
    grown = grown + t.accumulated
    # in ZeRO's buckets the gradients of all micro-batches are by then
    moved = s.parts & ~t.single & (not s.piped) & ~f.offload
    at_last = np.where(moved, np.minimum(t.touched, grown), grown)
    # of micro-batches still on their way
    others = passing * (1 - h.returning / np.maximum(h.flying, 1.0))
    of_first = e * s.table if h.looks_up else 0.0
    moments = [
        (BUILD, at(0.0, _building(t), buffers=0.0, weights=t.held)),
        *_around_loss(t, at, kept),
        (BACKWARD, at(activations=working + s.layer.in_ffn)),
        (BACKWARD, at(activations=working + s.layer.in_attention, weights=after_ffn)),
        (BACKWARD, at(grown, activations=others + own + of_first + 2 * tied)),
        (BACKWARD, at(at_last, activations=own, buffers=behind + remainder, weights=t.held)),
        (
            OPTIMIZER,
            at(
                s.zero * t.gradients + t.touched + t.accumulated,
                t.state + _stepping(t),
                logits=(h.outputs if s.piped and not h.looks_up else 0.0) * e * s.logits,
                buffers=s.gathers * t.buckets,
                weights=t.held,
            ),
        ),
    ]
    if not s.zero.all():
        # a weight is kept for the next micro-batch where less than _LIVE lies between its uses
        let_go = np.clip(t.weights - _LIVE / 2, 0.0, BUCKET) * (t.weights - s.table < _LIVE)
        # and none is there any more when all gradients are reduced at once
        going_on = (t.weights > BUCKET) | s.sharding.second
        held = t.held + going_on * np.maximum(gathered - s.gathers * e * let_go, 0.0)
        in_copy = behind + ~s.zero * t.bucket
        all_moved = moved & (t.weights <= BUCKET)
        gradients = np.where(all_moved, np.minimum(t.touched, t.waiting), t.waiting)
        activations = _at_flush(t, passing) + tied
        flush = at(gradients, activations=activations, buffers=in_copy, weights=held)
        moments.append((BACKWARD, flush))
    if (f.attentions > 1).any():
        # the gradient of an encoder-decoder's position table waits for that of the next layer
        earlier = working + s.layer.in_attention + position_tables(f) - s.layer.kept
        moments.append((BACKWARD, at(activations=earlier, weights=after_ffn)))
    return moments


def _around_loss(t: Stage, at: Callable[..., Held], kept: Floats) -> list[Moment]:
    """From the last layer's forward to its backward."""
    s, h, f, e = t.step, t.held_layers, t.step.f, t.step.f.element_bytes
    if not h.has_head:
        return [(FORWARD, at(activations=kept, buffers=t.waiting_buckets)),
                (BACKWARD, at(activations=kept))]  # fmt: skip
    loss = loss_of(f, s.logits, s.tokens, s.table, h.outputs)
    unfused = ~f.fused_norm * s.own
    moments = [
        (
            FORWARD,
            at(activations=kept + e * unfused, logits=loss.forward, buffers=t.waiting_buckets),
        ),
        (BACKWARD, at(activations=kept, logits=loss.backward, buffers=t.waiting_buckets)),
        (BACKWARD, at(activations=kept, logits=loss.of_logits, buffers=t.waiting_buckets)),
        (BACKWARD, at(activations=kept, logits=loss.after)),
        (BACKWARD, at(activations=kept + 16.0 * unfused)),
    ]
    second = s.sharding.second
    if second.any():
        # the first micro-batch of all: hpZ lets a weight go that the head's backward holds, and
        # gathers it again; there are no moments yet
        first = at(
            t.accumulated,
            second * ~f.offload * WIDE * t.part,
            kept,
            second * loss.of_logits,
            weights=t.held + second * 2 * e * s.table,
        )
        moments.append((BACKWARD, first))
    return moments


def _kept(t: Stage) -> tuple[Floats, Floats | float]:
    """Bytes of activations when the last layer is done: of layers and messages, of the final norm.

    Recomputing keeps the position tables of encoder and decoder, which every layer is given: of
    each micro-batch on its way the one of the stage's layers.
    """
    s, h, f, e = t.step, t.held_layers, t.step.f, t.step.f.element_bytes
    passing = h.flying * s.layer.kept
    passing = passing + (f.full | f.selective) * h.positions * position_tables(f)
    if s.piped:
        passing = passing + h.messages * e * s.own
    if not h.has_head:
        return passing, 0.0
    return passing, np.where(f.fused_norm, e, WIDE + e) * s.own + e * s.tokens * f.hidden_size


def _at_flush(t: Stage, passing: Floats) -> Floats:
    """Activations when a full bucket is reduced.

    ZeRO-3 joins it in a copy, at any matrix; where a layer is more than a bucket, not at its last
    one, with which its backward begins.
    """
    s, e = t.step, t.step.f.element_bytes
    left = np.maximum(1 - BUCKET / np.maximum(t.weights, 1.0), 0.0)
    anywhere = s.gathers & (s.layer_weights <= BUCKET)
    in_layer = anywhere * (s.layer.again + e * s.matrix)
    return e * s.own + (t.weights > BUCKET) * (passing * left + in_layer)


def _building(t: Stage) -> Floats:
    """Bytes beside the weights while the engine is built."""
    s, f, e = t.step, t.step.f, t.step.f.element_bytes
    low, whole = e < WIDE, drawn_whole(f)
    flat_copy = np.maximum(e * t.weights, WIDE * t.part)
    flat_copy = np.where(s.dealt, e * t.weights + WIDE * t.part, flat_copy)
    flat = np.maximum(flat_copy, whole - e * s.table)
    # ZeRO-3 casts a matrix before a rank takes its slice
    cast = np.where(low, (WIDE + e) * head_params(f), whole) - (f.embeddings < 2) * t.held
    sharded = np.maximum(t.buckets + WIDE * t.part + e * t.part + e * s.table, cast)
    plain = np.where(low, 18.0 * t.weights, t.state)
    return np.where(s.gathers, sharded, np.where(s.parts | s.dealt, flat, plain))


def _stepping(t: Stage) -> Floats:
    """Bytes of the optimizer's step beside its state: of ZeRO the larger of two.

    The norm of the largest gradient in fp64, or flat copies in 16 and 32 bits.
    """
    s, f, e = t.step, t.step.f, t.step.f.element_bytes
    low = e < WIDE
    flat = np.where(f.short_states | ~low, e, e + WIDE)
    in_norm = _NORM * np.minimum(t.part, np.maximum(s.table, s.matrix))
    # ZeRO-3 goes from group to group of weights
    group = np.minimum(t.part, _GROUP + s.matrix / 2 / s.sharding.state)
    parts = np.where(s.gathers, flat * group, np.maximum(in_norm, flat * t.part))
    # a pipeline's norm is of fp32 copies, one gradient after the other
    dealt = np.maximum(t.part, np.maximum(s.table, s.matrix))
    return np.where(s.zero, low * WIDE * np.where(s.dealt, dealt, t.weights), parts)


def _gathered_bytes(t: Stage) -> Floats | float:
    """Of the weights that ZeRO-3 holds whole when the loss is computed."""
    s, f = t.step, t.step.f
    if not s.gathers.any():
        return 0.0
    gathered = s.gathers * f.element_bytes * _gathered(t)
    # in a step's first micro-batch hpZ has no second copy yet of what was not let go
    early = s.sharding.second & (f.accumulation == 1)
    return np.asarray(gathered * np.where(early, 1 - 1 / s.sharding.inside, 1.0))


def _gathered(t: Stage) -> Floats:
    """Elements that ZeRO-3 holds whole when the loss is computed, (n,).

    It gathers up to 1e9 and lets go what is not used again within as many: the head, the layers
    before it, and of one more the feed-forward where that has room, or else what a prefetch takes
    (whole matrices; recomputing has let them go).
    """
    f, matrix, table, weights = t.step.f, t.step.matrix, t.step.table, t.weights
    feed_forward = (f.mlp_inputs + 1) * matrix
    room = np.maximum(_LIVE - table, 0.0)
    rest = np.mod(room, t.step.layer_weights)
    fetched = np.ceil(np.minimum(rest, _PREFETCH) / np.maximum(matrix, 1.0)) * matrix * ~f.full
    part = np.where(rest >= feed_forward, feed_forward, np.minimum(fetched, feed_forward))
    filled = table + room - rest + part
    # all of a model whose look-up alone is left: a prefetch does not look at what it begins
    everything = weights - table < _LIVE
    return np.where(everything, weights, np.minimum(weights, filled))
