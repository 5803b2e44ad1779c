"""Peak memory of this project's engine on FSDP2, phase by phase, as its rehearsals count it.

Sharded weights, their moments and their gradients are fp32 (bf16 under `optimizer_precision`);
beside them lie the copies that FSDP2 gathers in the precision that trains: all weights up to
zero_stage 2, two layers of them at 3. A layer's gradients are whole until they are reduced.
Activations and loss are those of the model that both engines train (own_memory.py).
"""

import functools
from collections.abc import Mapping

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.cost.chunks import ONE_F_ONE_B, ZBV, ZERO_BUBBLE, Chunks, chunks_of
from scaling.predict.cost.experts import expert_sharding_of, held_params, present
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
    layer_of,
    loss_of,
    position_tables,
    weights_of_layer,
)
from scaling.predict.cost.sharding import sharding_of
from scaling.predict.cost.stages import head_params
from scaling.predict.read.features import Features, Group


def own_torch_memory_of(group: Group, f: Features, p: Mapping[str, float]) -> Memory:
    """The fullest moment of the first, the second and the last rank of a pipeline."""

    def of_ranks(f: Features, *, piped: bool) -> Memory:
        ranks = [_moments(group, f, each, piped) for each in chunks_of(group, f)]
        return fullest_of(ranks, p["buffers_bytes"])

    in_stages, whole = (functools.partial(of_ranks, piped=piped) for piped in (True, False))
    return by_rows(f.pp > 1, f, in_stages, whole)


def _moments(group: Group, f: Features, c: Chunks, piped: bool) -> list[Moment]:
    z, e, rounds = f.zero_stage, f.element_bytes, f.accumulation
    tokens = f.micro_batch_size * f.seq_length / f.cp
    own = tokens * f.hidden_size / np.where(f.sequence_parallel, f.tp, 1.0)
    layer_weights, table = weights_of_layer(f), head_params(f) / f.tp
    nothing = np.zeros(len(f))
    tables = np.where(piped, c.looks_up * 1.0 + c.has_head, f.embeddings)
    weights = c.layers * layer_weights + tables * table
    weights = weights + c.looks_up * f.positions * f.hidden_size
    gathered = weights
    sharding, expert_sharding = sharding_of(group, f), expert_sharding_of(f)
    part = weights / sharding.state
    if present(f):
        routed, over = held_params(f), expert_sharding.state
        experts = np.maximum(f.num_experts / f.ep, 1.0)
        padded = routed * np.ceil(experts / over) * over / experts  # FSDP2 deals whole experts
        layer_weights = layer_weights + padded
        weights = weights + c.layers * routed
        gathered = gathered + c.layers * padded
        part = part + c.layers * padded / over
    # ranks with nothing to cast have nothing to gather where they are alone, or hold everything:
    # FSDP2 does not stand around them
    several = f.dp * f.cp > 1
    undivided = (z == 0) & (not piped) & (f.ep == 1)
    gathers = ((e < WIDE) & ~f.short_states) | (several & ~undivided) | f.offload
    wide = np.where(f.short_states, e, WIDE)
    state = np.where(f.offload, 0.0, 3 * wide * part)
    copies = np.where(gathers, e, 0.0)
    held = np.where(z >= 3, 0.0, copies * gathered)
    sharded = np.where(f.offload, 0.0, wide * part)
    # pipelines reduce once a step; replicas after each micro-batch from zero_stage 2 on
    waits_for_all = piped | (z < 2)
    kept = np.where(rounds > 1, np.where(waits_for_all, e * weights, sharded), 0.0)
    # of each micro-batch a buffer for what comes in and for the gradient of what goes out, and
    # where backward is in two parts the gradient of what came in
    message = np.where(piped, e * own, 0.0)
    buffers = rounds * c.received * message
    done = np.maximum(rounds * c.deferred - np.where(c.deferred > 0, c.passes, 0.0), 0.0) * message
    # gradients of a layer are whole until all are there and reduced; where they are added to those
    # of the micro-batch before, one by one
    reduces = gathers & ~(waits_for_all & (rounds > 1))
    per_layer = layer_of(f, tokens, reduces)
    final = np.where(
        c.has_head, np.where(f.fused_norm, e, WIDE + e) * own + e * tokens * f.hidden_size, 0.0
    )
    activations = c.flying * per_layer.kept + c.passes * message + done + final
    activations = activations + (f.full | f.selective) * 2 * position_tables(f)
    put_off = c.left * per_layer.kept + c.split * per_layer.waiting + c.passes * message
    put_off = np.where(c.split > 0, put_off + rounds * c.deferred * message, 0.0)
    # weights' gradients recompute a layer once more
    put_off_gradients = (f.full & (c.split > 0)) * e * layer_weights
    put_off = put_off + (f.full & (c.split > 0)) * per_layer.again
    # before the look-up's gradient is added to that of the micro-batch before
    first_table = (piped & (rounds > 1) & c.looks_up) * e * (table + f.positions * f.hidden_size)
    others = np.minimum(c.passes, (rounds - 1) * np.where(f.schedule >= ZBV, 2.0, f.virtual)) - 1
    others = (activations - final) * np.maximum(others, 0.0) / c.passes
    logits = np.where(c.has_head, tokens * f.vocab_size / f.tp, 0.0)
    # gradients of logits, and of layers, from which those of weights are made later
    before = np.minimum(c.split_heads, rounds - 1) / np.maximum(c.split_heads, 1.0)
    at_head = activations + before * (c.split * per_layer.waiting + c.split_heads * e * logits)
    put_off = put_off + c.split_heads * e * logits
    loss = loss_of(f, logits, tokens, table, 1.0 * piped)
    in_parts = piped & ((f.schedule == ZERO_BUBBLE) | (f.schedule == ZBV))
    # a backward in parts holds the gradient of what the loss read while it goes on
    loss_backward = loss.backward + in_parts * (f.tp > 1) * ~f.fused_cross_entropy * WIDE * logits
    there = several | ((f.embeddings < 2) & gathers & (not piped))  # a tied one is never let go
    there = there & ((f.schedule == ONE_F_ONE_B) | (f.embeddings < 2) | (not piped))
    at_loss = np.where((z >= 3) & c.has_head & there, e * table, 0.0)
    two_layers = np.where(z >= 3, 2 * copies * layer_weights, 0.0)
    # while those of the layer before are computed: of the head, then of a layer, and their sum
    of_head = np.where(reduces & c.has_head, e * table, 0.0)
    of_layer = np.where(reduces, e * layer_weights * (1 + 1 / sharding.state), 0.0)
    working = per_layer.again + per_layer.above + e * own
    # a pipeline reduces all when its last backward is over, a replica one layer after the other
    unreduced = np.where(waits_for_all, e * weights, 0.0)
    alone = table * (1.0 if piped else f.embeddings > 1)  # in a group of its own
    over = sharding.state
    reduced = (e + np.where(wide > e, wide, 0.0)) / over  # bytes of a weight: as it comes, and cast
    chunks = np.where(f.schedule >= ZBV, 2.0, f.virtual)  # one is reduced after the other
    at_end = unreduced / chunks + sharded * (1 - 1 / chunks) + piped * reduced * layer_weights
    at_end = np.maximum(at_end, sharded)
    # copies of a tied matrix at a pipeline's ends get the sum of their gradients, stacked and added
    ends = c.looks_up * 1.0 + c.has_head
    summed = (piped & (f.embeddings < 2)) * (ends + (ends > 0)) * wide * table / over
    looked_up = c.looks_up * (alone + f.positions * f.hidden_size)

    def at(
        gradients: Floats = kept,
        activations: Floats = nothing,
        logits: Floats = nothing,
        more: Floats = nothing,
        held: Floats = held,
        optimizer: Floats = state,
        buffers: Floats = buffers,
    ) -> Held:
        return Held(held + more, gradients, optimizer, activations, logits, buffers)

    # what was gathered lies in a flat buffer too until the next is: of the head, of a layer
    # schedules of several chunks gather the next three of them whole (`_add_unshard_reshard`)
    ahead = piped * (z >= 3) * (f.schedule != ONE_F_ONE_B) * copies * gathered
    ahead = ahead * np.minimum(1.0, 3 / chunks)
    first = np.where(z >= 3, kept, 0.0)  # up to zero_stage 2 the first micro-batch alone gathers
    flat, flat_layer = (several & gathers) * e * alone * c.has_head, copies * layer_weights
    tied = 0.0 if piped else (f.embeddings < 2) * 1.0
    moments = [
        (BUILD, at(nothing, optimizer=wide * part, held=WIDE * table, buffers=nothing)),
        (
            BUILD,
            at(
                nothing,
                optimizer=wide * (part - table / sharding.state) * (1 - tied),
                held=drawn_whole(f) + np.where(e < WIDE, e * table, 0.0),
                buffers=nothing,
            ),
        ),
        (FORWARD, at(nothing, c.layers / chunks * per_layer.kept, more=ahead)),
        (FORWARD, at(first, activations, loss.forward, at_loss + flat)),
        (FORWARD, at(first, activations, more=flat_layer * np.where(z >= 3, 2.0, 1.0))),
        (FORWARD, at(activations=at_head, logits=loss.forward, more=at_loss)),
        (BACKWARD, at(activations=at_head, logits=loss_backward, more=at_loss)),
        (BACKWARD, at(activations=at_head, logits=loss.after, more=at_loss)),
        (BACKWARD, at(kept + of_head, activations - final + working, more=two_layers)),
        (
            BACKWARD,
            at(
                kept + of_layer,
                activations - final - per_layer.kept + working + position_tables(f),
                more=two_layers,
            ),
        ),
        (
            BACKWARD,  # the head's gradient is on its way, flat
            at(
                kept + reduces * alone * c.has_head * (2 * e + reduced),
                activations - final + e * own,
                more=two_layers / 2,
            ),
        ),
        (BACKWARD, at(kept + put_off_gradients, put_off)),
        (BACKWARD, at(kept + first_table, others)),
        (BACKWARD, at(sharded + gathers * looked_up * e * (1 + 1 / over), done, held=nothing)),
        (BACKWARD, at(at_end, done if piped else working, held=held / chunks)),
        (OPTIMIZER, at(sharded + summed, done, held=nothing)),
    ]
    if not piped and np.any(tied):
        # a matrix of two modules has two gradients and their sum, and what earlier micro-batches
        # left; the layers' are reduced by then, without shards from copies that wait until the end
        layers = weights - table
        of_layers = np.where(gathers, sharded - wide * table / sharding.state, e * layers)
        waits = np.where((z == 0) & several, e * layers, 0.0) + e * layer_weights
        gradients = np.where(waits_for_all & (rounds > 1), 4.0, 3.0) * e * table + of_layers
        gradients = (
            gradients + ((rounds > 1) & ~waits_for_all & gathers) * wide * table / sharding.state
        )
        at_last = at(tied * gradients, e * own, more=copies * table + waits * gathers, held=nothing)
        moments.append((BACKWARD, at_last))
    return moments
