"""What this project's engine on DeepSpeed holds beside a model's activations, as rehearsals say."""

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.own_layer import WIDE, drawn_whole
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

_BUCKET = 5e8  # elements of its reduce_bucket_size (scaling/train/engines/deepspeed)
_LIVE = 1e9  # elements of ZeRO-3's stage3_max_live_parameters and stage3_max_reuse_distance
_GROUP = 1e9  # of its sub_group_size
_PREFETCH = 5e7  # elements of its stage3_prefetch_bucket_size
_NORM = 8.0  # bytes of fp64, in which DeepSpeed takes the norm of a gradient


def moments_of(t: Stage) -> list[Moment]:
    """What is held when the loss is computed, in the layers' backward, and at other moments."""
    s, c, f, e, z = t.step, t.chunks, t.step.f, t.step.f.element_bytes, t.step.f.zero_stage
    zero, parts, gathers, low = z == 0, (z == 1) | (z == 2), z >= 3, e < WIDE
    dealt = zero & f.bf16 & s.piped  # bf16 pipelines deal the state to all replicas, without ZeRO
    weights, sharding, own, kept = t.weights, s.sharding, e * s.own, t.passing + t.final
    over = np.where(dealt, s.replicas, sharding.state)
    routed = c.layers * s.routed  # over the ranks that hold the same experts
    # elements whose state it keeps
    part = (weights - routed) / over + routed / np.maximum(over / f.ep, 1.0)
    state_bytes = np.where(f.short_states, 6.0, np.where(low | ~zero, 12.0, 8.0)) * ~f.offload
    gradients = e * weights
    held = np.where(gathers & (f.ep > 1), e * part, gradients * sharding.weights_share(z))
    state = state_bytes * part
    accumulated = gathers * e * part + dealt * gradients  # gradients in a buffer of their own
    # a replica alone under ZeRO-1 or 2 leaves its gradients where they are
    single = parts & (s.replicas == 1) & ~f.offload
    moved = parts & ~single & (not s.piped) & ~f.offload
    bucket = ~single * e * np.minimum(_BUCKET, weights)
    buckets = ~zero * (1.0 + (parts & (s.replicas > 1) & (not s.piped))) * bucket
    # of every weight that rank 0's part of ZeRO's flat buffer touches
    first_table = s.table if c.looks_up else 0.0
    touched = np.where(part <= first_table, first_table, part + s.matrix / 2)
    touched = parts * e * np.where(sharding.state > 1, np.minimum(touched, weights), weights)
    # gradients from the first micro-batch on that finds some there
    going_on = f.accumulation > c.rounds
    waiting = accumulated + ((z <= 1) & going_on) * gradients + ((z == 2) & going_on) * touched

    alone = gathers & (f.ep > 1) & (over == f.ep)  # with its experts, which it gathers from nobody
    gathered = np.maximum(_gathered_bytes(t) - alone * e * routed, 0.0)
    usual = Held(held + gathered, waiting, state, buffers=buckets)
    loss = usual.but(buffers=(gathers | ((z == 1) & going_on)) * buckets)
    # of a matrix that is gathered for the second time the parts and the whole; of a matrix of two
    # modules the head's gradient waits for the look-up's
    again = (gathers & f.full) * e * s.matrix
    tied = (f.embeddings < 2) * e * s.table if c.looks_up and c.has_head else 0.0
    left = gathers * e * (weights - s.table - (f.mlp_inputs + 1) * s.matrix)
    after_ffn = held + np.minimum(gathered, left)
    in_attention = usual.but(weights=after_ffn + again, gradients=waiting + tied)
    grown = accumulated + np.where(zero | s.piped | single, gradients, waiting - accumulated)
    all_done = usual.but(gradients=grown + e * first_table + 2 * tied)
    # in ZeRO's buckets the gradients of all micro-batches are by then; what remains is joined in a
    # copy when the last weight is done
    at_last = np.where(moved, np.minimum(touched, grown), grown)
    remainder = ((s.replicas > 1) | gathers | f.offload) * e * np.mod(weights, _BUCKET)
    last = usual.but(weights=held, gradients=at_last, buffers=buckets + remainder)
    stepping = Held(
        held,
        zero * gradients + touched + accumulated,
        state + _stepping(t, part, dealt),
        logits=(s.piped and not c.looks_up) * c.outputs * e * t.logits,
        buffers=gathers * buckets,
    )
    # beside the weights while the engine is built: flat copies; ZeRO-3 casts a matrix before a rank
    # takes its slice
    drawn, whole = drawn_whole(f), e * weights
    flat = np.where(dealt, whole + WIDE * part, np.maximum(whole, WIDE * part))
    flat = np.maximum(flat, drawn - e * s.table)
    cast = np.where(low, (WIDE + e) * head_params(f), drawn) - (f.embeddings < 2) * held
    sharded = np.maximum(buckets + (WIDE + e) * part + e * s.table, cast)
    plain = np.where(parts | dealt, flat, np.where(low, 18.0 * weights, state))
    more = [
        (BUILD, Held(held, 0.0, np.where(gathers, sharded, plain))),
        (BACKWARD, all_done.plus(t.passing * c.staying + own)),
        (BACKWARD, last.plus(own)),
        (OPTIMIZER, stepping),
    ]
    if c.has_head:
        more.append((BACKWARD, usual.plus(kept + 16.0 * t.unfused)))
    if c.has_head and sharding.second.any():
        # the first micro-batch of all: hpZ lets a weight go that the head's backward holds, and
        # gathers it again; there are no moments yet
        second = sharding.second
        twice, drawing = held + second * 2 * e * s.table, second * ~f.offload * WIDE * part
        first = Held(twice, accumulated, drawing, buffers=buckets)
        more.append((BACKWARD, first.plus(kept, second * t.loss.of_logits)))
    if not zero.all():
        # a full bucket is reduced; ZeRO-3 joins it in a copy, at any matrix; where a layer is more
        # than a bucket, not at its last one, with which its backward begins. A weight is kept for
        # the next micro-batch where less than _LIVE lies between its uses, and none is there any
        # more when all gradients are reduced at once
        full = weights > _BUCKET
        let_go = np.clip(weights - _LIVE / 2, 0.0, _BUCKET) * (weights - s.table < _LIVE)
        there = (full | sharding.second) * np.maximum(gathered - gathers * e * let_go, 0.0)
        in_layer = (gathers & (s.layer_weights <= _BUCKET)) * (s.layer.again + e * s.matrix)
        unreduced = np.maximum(1 - _BUCKET / np.maximum(weights, 1.0), 0.0)
        flush = Held(
            held + there,
            np.where(moved & ~full, np.minimum(touched, waiting), waiting) + tied,
            state,
            buffers=buckets + ~zero * bucket,
        )
        more.append((BACKWARD, flush.plus(own + full * (t.passing * unreduced + in_layer))))
    more += model_moments(
        t,
        forward=loss.but(activations=e * t.unfused),
        loss=loss,
        in_head=loss,
        after_loss=usual,
        in_ffn=in_attention.but(weights=usual.weights + again),
        in_attention=in_attention,
    )
    return more


def _stepping(t: Stage, part: Floats, dealt: Flags) -> Floats:
    """Bytes of the optimizer's step beside its state: of ZeRO the larger of two.

    The norm of the largest gradient in fp64, or flat copies in 16 and 32 bits.
    """
    s, f, e = t.step, t.step.f, t.step.f.element_bytes
    low, largest = e < WIDE, np.maximum(s.table, s.matrix)
    flat = np.where(f.short_states | ~low, e, e + WIDE)
    # ZeRO-3 goes from group to group of weights
    group = np.minimum(part, _GROUP + s.matrix / 2 / s.sharding.state)
    in_norm = _NORM * np.minimum(part, largest)
    parts = np.where(f.zero_stage >= 3, flat * group, np.maximum(in_norm, flat * part))
    # a pipeline's norm is of fp32 copies, one gradient after the other
    copies = np.where(dealt, np.maximum(part, largest), t.weights)
    return np.where(f.zero_stage == 0, low * WIDE * copies, parts)


def _gathered_bytes(t: Stage) -> Floats | float:
    """Of the weights that ZeRO-3 holds whole when the loss is computed.

    It gathers up to 1e9 elements and lets go what is not used again within as many: the head, the
    layers before it, and of one more the feed-forward where that has room, or else what a prefetch
    takes (whole matrices; recomputing has let them go).
    """
    s, f, weights = t.step, t.step.f, t.weights
    gathers = f.zero_stage >= 3
    if not gathers.any():
        return 0.0
    matrix, table = s.matrix, s.table
    feed_forward = (f.mlp_inputs + 1) * matrix
    room = np.maximum(_LIVE - table, 0.0)
    rest = np.mod(room, s.layer_weights)
    fetched = np.ceil(np.minimum(rest, _PREFETCH) / np.maximum(matrix, 1.0)) * matrix * ~f.full
    part = np.where(rest >= feed_forward, feed_forward, np.minimum(fetched, feed_forward))
    filled = np.minimum(weights, table + room - rest + part)
    # all of a model whose look-up alone is left: a prefetch does not look at what it begins
    gathered = np.where(weights - table < _LIVE, weights, filled)
    # in a step's first micro-batch hpZ has no second copy yet of what was not let go
    early = s.sharding.second & (f.accumulation == 1)
    early_share = np.where(early, 1 - 1 / s.sharding.inside, 1.0)
    return np.asarray(gathers * f.element_bytes * gathered * early_share)


def chunks_of_ranks(group: Group, f: Features) -> tuple[Chunks, Chunks]:
    """Of the first and the last rank; the layouts all run 1F1B or all DualPipeV."""
    is_1f1b = (f.schedule == ONE_F_ONE_B).all()
    return _ends_of_1f1b(group, f) if is_1f1b else _ends_of_v(f)


def reduces(f: Features, piped: bool) -> None:
    """None: gradients of a layer go one by one."""


def _ends_of_1f1b(group: Group, f: Features) -> tuple[Chunks, Chunks]:
    """min(accumulation, pp) micro-batches on their way, and one."""
    stages, rounds = stages_of(f, group.stack), np.minimum(f.accumulation, f.pp)
    # tp ranks keep a part each of what came in, where all of them have the same
    kept = np.where(f.attentions > 1, 2.0, np.where(f.sequence_parallel, 1.0, 1 / f.tp))
    first = Chunks(
        layers=stages.first, tables=1.0, flying=rounds * stages.first, staying=1 - 1 / rounds,
        messages=rounds * kept + 1.5, looks_up=True, has_head=False, rounds=rounds,
        positions=rounds,
    )  # fmt: skip
    last = Chunks(
        layers=stages.last, tables=1.0, flying=stages.last, staying=1.0 * (stages.last == 0),
        messages=kept + 1.5, looks_up=False, has_head=True, positions=1.0,
        outputs=np.minimum(f.accumulation, 2.0),
    )  # fmt: skip
    return first, last


def _ends_of_v(f: Features) -> tuple[Chunks, Chunks]:
    """The first and the last rank of DualPipeV, each with a stage on the way out and one back.

    DeepSpeed deals layers evenly to 2 pp stages, and first the ones left over. Rank r holds
    2 pp - r micro-batches on their way out and r + 1 on their way back
    (deepspeed/runtime/pipe/schedule.py, DualPipeVSchedule.steps, from step 4 on), of each what its
    stages took and what they gave.
    """
    stages = 2 * f.pp
    fewest, fuller = np.divmod(f.num_layers, stages)

    def of(rank: Floats | float, looks_up: bool) -> Chunks:
        out, back = fewest + (rank < fuller), fewest + (stages - 1 - rank < fuller)
        going, coming = np.minimum(stages - rank, f.accumulation - 1), rank + 1.0
        flying = going * out + coming * back
        return Chunks(
            layers=out + back,
            tables=f.embeddings * looks_up,
            flying=flying,
            staying=1 - back / np.maximum(flying, 1.0),
            messages=(going + coming) * (1.0 if looks_up else 2.0),
            looks_up=looks_up,
            has_head=looks_up,
            rounds=0.0,
            outputs=1.0 * looks_up,
        )

    return of(0.0, True), of(f.pp - 1, False)
