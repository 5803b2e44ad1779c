"""The memory of this project's engine on FSDP2 beside a model's activations, as rehearsals show.

Sharded weights, their moments and their gradients are fp32 (bf16 under `optimizer_precision`).
Beside them lie the copies that FSDP2 gathers in the training precision: all weights up to
zero_stage 2, two layers of them at 3. A layer's gradients are whole until they are reduced.
"""

import numpy as np

from scaling.arrays import Flags
from scaling.predict.cost.experts import has_experts
from scaling.predict.cost.own_layer import FP32, vocab_init_bytes
from scaling.predict.cost.own_memory import (
    BACKWARD,
    BUILD,
    FORWARD,
    ONE_F_ONE_B,
    Held,
    Moment,
    Stage,
    model_moments,
)
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
        s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
        self.wrapped, self.third = _is_wrapped(f, s.piped), f.zero_stage >= 3
        self.tied = f.embeddings < 2
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
            dense = t.params - t.layers * s.expert_params
            self.params = dense + t.layers * padded
            self.shard = dense / self.ranks + t.layers * padded / ranks
        # of an element: sharded weights, moments and gradients; gathered weights
        self.master = np.where(f.short_states, e, FP32)
        self.copy = np.where(self.wrapped, e, 0.0)
        # gathered weights between their uses; schedules of several chunks gather one ahead
        ahead = np.where(f.schedule == ONE_F_ONE_B, 0.0, 1 / f.virtual)
        self.weights = self.copy * self.params * np.where(self.third, ahead, 1.0)
        # gradients when all are reduced, and those that earlier micro-batches left
        self.shard_gradients = np.where(f.offload, 0.0, self.master * self.shard)
        earlier = np.where(self.reduces_once, e * t.params, self.shard_gradients)
        self.gradients = np.where(f.accumulation > 1, earlier, 0.0)
        # parameters of a vocabulary matrix that is not tied
        self.vocab = s.vocab_params * np.where(s.piped, 1.0, ~self.tied)
        self.usual = Held(
            self.weights,
            self.gradients,
            np.where(f.offload, 0.0, 3 * self.master * self.shard),
            # a pipeline has a buffer for each hidden state that it receives in a step
            buffers=f.accumulation * t.received * e * s.hidden,
        )


def moments_of(t: Stage) -> list[Moment]:
    """The moments of a step that may be the fullest."""
    s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
    d = _Fsdp(t)
    head = np.where(t.has_head, e * s.vocab_params, 0.0)
    # ZeRO-3 still holds the head where several ranks share it; a tied matrix is never let go, and
    # the head of a pipeline that is not tied is let go before its loss
    stays = d.several | (d.tied & d.wrapped & (not s.piped))
    stays = stays & (d.tied | (not s.piped))
    loss = d.usual.with_(weights=d.weights + np.where(d.third & stays, head, 0.0))
    # while a layer's gradients are computed those of the layer before are whole, and their sum
    two_layers = np.where(d.third, 2 * d.copy * d.layer, 0.0)
    layer_gradients = np.where(d.stay, e * d.layer * (1 + 1 / d.ranks), 0.0)
    in_layer = d.usual.with_(
        weights=d.weights + two_layers, gradients=d.gradients + np.where(d.stay, head, 0.0)
    )
    # up to zero_stage 2 the first micro-batch gathers; the head then lies in a flat buffer too
    flat_head = d.wrapped * e * d.vocab * t.has_head
    gathering = loss.with_(
        weights=loss.weights + flat_head, gradients=np.where(d.third, d.gradients, 0.0)
    )
    # a vocabulary matrix is drawn whole, then sharded
    drawn = vocab_init_bytes(f) + np.where(e < FP32, e * s.vocab_params, 0.0)
    moments = [
        (BUILD, Held(drawn, 0.0, d.master * d.shard)),
        (FORWARD, gathering.plus(t.in_flight + t.final_norm, t.loss_forward)),
        _reduced(t, d),
    ]
    if s.piped:
        # before the embedding's gradient is added to that of the micro-batch before; a stage's
        # backward lets none of its weights go
        embedding = t.has_embedding * e * (s.vocab_params + f.positions * f.hidden_size)
        at_embedding = d.usual.with_(weights=d.copy * d.params, gradients=d.gradients + embedding)
        moments.append((BACKWARD, at_embedding.plus(t.in_flight * t.staying)))
    elif d.tied.any():
        moments.append(_tied_at_end(t, d))
    return moments + model_moments(
        t,
        loss=loss,
        in_layer=in_layer,
        earlier_layer=in_layer.with_(gradients=d.gradients + layer_gradients),
    )


def _reduced(t: Stage, d: _Fsdp) -> Moment:
    """The end of a step's backward: the gradients of FSDP2's last group are reduced.

    It has the embedding. Replicas without ZeRO all-reduce flat copies of all groups.
    """
    f, e = t.sizes.f, t.sizes.f.element_bytes
    last_group = t.has_embedding * (d.vocab + f.positions * f.hidden_size)
    flat = d.wrapped * e * last_group * (1 + 1 / d.ranks)
    replicates = (f.zero_stage == 0) & d.several & d.wrapped
    flat = np.where(replicates, e * (t.params + d.layer), flat)
    return BACKWARD, d.usual.with_(weights=0.0, gradients=d.shard_gradients + flat)


def _tied_at_end(t: Stage, d: _Fsdp) -> Moment:
    """The end of backward with a tied matrix and no pipeline.

    The matrix has two gradients, their sum, and often an earlier micro-batch's. Those of layers
    are reduced by then; copies without ZeRO, which all-reduce at the end, have no shards of them.
    """
    s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
    again = f.accumulation > 1
    layers = e * (t.params - s.vocab_params)
    vocab_shard = d.master * s.vocab_params / d.ranks
    vocab_gradients = np.where(d.reduces_once & again, 4.0, 3.0) * e * s.vocab_params
    layer_gradients = np.where(d.wrapped, d.shard_gradients - vocab_shard, layers)
    unreduced = np.where((f.zero_stage == 0) & d.several, layers, 0.0) + e * d.layer
    held = d.usual.with_(
        weights=d.wrapped * (e * s.vocab_params + unreduced),
        gradients=d.tied * (vocab_gradients + layer_gradients),
    )
    return BACKWARD, held.plus(e * s.hidden)
