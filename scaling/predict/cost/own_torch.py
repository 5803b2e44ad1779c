"""What this project's engine on FSDP2 holds beside a model's activations, as rehearsals show.

Sharded weights, their moments and their gradients are fp32 (bf16 under `optimizer_precision`).
Beside them lie the copies that FSDP2 gathers in the training precision: all weights up to
zero_stage 2, two layers of them at 3. A layer's gradients are whole until they are reduced.

What is in flight in a pipeline is counted from torch's own tables of actions
(torch.distributed.pipelining.schedules); a test compares the two.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.experts import has_experts
from scaling.predict.cost.own_layer import FP32, vocab_init_bytes
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
from scaling.predict.cost.sharding import expert_sharding_of
from scaling.predict.cost.stages import ends_of_two_kinds, stages_of
from scaling.predict.read.features import Features, Group


def _is_wrapped(f: Features, piped: bool) -> Flags:
    """Whether FSDP2 wraps the model.

    A rank with nothing to cast has nothing to gather where it is alone or holds everything.
    """
    whole = (f.zero_stage == 0) & (not piped) & (f.ep == 1)
    gathers: Flags = (f.dp * f.cp > 1) & ~whole
    return ((f.element_bytes < FP32) & ~f.short_states) | gathers | f.offload


def _reduces_once(f: Features, piped: bool) -> Flags:
    """Pipelines reduce gradients once a step, replicas every micro-batch from zero_stage 2 on."""
    return (f.zero_stage < 2) | piped


def whole_gradients(f: Features, piped: bool) -> Flags:
    """Whether a layer's gradients stay whole until all of them are there and reduced.

    Gradients that are added to those of the micro-batch before go one by one.
    """
    return _is_wrapped(f, piped) & ~(_reduces_once(f, piped) & (f.accumulation > 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fsdp:
    """What FSDP2 makes of a stage's weights and gradients; parameters are elements, (n,).

    FSDP2 deals whole experts, so that `params`, `layer_params` and `shard` are padded where a rank
    has fewer experts than ranks share them.
    """

    wrapped: Flags
    several: Flags  # ranks hold the same weights
    reduces_once: Flags
    stay: Flags  # a layer's gradients, until they are reduced
    tied: Flags
    ranks: Floats  # that a copy is sharded over
    params: Floats
    layer_params: Floats
    shard: Floats
    element_bytes: Floats  # of the training precision
    master_bytes: Floats  # of an element of sharded weights, moments and gradients
    copy_bytes: Floats  # of an element of gathered weights
    weights: Floats  # bytes of gathered weights between their uses
    shard_gradients: Floats  # bytes when all are reduced
    gradients: Floats  # bytes of earlier micro-batches
    chunks: Floats  # of a rank
    message: Floats  # bytes of a hidden state sent between stages
    usual: Held  # all the time

    @property
    def reduced_bytes(self) -> Floats:
        """Of a gradient that is being reduced, per element: as it comes, and cast."""
        e = self.element_bytes
        wider = np.where(self.master_bytes > e, self.master_bytes, 0.0)
        return (e + wider) / self.ranks


def _fsdp_of(t: Stage) -> _Fsdp:
    s, c, f, e, piped = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes, t.sizes.piped
    wrapped, reduces_once = _is_wrapped(f, piped), _reduces_once(f, piped)
    ranks = s.sharding.state
    layer_params, params, shard = s.layer_params, t.params, t.params / ranks
    if has_experts(f):
        expert_ranks, experts = expert_sharding_of(f).state, np.maximum(f.num_experts / f.ep, 1.0)
        padded = s.expert_params * np.ceil(experts / expert_ranks) * expert_ranks / experts
        layer_params = layer_params - s.expert_params + padded
        dense = params - c.layers * s.expert_params
        params = dense + c.layers * padded
        shard = dense / ranks + c.layers * padded / expert_ranks
    master_bytes = np.where(f.short_states, e, FP32)
    copy_bytes = np.where(wrapped, e, 0.0)
    weights = np.where(f.zero_stage >= 3, 0.0, copy_bytes * params)
    shard_gradients = np.where(f.offload, 0.0, master_bytes * shard)
    summed = np.where(reduces_once, e * t.params, shard_gradients)
    gradients = np.where(f.accumulation > 1, summed, 0.0)
    message = np.where(piped, e * s.hidden, 0.0)
    return _Fsdp(
        wrapped=wrapped,
        several=f.dp * f.cp > 1,
        reduces_once=reduces_once,
        stay=whole_gradients(f, piped),
        tied=f.embeddings < 2,
        ranks=ranks,
        params=params,
        layer_params=layer_params,
        shard=shard,
        master_bytes=master_bytes,
        copy_bytes=copy_bytes,
        weights=weights,
        shard_gradients=shard_gradients,
        gradients=gradients,
        chunks=np.where(f.schedule >= ZBV, 2.0, f.virtual),
        message=message,
        element_bytes=e,
        usual=Held(
            weights,
            gradients,
            np.where(f.offload, 0.0, 3 * master_bytes * shard),
            # a pipeline has a buffer for each message of a step
            buffers=f.accumulation * c.received * message,
        ),
    )


def moments_of(t: Stage) -> list[Moment]:
    """The moments of a step that may be the fullest."""
    s, c, f, e = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes
    d = _fsdp_of(t)
    loss = _at_loss(t, d)
    head_backward = loss
    if s.piped:
        head = np.where((f.zero_stage >= 3) & c.has_head, e * s.vocab_params, 0.0)
        head_backward = loss.with_(weights=d.weights + head)
    # while a layer's gradients are computed those of the layer before are whole, and their sum
    two_layers = np.where(f.zero_stage >= 3, 2 * d.copy_bytes * d.layer_params, 0.0)
    head_gradient = np.where(d.stay & c.has_head, e * s.vocab_params, 0.0)
    layer_gradients = np.where(d.stay, e * d.layer_params * (1 + 1 / d.ranks), 0.0)
    in_layer = d.usual.with_(weights=d.weights + two_layers, gradients=d.gradients + head_gradient)
    moments = [
        *_building(t, d),
        *_forward(t, d, loss),
        _head_reduced(t, d, two_layers / 2),
        _last_reduced(t, d),
        *_after_backward(t, d),
    ]
    if s.piped:
        moments += _pipelined(t, d, loss)
    elif d.tied.any():
        moments.append(_tied_at_end(t, d))
    return moments + model_moments(
        t,
        loss_forward=loss,
        loss_backward=loss,
        head_backward=head_backward,
        head_done=head_backward,
        in_ffn=in_layer,
        in_attention=in_layer,
        earlier_layer=in_layer.with_(gradients=d.gradients + layer_gradients),
    )


def _at_loss(t: Stage, d: _Fsdp) -> Held:
    """When the loss is computed.

    ZeRO-3 still holds the head where several ranks share it; a tied matrix is never let go, and the
    head of a pipeline that is not tied is let go before its loss. Where weights' gradients wait,
    there are gradients of logits and of layers to make them from.
    """
    s, c, f, e = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes
    rounds = f.accumulation
    stays = d.several | (d.tied & d.wrapped & (not s.piped))
    stays = stays & (d.tied | (not s.piped))
    head = np.where((f.zero_stage >= 3) & c.has_head & stays, e * s.vocab_params, 0.0)
    begun = np.minimum(c.waiting_heads, rounds - 1) / np.maximum(c.waiting_heads, 1.0)
    outputs = c.waiting_layer_passes * s.layer.output_gradients
    outputs = outputs + c.waiting_heads * e * t.logits
    # in a first round through several chunks only the last one has gradients of weights
    last_chunk = e * (c.layers / d.chunks * s.layer_params + s.vocab_params)
    first_round = (rounds <= f.pp) & c.has_head
    gradients = np.where(first_round, np.minimum(last_chunk, d.gradients), d.gradients)
    return d.usual.with_(
        weights=d.weights + head,
        gradients=np.where(rounds > c.waiting_heads + 1, gradients, 0.0),
        activations=begun * outputs,
    )


def _vocab_apart(t: Stage, d: _Fsdp) -> Floats:
    """Parameters of a vocabulary matrix in an FSDP group of its own: not a tied one."""
    return t.sizes.vocab_params * np.where(t.sizes.piped, 1.0, ~d.tied)


def _building(t: Stage, d: _Fsdp) -> list[Moment]:
    """While the model is built: a vocabulary matrix is drawn whole, then sharded."""
    s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
    shards = d.master_bytes * d.shard
    drawn = vocab_init_bytes(f) + np.where(e < FP32, e * s.vocab_params, 0.0)
    others = (shards - d.master_bytes * s.vocab_params / d.ranks) * (s.piped | ~d.tied)
    return [
        (BUILD, Held(FP32 * s.vocab_params, 0.0, shards)),
        (BUILD, Held(drawn, 0.0, others)),
    ]


def _forward(t: Stage, d: _Fsdp, loss: Held) -> list[Moment]:
    """While the head, or a layer, lies in a flat buffer too, until the next one is gathered.

    Up to zero_stage 2 only the first micro-batch gathers.
    """
    c, third, e = t.chunks, t.sizes.f.zero_stage >= 3, t.sizes.f.element_bytes
    flat_head = (d.several & d.wrapped) * e * _vocab_apart(t, d) * c.has_head
    flat_layer = d.copy_bytes * d.layer_params
    first = d.usual.with_(
        gradients=np.where(third, d.gradients, 0.0), activations=t.in_flight + t.final_norm
    )
    at_head = first.with_(weights=loss.weights + flat_head)
    at_layer = first.with_(weights=d.weights + flat_layer * np.where(third, 2.0, 1.0))
    return [(FORWARD, at_head.plus(0.0, t.loss.forward)), (FORWARD, at_layer)]


def _head_reduced(t: Stage, d: _Fsdp, one_layer: Floats) -> Moment:
    """The head's gradient is being reduced, from a flat copy."""
    e = t.sizes.f.element_bytes
    flat = d.stay * _vocab_apart(t, d) * t.chunks.has_head * (2 * e + d.reduced_bytes)
    held = d.usual.with_(weights=d.weights + one_layer, gradients=d.gradients + flat)
    return BACKWARD, held.plus(t.in_flight + e * t.sizes.hidden)


def _first_group(t: Stage, d: _Fsdp) -> Floats:
    """Parameters of the stage's first FSDP group: the embedding, or else a layer."""
    return np.where(t.chunks.has_embedding & ~d.tied, t.sizes.vocab_params, d.layer_params)


def _chunk_weights(d: _Fsdp) -> Floats:
    """Bytes of one chunk's gathered weights, which a pipeline's backward does not let go."""
    return d.copy_bytes * d.params / d.chunks


def _last_reduced(t: Stage, d: _Fsdp) -> Moment:
    """The last gradients are reduced, one chunk after the other, of each a vocabulary matrix first.

    In a pipeline from a flat copy; gradients that were summed are let go before they are cast.
    """
    s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
    whole = np.where(d.reduces_once, e * t.params, 0.0) / d.chunks
    gradients = whole + d.shard_gradients * (1 - 1 / d.chunks)
    if not s.piped:
        working = s.layer.recomputed + s.layer.in_backward + e * s.hidden
        return BACKWARD, d.usual.with_(gradients=gradients).plus(working)
    first_group = _first_group(t, d)
    freed = np.where(d.several & ((f.accumulation > 1) | (f.zero_stage == 0)), e, 0.0)
    flat = (np.maximum(d.reduced_bytes - freed, 0.0) + d.wrapped * e) * first_group
    weights = _chunk_weights(d) - d.copy_bytes * first_group
    held = d.usual.with_(weights=weights, gradients=gradients + flat)
    return BACKWARD, held.plus(_kept_messages(t, d))


def _kept_messages(t: Stage, d: _Fsdp) -> Floats:
    """Bytes of received messages whose gradients stay until the step ends."""
    return (t.chunks.messages - t.chunks.passes) * d.message


def _after_backward(t: Stage, d: _Fsdp) -> list[Moment]:
    """The last FSDP group, with the embedding, is reduced; the optimizer steps.

    Replicas without ZeRO all-reduce flat copies of all groups. The copies of a tied matrix at a
    pipeline's ends get the sum of their gradients, stacked and added.
    """
    s, c, f, e = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes
    held = d.usual.with_(weights=0.0, activations=_kept_messages(t, d))
    embedding = c.has_embedding * (_vocab_apart(t, d) + f.positions * f.hidden_size)
    last_group = embedding + s.piped * c.has_head * ~d.tied * s.vocab_params
    flat = d.wrapped * e * last_group * (1 + 1 / d.ranks)
    replicates = (f.zero_stage == 0) & d.several & d.wrapped
    flat = np.where(replicates, e * (t.params + d.layer_params), flat)
    copies = c.vocab_matrices + (c.vocab_matrices > 0)
    stacked = (s.piped & d.tied) * copies * d.master_bytes * s.vocab_params / d.ranks
    return [
        (BACKWARD, held.with_(gradients=d.shard_gradients + flat)),
        (OPTIMIZER, held.with_(gradients=d.shard_gradients + stacked)),
    ]


def _pipelined(t: Stage, d: _Fsdp, loss: Held) -> list[Moment]:
    """Moments that only pipelines have."""
    s, c, f, e = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes
    third = f.zero_stage >= 3
    # schedules of several chunks gather the next three of them whole (`_add_unshard_reshard`)
    chunks_ahead = third * (f.schedule != ONE_F_ONE_B) * np.minimum(1.0, 3 / d.chunks)
    ahead = d.usual.with_(weights=d.weights + chunks_ahead * d.copy_bytes * d.params, gradients=0.0)
    # a backward in two parts holds on to the gradient of what the loss read
    in_parts = (f.schedule == ZERO_BUBBLE) | (f.schedule == ZBV)
    loss_input = in_parts * (f.tp > 1) * ~f.fused_cross_entropy * FP32 * t.logits
    # before the embedding's gradient is added to that of the micro-batch before
    embedding = e * (s.vocab_params + f.positions * f.hidden_size)
    embedding = (f.accumulation > 1) * c.has_embedding * embedding
    at_embedding = d.usual.with_(weights=_chunk_weights(d), gradients=d.gradients + embedding)
    regathered = third * d.several * d.copy_bytes * _first_group(t, d)
    regathering = d.usual.with_(weights=_chunk_weights(d) + regathered)
    staying = t.in_flight * c.staying
    return [
        (BACKWARD, regathering.plus(staying)),
        (FORWARD, ahead.plus(c.layers / d.chunks * s.layer.kept)),
        (BACKWARD, loss.plus(t.in_flight + t.final_norm, t.loss.backward + loss_input)),
        (BACKWARD, _waiting_weights(t, d)),
        (BACKWARD, at_embedding.plus(staying)),
    ]


def _waiting_weights(t: Stage, d: _Fsdp) -> Held:
    """Gradients of weights that were put off are computed, group by group.

    Under full checkpointing each group computes its layer again, and what no gradient of a weight
    reads stays until the pass through its chunk is over.
    """
    s, c, f, e = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes
    layer, waits = s.layer, c.waiting_layer_passes > 0
    held = c.final_layer_passes * layer.kept + c.waiting_layer_passes * layer.output_gradients
    held = held + (c.passes + f.accumulation * c.kept_received) * d.message
    held = np.where(waits, held, 0.0) + c.waiting_heads * e * t.logits
    again = f.full & waits
    unread = c.layers / d.chunks * _groups_of_layer(f) * (layer.recomputed - layer.weight_inputs)
    held = held + again * (unread + c.waiting_layer_passes * layer.weight_inputs)
    return d.usual.with_(gradients=d.gradients + again * e * d.layer_params).plus(held)


def _groups_of_layer(f: Features) -> Floats:
    """Groups of a layer's weights whose gradients are computed together.

    Those of one operator; under tp those of all operators with the same input.
    """
    dense = np.where(f.tp > 1, 1.0, f.mlp_inputs) + 1
    experts = 1 + (f.mlp_inputs + 1) * (1.0 + (f.ffn_hidden_size > 0))
    ffn = (1 - f.expert_share) * dense + f.expert_share * experts
    return np.asarray(3 + np.where(f.tp > 1, 1.0, 3.0) + 2 * f.head_norms + ffn)


def _tied_at_end(t: Stage, d: _Fsdp) -> Moment:
    """The end of backward with a tied matrix and no pipeline.

    The matrix has two gradients, their sum, and what earlier micro-batches left. The layers' are
    reduced by then; copies without ZeRO, which all-reduce at the end, have no shards of them.
    """
    s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
    again = f.accumulation > 1
    layers = e * (t.params - s.vocab_params)
    vocab_shard = d.master_bytes * s.vocab_params / d.ranks
    vocab_gradients = np.where(d.reduces_once & again, 4.0, 3.0) * e * s.vocab_params
    layer_gradients = np.where(d.wrapped, d.shard_gradients - vocab_shard, layers)
    earlier = (again & ~d.reduces_once & d.wrapped) * vocab_shard
    unreduced = np.where((f.zero_stage == 0) & d.several, layers, 0.0) + e * d.layer_params
    held = d.usual.with_(
        weights=d.wrapped * (e * s.vocab_params + unreduced),
        gradients=d.tied * (vocab_gradients + layer_gradients + earlier),
    )
    return BACKWARD, held.plus(e * s.hidden)


def passes_in_flight(f: Features, rank: Floats, chunk: Floats) -> Floats:
    """Most micro-batches whose activations `rank` holds of each of its chunks, (chunks, n).

    With p ranks and v chunks a rank:
    1F1B: p - rank.
    Interleaved: 2 (p - rank - 1) + (v - 1) p passes before the first backward, and the one that
    follows; rounds of p go to one chunk after the other.
    Zero bubble: p - rank - 1 of these passes, and as many more while its weights' gradients wait.
    ZBV: 2p - 1 - rank and rank + 1.
    DualPipeV: 2p - rank and rank + 1.
    """
    p, v, s = f.pp, f.virtual, f.schedule
    ahead = np.where(s == INTERLEAVED, 2 * (p - rank - 1) + (v - 1) * p + 1, v * p)
    first_chunk = np.where(ahead > v * p, ahead - (v - 1) * p, np.minimum(ahead, p))
    other_chunks = np.clip(ahead - chunk * p, 0.0, p)
    in_rounds = np.where(chunk == 0, first_chunk, other_chunks)
    in_v = np.where(chunk == 0, 2 * p - 1 - rank + (s == DUALPIPEV), rank + 1)
    most = np.where(s >= ZBV, in_v, np.where(s == ONE_F_ONE_B, p - rank, in_rounds))
    return np.asarray(np.minimum(most, f.accumulation))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dealt:
    """How layers are dealt to all model chunks of a pipeline.

    Of `count` chunks the last has `last` layers, the others `first` each, and `fuller` chunks just
    before the last one more; all (n,). `mixed` marks models whose first layers have no experts; for
    them `ends` has the layers before each chunk, (n, most chunks + 1).
    """

    count: Floats
    first: Floats
    last: Floats
    fuller: Floats
    mixed: Flags
    ends: Floats | None

    def layers(self, f: Features, index: Floats, exists: Flags) -> tuple[Floats, Floats | None]:
        """Layers of the chunks at `index`, (chunks, n), and their dense layers in all, (n,)."""
        is_last = exists & (index == self.count - 1)
        fuller = index >= self.count - 1 - self.fuller
        layers = np.where(is_last, self.last, self.first + fuller) * exists
        if self.ends is None:
            return layers, None
        row, place = np.arange(len(f)), np.minimum(index, self.count - 1).astype(int)
        before, until = self.ends[row, place], self.ends[row, place + 1]
        dense = np.clip((1 - f.expert_share) * f.num_layers - before, 0.0, until - before)
        layers = np.where(self.mixed, (until - before) * exists, layers)
        return layers, np.where(self.mixed, dense * exists, (1 - f.expert_share) * layers).sum(0)


def _dealt(group: Group, f: Features, count: Floats) -> _Dealt:
    stages = stages_of(dataclasses.replace(f, pp=count), group.stack)
    mixed = (f.expert_share > 0) & (f.expert_share < 1)
    return _Dealt(
        count=count,
        first=stages.first,
        last=stages.last,
        fuller=f.num_layers - stages.last - stages.first * (count - 1),
        mixed=mixed,
        ends=ends_of_two_kinds(f, count) if mixed.any() else None,
    )


def chunks_of_ranks(group: Group, f: Features) -> Iterator[Chunks]:
    """The chunks of the first, the second and the last rank, as far as any layout has them."""
    is_v, is_zbv = f.schedule >= ZBV, f.schedule == ZBV
    in_parts = is_zbv | (f.schedule == ZERO_BUBBLE)  # a backward: of activations, and of weights
    per_rank = np.where(is_v, 2.0, f.virtual)
    dealt = _dealt(group, f, f.pp * per_rank)
    chunk = np.arange(per_rank.max(initial=1))[:, np.newaxis]
    exists = chunk < per_rank
    ranks = (np.zeros(len(f)), np.minimum(1.0, f.pp - 1), f.pp - 1)
    for rank in ranks[: int(f.pp.max(initial=1))]:
        index = np.where(is_v & (chunk == 1), dealt.count - 1 - rank, rank + chunk * f.pp)
        is_first, is_last = exists & (index == 0), exists & (index == dealt.count - 1)
        layers, dense_layers = dealt.layers(f, index, exists)
        in_flight = passes_in_flight(f, rank, chunk) * exists
        passes = in_flight.sum(0)
        # ZBV ends with pp + rank passes, and the gradients of weights of 2 rank + 1 wait then
        at_end = np.where(is_zbv, np.where(chunk == 0, f.pp, rank), in_flight)
        waiting = rank * ((f.schedule == ZERO_BUBBLE) & (chunk == per_rank - 1))
        waiting = np.minimum(np.where(is_zbv, rank + (chunk == 0), waiting), in_flight)
        # at the turn of the V a gradient takes a buffer's place
        is_turn = is_zbv & (index == f.pp)
        kept_received = (exists & ~is_first & in_parts & ~is_turn).sum(0)
        kept_messages = kept_received * f.accumulation - np.where(kept_received > 0, passes, 0.0)
        # passes beside the one whose backward is over; no chunk has more than the step still has
        others = np.minimum(passes, (f.accumulation - 1) * per_rank) - 1
        yield Chunks(
            layers=layers.sum(0),
            vocab_matrices=1.0 * is_first.any(0) + is_last.any(0),
            layer_passes=(layers * in_flight).sum(0),
            staying=np.maximum(others, 0.0) / passes,
            messages=passes + np.maximum(kept_messages, 0.0),
            has_embedding=is_first.any(0),
            has_head=is_last.any(0),
            logit_buffers=1.0,
            passes=passes,
            final_layer_passes=(layers * np.minimum(at_end, in_flight)).sum(0),
            waiting_layer_passes=(layers * waiting).sum(0),
            waiting_heads=(is_last * waiting).sum(0),
            received=(exists & ~is_first).sum(0) + 1.0 * (exists & ~is_last).sum(0),
            kept_received=kept_received,
            dense_layers=dense_layers,
        )
