"""What this project's engine on FSDP2 holds beside a model's activations, as rehearsals say.

Sharded weights, their moments and their gradients are fp32 (bf16 under `optimizer_precision`);
beside them lie the copies that FSDP2 gathers in the precision that trains: all weights up to
zero_stage 2, two layers of them at 3. A layer's gradients are whole until they are reduced.

What is on its way in a pipeline is counted from torch's own tables of actions
(torch.distributed.pipelining.schedules); a test compares the two.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.experts import expert_sharding_of, present
from scaling.predict.cost.own_layer import WIDE, drawn_whole
from scaling.predict.cost.own_memory import (
    BACKWARD,
    BUILD,
    DUALPIPEV,
    FORWARD,
    INTERLEAVED,
    ONE_F_ONE_B,
    OPTIMIZER,
    ZBV,
    ZERO_BUBBLE,
    Chunks,
    Held,
    Moment,
    Stage,
    model_moments,
)
from scaling.predict.cost.stages import ends_of_two_kinds, stages_of
from scaling.predict.read.features import Features, Group


def _gathers(f: Features, piped: bool) -> Flags:
    """Whether FSDP2 stands around the model.

    Ranks with nothing to cast have nothing to gather where they are alone, or hold everything.
    """
    undivided = (f.zero_stage == 0) & (not piped) & (f.ep == 1)
    several: Flags = (f.dp * f.cp > 1) & ~undivided
    return ((f.element_bytes < WIDE) & ~f.short_states) | several | f.offload


def _once_a_step(f: Features, piped: bool) -> Flags:
    """Pipelines reduce once a step; replicas after each micro-batch from zero_stage 2 on."""
    return (f.zero_stage < 2) | piped


def reduces(f: Features, piped: bool) -> Flags:
    """Whether gradients of a layer are whole until all are there and reduced.

    Where they are added to those of the micro-batch before they go one by one.
    """
    return _gathers(f, piped) & ~(_once_a_step(f, piped) & (f.accumulation > 1))


def _groups(f: Features) -> Floats:
    """Groups of a layer's weights: those of one operator, as of all that read the same under tp."""
    dense = np.where(f.tp > 1, 1.0, f.mlp_inputs) + 1
    of_experts = 1 + (f.mlp_inputs + 1) * (1.0 + (f.ffn_hidden_size > 0))
    mlp = (1 - f.expert_share) * dense + f.expert_share * of_experts
    return np.asarray(3 + np.where(f.tp > 1, 1.0, 3.0) + 2 * f.head_norms + mlp)


def moments_of(t: Stage) -> list[Moment]:
    """What is held when the loss is computed, in the layers' backward, and at other moments."""
    s, c, f, e = t.step, t.chunks, t.step.f, t.step.f.element_bytes
    layer, table, piped, rounds = s.layer, s.table, s.piped, f.accumulation
    gathers, several, third = _gathers(f, piped), f.dp * f.cp > 1, f.zero_stage >= 3
    once, stay, over = _once_a_step(f, piped), reduces(f, piped), s.sharding.state
    again, tied = rounds > 1, f.embeddings < 2
    layer_weights, whole, part = s.layer_weights, t.weights, t.weights / over
    if present(f):
        of_experts, experts = expert_sharding_of(f).state, np.maximum(f.num_experts / f.ep, 1.0)
        # FSDP2 deals whole experts
        padded = s.routed * np.ceil(experts / of_experts) * of_experts / experts
        layer_weights = layer_weights - s.routed + padded
        dense = whole - c.layers * s.routed
        whole, part = dense + c.layers * padded, dense / over + c.layers * padded / of_experts
    wide, copies = np.where(f.short_states, e, WIDE), np.where(gathers, e, 0.0)
    sharded = np.where(f.offload, 0.0, wide * part)  # gradients when they are reduced
    kept = np.where(again, np.where(once, e * t.weights, sharded), 0.0)
    held = np.where(third, 0.0, copies * whole)
    # of each micro-batch a buffer for what comes in and for the gradient of what goes out, and
    # where backward is in two parts the gradient of what came in, which stays for the step
    message = np.where(piped, e * s.own, 0.0)
    done = (c.messages - c.passes) * message
    usual = Held(
        held, kept, np.where(f.offload, 0.0, 3 * wide * part), buffers=rounds * c.received * message
    )
    two_layers = np.where(third, 2 * copies * layer_weights, 0.0)
    chunks = np.where(f.schedule >= ZBV, 2.0, f.virtual)
    apart = table * np.where(piped, 1.0, ~tied)  # a vocabulary matrix in a group of its own
    stays = several | (tied & gathers & (not piped))  # a tied one is never let go
    stays = stays & (tied | (not piped))  # a pipeline's loss is computed when its head is let go
    at_loss = np.where(third & c.has_head & stays, e * table, 0.0)
    # gradients of logits, and of layers, from which those of weights are made later
    before = np.minimum(c.split_heads, rounds - 1) / np.maximum(c.split_heads, 1.0)
    before = before * (c.split * layer.waiting + c.split_heads * e * t.logits)
    # until the first of those come, and of a first round through several chunks only the last's
    of_chunk = e * (c.layers / chunks * s.layer_weights + table)
    there = np.where((rounds <= f.pp) & c.has_head, np.minimum(of_chunk, kept), kept)
    waiting = np.where(rounds > c.split_heads + 1, there, 0.0)
    loss = usual.but(weights=held + at_loss, gradients=waiting, activations=before)
    in_head = loss
    if piped:
        in_head = loss.but(weights=held + np.where(third & c.has_head, e * table, 0.0))
    # while those of the layer before are computed: of the head, then of a layer, and their sum
    of_head = np.where(stay & c.has_head, e * table, 0.0)
    of_layer = np.where(stay, e * layer_weights * (1 + 1 / over), 0.0)
    in_layer = usual.but(weights=held + two_layers, gradients=kept + of_head)
    reduced = (e + np.where(wide > e, wide, 0.0)) / over  # bytes of a weight: as it comes, and cast

    # what was gathered lies in a flat buffer too until the next is: of the head, of a layer; up to
    # zero_stage 2 the first micro-batch alone gathers
    flat, flat_layer = (several & gathers) * e * apart * c.has_head, copies * layer_weights
    first = usual.but(gradients=np.where(third, kept, 0.0), activations=t.passing + t.final)
    drawn, parts = drawn_whole(f) + np.where(e < WIDE, e * table, 0.0), wide * part
    # the head's gradient is on its way, flat
    of_flat = stay * apart * c.has_head * (2 * e + reduced)
    in_flat = usual.but(weights=held + two_layers / 2, gradients=kept + of_flat)
    # one chunk is reduced after the other, of it a matrix of the vocabulary first, in a flat copy
    at_end = np.where(once, e * t.weights, 0.0) / chunks + sharded * (1 - 1 / chunks)
    # a pipeline's backwards let no weights go
    there = copies * whole / chunks if piped else held
    of_ends = np.where(c.looks_up & ~tied, table, layer_weights)
    if piped:
        # what was added up is let go before it is cast
        freed = np.where(several & (again | (f.zero_stage == 0)), e, 0.0)
        at_end = at_end + (np.maximum(reduced - freed, 0.0) + gathers * e) * of_ends
    working = layer.again + layer.above + e * s.own
    let_go = copies * of_ends if piped else 0.0
    reducing = usual.but(weights=there - let_go, gradients=at_end)
    looked_up = c.looks_up * (apart + f.positions * f.hidden_size)
    # copies of a tied matrix at a pipeline's ends get the sum of their gradients, stacked and added
    summed = (piped & tied) * (c.tables + (c.tables > 0)) * wide * table / over
    over_all = usual.but(weights=0.0, activations=done)
    # of the last group, a look-up, flat and reduced; copies, which all-reduce it, hold all groups
    in_flats = gathers * e * (looked_up + piped * c.has_head * ~tied * table) * (1 + 1 / over)
    replicates = (f.zero_stage == 0) & several & gathers
    in_flats = np.where(replicates, e * (t.weights + layer_weights), in_flats)
    more = [
        (BUILD, Held(WIDE * table, 0.0, parts)),
        (BUILD, Held(drawn, 0.0, (parts - wide * table / over) * (piped | ~tied))),
        (FORWARD, first.but(weights=held + at_loss + flat).plus(0.0, t.loss.forward)),
        (FORWARD, first.but(weights=held + flat_layer * np.where(third, 2.0, 1.0))),
        (BACKWARD, in_flat.plus(t.passing + e * s.own)),
        (BACKWARD, reducing.plus(done if piped else working)),
        (BACKWARD, over_all.but(gradients=sharded + in_flats)),
        (OPTIMIZER, over_all.but(gradients=sharded + summed)),
    ]
    if piped:
        # schedules of several chunks gather the next three of them whole (`_add_unshard_reshard`)
        ahead = third * (f.schedule != ONE_F_ONE_B) * copies * whole * np.minimum(1.0, 3 / chunks)
        ahead_of_all = usual.but(weights=held + ahead, gradients=0.0)
        # a backward in parts holds the gradient of what the loss read while it goes on
        in_parts = (f.schedule == ZERO_BUBBLE) | (f.schedule == ZBV)
        of_loss = in_parts * (f.tp > 1) * ~f.fused_cross_entropy * WIDE * t.logits
        put_off = c.left * layer.kept + c.split * layer.waiting + c.passes * message
        put_off = np.where(c.split > 0, put_off + rounds * c.deferred * message, 0.0)
        # weights' gradients are computed group by group, each of which computes its layer again;
        # what no gradient of a weight reads stays until the pass through its chunk is over
        once_more = f.full & (c.split > 0)
        put_off = put_off + c.split_heads * e * t.logits
        staying = once_more * c.layers / chunks * _groups(f) * (layer.again - layer.read)
        put_off = put_off + staying + once_more * c.split * layer.read
        late = usual.but(gradients=kept + once_more * e * layer_weights)
        # before the look-up's gradient is added to that of the micro-batch before
        of_first = again * c.looks_up * e * (table + f.positions * f.hidden_size)
        first_done = usual.but(weights=there, gradients=kept + of_first)
        gathering = usual.but(weights=there + third * several * copies * of_ends)
        more += [
            (BACKWARD, gathering.plus(t.passing * c.staying)),
            (FORWARD, ahead_of_all.plus(c.layers / chunks * layer.kept)),
            (BACKWARD, loss.plus(t.passing + t.final, t.loss.backward + of_loss)),
            (BACKWARD, late.plus(put_off)),
            (BACKWARD, first_done.plus(t.passing * c.staying)),
        ]
    elif tied.any():
        # a matrix of two modules has two gradients and their sum, and what earlier micro-batches
        # left; the layers' are reduced by then, without shards from copies that wait until the end
        layers, of_table = e * (t.weights - table), wide * table / over
        of_layers = np.where(gathers, sharded - of_table, layers)
        waits = np.where((f.zero_stage == 0) & several, layers, 0.0) + e * layer_weights
        gradients = np.where(once & again, 4.0, 3.0) * e * table + of_layers
        gradients = tied * (gradients + (again & ~once & gathers) * of_table)
        last = usual.but(weights=gathers * (e * table + waits), gradients=gradients)
        more.append((BACKWARD, last.plus(e * s.own)))
    more += model_moments(
        t,
        forward=loss,
        loss=loss,
        in_head=in_head,
        after_loss=in_head,
        in_ffn=in_layer,
        in_attention=in_layer,
        earlier=in_layer.but(gradients=kept + of_layer),
    )
    return more


def in_flight(f: Features, rank: Floats, chunk: Floats) -> Floats:
    """Micro-batches whose activations `rank` holds at most of each of its chunks, (chunks, n).

    With p ranks and v chunks: 1F1B p - rank. Interleaved 2 (p - rank - 1) + (v - 1) p passes before
    the first backward and the one that follows, zero bubble p - rank - 1 of them and as many more
    as its weights' gradients wait; rounds of p go to one chunk after the other. ZBV 2p - 1 - rank
    and rank + 1. DualPipeV the same and one more.
    """
    p, v, s = f.pp, f.virtual, f.schedule
    ahead = np.where(s == INTERLEAVED, 2 * (p - rank - 1) + (v - 1) * p + 1, v * p)
    in_rounds = np.where(
        chunk == 0, np.where(ahead > v * p, ahead - (v - 1) * p, np.minimum(ahead, p)),
        np.clip(ahead - chunk * p, 0.0, p),
    )  # fmt: skip
    in_v = np.where(chunk == 0, 2 * p - 1 - rank + (s == DUALPIPEV), rank + 1)
    most = np.where(s >= ZBV, in_v, np.where(s == ONE_F_ONE_B, p - rank, in_rounds))
    flying: Floats = np.minimum(most, f.accumulation)
    return flying


def chunks_of_ranks(group: Group, f: Features) -> Iterator[Chunks]:
    """Of the first, the second and the last rank, as far as any of the layouts has them."""
    in_v, zbv = f.schedule >= ZBV, f.schedule == ZBV
    in_parts = zbv | (f.schedule == ZERO_BUBBLE)  # a backward: of activations, and of weights
    each = np.where(in_v, 2.0, f.virtual)  # chunks of a rank
    chunks, chunk = f.pp * each, np.arange(each.max(initial=1))[:, np.newaxis]
    there = chunk < each
    dealt = stages_of(dataclasses.replace(f, pp=chunks), group.stack)
    fuller = f.num_layers - dealt.last - dealt.first * (chunks - 1)
    mixed = (f.expert_share > 0) & (f.expert_share < 1)
    ends = ends_of_two_kinds(f, chunks) if mixed.any() else None
    ranks = (np.zeros(len(f)), np.minimum(1.0, f.pp - 1), f.pp - 1)
    for rank in ranks[: int(f.pp.max(initial=1))]:
        index = np.where(in_v & (chunk == 1), chunks - 1 - rank, rank + chunk * f.pp)
        first, last = there & (index == 0), there & (index == chunks - 1)
        count = np.where(last, dealt.last, dealt.first + (index >= chunks - 1 - fuller)) * there
        dense = None
        if ends is not None:
            row, place = np.arange(len(f)), np.minimum(index, chunks - 1).astype(int)
            before, until = ends[row, place], ends[row, place + 1]
            of_dense = np.clip((1 - f.expert_share) * f.num_layers - before, 0.0, until - before)
            count = np.where(mixed, (until - before) * there, count)
            dense = np.where(mixed, of_dense * there, (1 - f.expert_share) * count).sum(0)
        flying = in_flight(f, rank, chunk) * there
        # ZBV ends with pp + rank passes, of which it puts off 2 rank + 1 weights' gradients
        at_end = np.where(zbv, np.where(chunk == 0, f.pp, rank), flying)
        last_waits = (f.schedule == ZERO_BUBBLE) & (chunk == each - 1)
        waiting = np.where(zbv, rank + (chunk == 0), rank * last_waits)
        put_off = np.minimum(waiting, flying)
        turn = zbv & (index == f.pp)  # its gradient takes a buffer's place
        deferred = (there & ~first & in_parts & ~turn).sum(0)
        passes = flying.sum(0)
        # others than the one whose backward is over; no chunk has more than are left of the step
        others = np.minimum(passes, (f.accumulation - 1) * each) - 1
        kept_for_step = deferred * f.accumulation - np.where(deferred > 0, passes, 0.0)
        yield Chunks(
            layers=count.sum(0),
            tables=1.0 * first.any(0) + last.any(0),
            flying=(count * flying).sum(0),
            staying=np.maximum(others, 0.0) / passes,
            messages=passes + np.maximum(kept_for_step, 0.0),
            looks_up=first.any(0),
            has_head=last.any(0),
            outputs=1.0,
            passes=passes,
            left=(count * np.minimum(at_end, flying)).sum(0),
            split=(count * put_off).sum(0),
            split_heads=(last * put_off).sum(0),
            received=(there & ~first).sum(0) + 1.0 * (there & ~last).sum(0),
            deferred=deferred,
            dense=dense,
        )
