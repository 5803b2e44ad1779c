"""The memory of this project's engine on FSDP2 beside a model's activations, as rehearsals show.

Sharded weights, their moments and their gradients are fp32 (bf16 under `optimizer_precision`).
Beside them lie the copies that FSDP2 gathers in the training precision: all weights up to
zero_stage 2, two layers of them at 3. A layer's gradients are whole until they are reduced.
"""

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.predict.cost.experts import has_experts
from scaling.predict.cost.own_layer import FP32, vocab_init_bytes
from scaling.predict.cost.own_memory import (
    BACKWARD,
    BUILD,
    FORWARD,
    OPTIMIZER,
    Held,
    Moment,
    Stage,
    model_moments,
)
from scaling.predict.cost.own_pipelines import ONE_F_ONE_B, ZBV, ZERO_BUBBLE
from scaling.predict.read.features import Features


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


class _Fsdp:
    """The form that FSDP2 gives a stage's weights and gradients; bytes unless said otherwise, (n,).

    FSDP2 deals whole experts: where a rank has fewer experts than ranks share them, parameters are
    padded.
    """

    def __init__(self, t: Stage) -> None:
        s, c, f, e = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes
        self.wrapped, self.third, self.tied = (
            _is_wrapped(f, s.piped),
            f.zero_stage >= 3,
            f.embeddings < 2,
        )
        self.several = f.dp * f.cp > 1  # ranks hold the same weights
        self.reduces_once = _reduces_once(f, s.piped)
        self.stay = whole_gradients(f, s.piped)
        self.ranks = s.sharding.state  # that one copy is sharded over
        # parameters, padded: of a layer, of the stage, of the rank's shard of it
        self.layer, self.params, self.shard = s.layer_params, t.params, t.params / self.ranks
        if has_experts(f):
            ranks, experts = s.expert_sharding.state, np.maximum(f.num_experts / f.ep, 1.0)
            padded = s.expert_params * np.ceil(experts / ranks) * ranks / experts
            self.layer = s.layer_params - s.expert_params + padded
            dense = t.params - c.layers * s.expert_params
            self.params = dense + c.layers * padded
            self.shard = dense / self.ranks + c.layers * padded / ranks
        # of an element: sharded weights, moments and gradients; gathered weights; a gradient that
        # is being reduced, as it comes and cast
        self.master = np.where(f.short_states, e, FP32)
        self.copy = np.where(self.wrapped, e, 0.0)
        self.reduced = (e + np.where(self.master > e, self.master, 0.0)) / self.ranks
        # gathered weights between their uses; a pipeline's backward lets none of a chunk's go
        self.weights = np.where(self.third, 0.0, self.copy * self.params)
        self.chunks = np.where(f.schedule >= ZBV, 2.0, f.virtual)  # of a rank
        self.chunk_weights = self.copy * self.params / self.chunks
        # gradients when all are reduced, and those that earlier micro-batches left
        self.shard_gradients = np.where(f.offload, 0.0, self.master * self.shard)
        earlier = np.where(self.reduces_once, e * t.params, self.shard_gradients)
        self.gradients = np.where(f.accumulation > 1, earlier, 0.0)
        # parameters of groups of FSDP2: a vocabulary matrix that is not tied; the stage's first one
        self.vocab = s.vocab_params * np.where(s.piped, 1.0, ~self.tied)
        self.first = np.where(c.has_embedding & ~self.tied, s.vocab_params, self.layer)
        # a hidden state sent between stages; received ones whose gradients stay for the step
        self.message = np.where(s.piped, e * s.hidden, 0.0)
        self.kept_messages = (c.messages - c.passes) * self.message
        self.usual = Held(
            self.weights,
            self.gradients,
            np.where(f.offload, 0.0, 3 * self.master * self.shard),
            # a pipeline has a buffer for each message of a step
            buffers=f.accumulation * c.received * self.message,
        )


def moments_of(t: Stage) -> list[Moment]:
    """The moments of a step that may be the fullest."""
    s, c, e = t.sizes, t.chunks, t.sizes.f.element_bytes
    d = _Fsdp(t)
    head = np.where(c.has_head, e * s.vocab_params, 0.0)
    loss = _at_loss(t, d)
    # a pipeline gathers the head again for its backward
    head_backward = loss.with_(weights=d.weights + d.third * head) if s.piped else loss
    # while a layer's gradients are computed those of the layer before are whole, and their sum
    two_layers = np.where(d.third, 2 * d.copy * d.layer, 0.0)
    layer_gradients = np.where(d.stay, e * d.layer * (1 + 1 / d.ranks), 0.0)
    in_layer = d.usual.with_(
        weights=d.weights + two_layers, gradients=d.gradients + np.where(d.stay, head, 0.0)
    )
    moments = [*_building(t, d), *_forward(t, d, loss), *_reductions(t, d, two_layers / 2)]
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
    head of a pipeline that is not tied is let go before its loss. If weights' gradients wait, there
    are gradients of logits and of layers to make them from.
    """
    s, c, f, e = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes
    rounds = f.accumulation
    stays = d.several | (d.tied & d.wrapped & (not s.piped))
    stays = stays & (d.tied | (not s.piped))
    head = np.where(d.third & c.has_head & stays, e * s.vocab_params, 0.0)
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


def _building(t: Stage, d: _Fsdp) -> list[Moment]:
    """While the model is built: a vocabulary matrix is drawn whole, then sharded."""
    s, e, shards = t.sizes, t.sizes.f.element_bytes, d.master * d.shard
    drawn = vocab_init_bytes(s.f) + np.where(e < FP32, e * s.vocab_params, 0.0)
    others = (shards - d.master * s.vocab_params / d.ranks) * (s.piped | ~d.tied)
    return [
        (BUILD, Held(FP32 * s.vocab_params, 0.0, shards)),
        (BUILD, Held(drawn, 0.0, others)),
    ]


def _forward(t: Stage, d: _Fsdp, loss: Held) -> list[Moment]:
    """While the head, or a layer, lies in a flat buffer too, until the next one is gathered.

    Up to zero_stage 2 only the first micro-batch gathers.
    """
    flat_head = (d.several & d.wrapped) * t.sizes.f.element_bytes * d.vocab * t.chunks.has_head
    flat_layer = d.copy * d.layer * np.where(d.third, 2.0, 1.0)
    first = d.usual.with_(
        gradients=np.where(d.third, d.gradients, 0.0), activations=t.in_flight + t.final_norm
    )
    at_head = first.with_(weights=loss.weights + flat_head)
    return [
        (FORWARD, at_head.plus(0.0, t.loss.forward)),
        (FORWARD, first.with_(weights=d.weights + flat_layer)),
    ]


def _reductions(t: Stage, d: _Fsdp, one_layer: Floats) -> list[Moment]:
    """Gradients are reduced, from the head's to the embedding's; the optimizer steps."""
    s, c, f, e = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes
    head = d.stay * d.vocab * c.has_head * (2 * e + d.reduced)  # from a flat copy
    at_head = d.usual.with_(weights=d.weights + one_layer, gradients=d.gradients + head)
    # one chunk after the other, of each a vocabulary matrix first
    whole = np.where(d.reduces_once, e * t.params, 0.0) / d.chunks
    gradients = whole + d.shard_gradients * (1 - 1 / d.chunks)
    if s.piped:
        # from a flat copy; gradients that were summed are let go before they are cast
        freed = np.where(d.several & ((f.accumulation > 1) | (f.zero_stage == 0)), e, 0.0)
        flat = (np.maximum(d.reduced - freed, 0.0) + d.wrapped * e) * d.first
        weights = d.chunk_weights - d.copy * d.first
        at_last = d.usual.with_(weights=weights, gradients=gradients + flat).plus(d.kept_messages)
    else:
        working = s.layer.recomputed + s.layer.in_backward + e * s.hidden
        at_last = d.usual.with_(gradients=gradients).plus(working)
    # the last group of FSDP2, with the embedding; replicas without ZeRO all-reduce flat copies of
    # all groups
    last_group = c.has_embedding * (d.vocab + f.positions * f.hidden_size)
    last_group = last_group + s.piped * c.has_head * ~d.tied * s.vocab_params
    flat = d.wrapped * e * last_group * (1 + 1 / d.ranks)
    replicates = (f.zero_stage == 0) & d.several & d.wrapped
    flat = np.where(replicates, e * (t.params + d.layer), flat)
    # copies of a tied matrix at a pipeline's ends get the sum of their gradients, stacked and added
    copies = c.vocab_matrices + (c.vocab_matrices > 0)
    stacked = (s.piped & d.tied) * copies * d.master * s.vocab_params / d.ranks
    done = d.usual.with_(weights=0.0, activations=d.kept_messages)
    return [
        (BACKWARD, at_head.plus(t.in_flight + e * s.hidden)),
        (BACKWARD, at_last),
        (BACKWARD, done.with_(gradients=d.shard_gradients + flat)),
        (OPTIMIZER, done.with_(gradients=d.shard_gradients + stacked)),
    ]


def _pipelined(t: Stage, d: _Fsdp, loss: Held) -> list[Moment]:
    """Moments that only pipelines have."""
    s, c, f, e = t.sizes, t.chunks, t.sizes.f, t.sizes.f.element_bytes
    # schedules of several chunks gather the next three of them whole (`_add_unshard_reshard`)
    ahead = d.third * (f.schedule != ONE_F_ONE_B) * np.minimum(1.0, 3 / d.chunks)
    ahead = d.weights + ahead * d.copy * d.params
    # a backward in two parts holds on to the gradient of what the loss read
    in_parts = (f.schedule == ZERO_BUBBLE) | (f.schedule == ZBV)
    loss_input = in_parts * (f.tp > 1) * ~f.fused_cross_entropy * FP32 * t.logits
    # before the embedding's gradient is added to that of the micro-batch before
    embedding = e * (s.vocab_params + f.positions * f.hidden_size)
    embedding = (f.accumulation > 1) * c.has_embedding * embedding
    at_embedding = d.usual.with_(weights=d.chunk_weights, gradients=d.gradients + embedding)
    gathered_again = d.third * d.several * d.copy * d.first
    gathering = d.usual.with_(weights=d.chunk_weights + gathered_again)
    first_chunk = c.layers / d.chunks * s.layer.kept
    return [
        (BACKWARD, gathering.plus(t.in_flight * c.staying)),
        (FORWARD, d.usual.with_(weights=ahead, gradients=0.0).plus(first_chunk)),
        (BACKWARD, loss.plus(t.in_flight + t.final_norm, t.loss.backward + loss_input)),
        (BACKWARD, _waiting_weights(t, d)),
        (BACKWARD, at_embedding.plus(t.in_flight * c.staying)),
    ]


def _waiting_weights(t: Stage, d: _Fsdp) -> Held:
    """Gradients of weights that were put off are computed, group by group.

    Under full checkpointing each group computes its layer again. Data that no gradient of a weight
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
    return d.usual.with_(gradients=d.gradients + again * e * d.layer).plus(held)


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
    vocab_shard = d.master * s.vocab_params / d.ranks
    vocab_gradients = np.where(d.reduces_once & again, 4.0, 3.0) * e * s.vocab_params
    layer_gradients = np.where(d.wrapped, d.shard_gradients - vocab_shard, layers)
    earlier = (again & ~d.reduces_once & d.wrapped) * vocab_shard
    unreduced = np.where((f.zero_stage == 0) & d.several, layers, 0.0) + e * d.layer
    held = d.usual.with_(
        weights=d.wrapped * (e * s.vocab_params + unreduced),
        gradients=d.tied * (vocab_gradients + layer_gradients + earlier),
    )
    return BACKWARD, held.plus(e * s.hidden)
