"""The memory of this project's engine on FSDP2 beside a model's activations, as rehearsals show.

Sharded weights, their moments and their gradients are fp32 (bf16 under `optimizer_precision`).
Beside them lie the copies that FSDP2 gathers in the training precision: all weights up to
zero_stage 2, two layers of them at 3. A layer's gradients are whole until they are reduced.
"""

import numpy as np

from scaling.predict.cost.own_layer import FP32, vocab_init_bytes
from scaling.predict.cost.own_memory import (
    BACKWARD,
    BUILD,
    FORWARD,
    Held,
    Moment,
    Stage,
    model_moments,
)
from scaling.predict.cost.stages import ONE_F_ONE_B


def moments_of(t: Stage) -> list[Moment]:
    """The moments of a step that may be the fullest."""
    s, f, e = t.sizes, t.sizes.f, t.sizes.f.element_bytes
    third, tied, again = f.zero_stage >= 3, f.embeddings < 2, f.accumulation > 1
    several = s.replicas > 1  # ranks hold the same weights
    ranks = s.sharding.state  # that one copy is sharded over
    # Parameters of a layer and of the rank's shard of the stage. FSDP2 deals whole experts: where a
    # rank has fewer experts than ranks share them, parameters are padded.
    of_experts, experts = s.expert_sharding.state, np.maximum(f.num_experts / f.ep, 1.0)
    padded = s.expert_params * np.ceil(experts / of_experts) * of_experts / experts
    dense = t.params - t.layers * s.expert_params
    layer, params = s.layer_params - s.expert_params + padded, dense + t.layers * padded
    shard = dense / ranks + t.layers * padded / of_experts
    # of an element: sharded weights, moments and gradients; gathered weights
    master, copy = np.where(f.short_states, e, FP32), s.wrapped * e
    # gathered weights between their uses; schedules of several chunks gather one ahead
    ahead = np.where(f.schedule == ONE_F_ONE_B, 0.0, 1 / f.virtual)
    weights = copy * params * np.where(third, ahead, 1.0)
    # gradients when all are reduced, and those that earlier micro-batches left
    shard_gradients = ~f.offload * master * shard
    gradients = again * np.where(s.reduces_once, e * t.params, shard_gradients)
    # a pipeline has a buffer for each hidden state that it receives in a step
    received = f.accumulation * t.received * e * s.hidden
    usual = Held(weights, gradients, ~f.offload * 3 * master * shard, buffers=received)

    head = t.has_head * e * s.vocab_params
    # ZeRO-3 still holds the head where several ranks share it; a tied matrix is never let go, and
    # the head of a pipeline that is not tied is let go before its loss
    stays = (several | (tied & s.wrapped & ~s.piped)) & (tied | ~s.piped)
    loss = usual.with_(weights=weights + (third & stays) * head)
    # while a layer's gradients are computed those of the layer before are whole, and their sum
    in_layer = usual.with_(
        weights=weights + third * 2 * copy * layer, gradients=gradients + s.gradients_stay * head
    )
    layer_gradients = s.gradients_stay * e * layer * (1 + 1 / ranks)
    # up to zero_stage 2 the first micro-batch gathers; the head then lies in a flat buffer too
    vocab = s.vocab_params * (s.piped | ~tied)  # of a matrix that is not tied
    gathering = loss.with_(
        weights=loss.weights + t.has_head * copy * vocab, gradients=third * gradients
    )
    # before the embedding's gradient is added to that of the micro-batch before; a stage's backward
    # lets none of its weights go
    positions = f.positions * f.hidden_size
    at_embedding = usual.with_(
        weights=np.where(s.piped, copy * params, weights),
        gradients=gradients + t.has_embedding * e * (s.vocab_params + positions),
    )
    # The gradients of FSDP2's last group, which has the embedding, are reduced at the end. Replicas
    # without ZeRO all-reduce flat copies of all groups.
    flat = copy * t.has_embedding * (vocab + positions) * (1 + 1 / ranks)
    replicates = (f.zero_stage == 0) & several
    flat = np.where(replicates & s.wrapped, e * (t.params + layer), flat)
    # A tied matrix without a pipeline then has two gradients, their sum, and often an earlier
    # micro-batch's. Those of layers are reduced; copies without ZeRO have no shards of them.
    others = e * (t.params - s.vocab_params)
    reduced = np.where(s.wrapped, shard_gradients - master * s.vocab_params / ranks, others)
    vocab_gradients = np.where(s.reduces_once & again, 4.0, 3.0) * e * s.vocab_params
    tied_at_end = usual.with_(
        weights=copy * (s.vocab_params + replicates * (t.params - s.vocab_params) + layer),
        gradients=tied * ~s.piped * (vocab_gradients + reduced),
    )
    # a vocabulary matrix is drawn whole, then sharded
    drawn = vocab_init_bytes(f) + (e < FP32) * e * s.vocab_params
    return [
        (BUILD, Held(drawn, 0.0, master * shard)),
        (FORWARD, gathering.plus(t.in_flight + t.final_norm, t.loss_forward)),
        *model_moments(
            t,
            loss=loss,
            in_layer=in_layer,
            earlier_layer=in_layer.with_(gradients=gradients + layer_gradients),
        ),
        (BACKWARD, at_embedding.plus(t.in_flight * t.staying)),
        (BACKWARD, tied_at_end.plus(e * s.hidden)),
        (BACKWARD, usual.with_(weights=0.0, gradients=shard_gradients + flat)),
    ]
