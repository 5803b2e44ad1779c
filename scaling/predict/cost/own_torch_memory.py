"""Peak memory of this project's engine on FSDP2, phase by phase, as its rehearsals count it.

Sharded weights, their moments and their gradients are fp32 (bf16 under `optimizer_precision`);
beside them lie the copies that FSDP2 gathers in the precision that trains: all weights up to
zero_stage 2, two layers of them at 3. A layer's gradients are whole until they are reduced.
Activations and loss are those of the model that both engines train (own_memory.py).
"""

from collections.abc import Mapping

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.cost.own_memory import (
    PHASES,
    Held,
    Moment,
    OwnMemory,
    fullest_of,
    layer_of,
    loss_of,
)
from scaling.predict.cost.sharding import sharding_of
from scaling.predict.cost.stages import head_params, layer_params, stages_of
from scaling.predict.read.features import Features, Group

_WIDE = 4.0  # bytes of fp32
_BUILD, _FORWARD, _BACKWARD, _OPTIMIZER = range(len(PHASES))


def own_torch_memory_of(group: Group, f: Features, p: Mapping[str, float]) -> OwnMemory:
    """The fullest moment of the first and the last stage, of 1F1B or of a replica."""
    first, last = (_moments(group, f, p, last=end) for end in (False, True))
    return fullest_of(first, last)


def _moments(group: Group, f: Features, p: Mapping[str, float], *, last: bool) -> list[Moment]:
    z, e, stages = f.zero_stage, f.element_bytes, stages_of(f, group.stack)
    piped, rounds = stages.piped, f.accumulation
    tokens = f.micro_batch_size * f.seq_length / f.cp
    own = tokens * f.hidden_size / np.where(f.sequence_parallel, f.tp, 1.0)
    layers = np.where(piped & last, stages.last, stages.first)
    layer_weights, table = layer_params(f) / f.tp, head_params(f) / f.tp
    has_head, nothing = ~piped | last, np.zeros(len(f))
    weights = layers * layer_weights + np.where(piped, 1.0, f.embeddings) * table
    part = weights / sharding_of(group, f).state
    # a rank alone in fp32 has nothing to gather: FSDP2 does not stand around it
    gathers = (e < _WIDE) | (f.dp * f.cp > 1) | f.offload
    wide = np.where(f.short_states, e, _WIDE)
    state = np.where(f.offload, 0.0, 3 * wide * part)
    copies = np.where(gathers & ~(f.short_states & (f.dp * f.cp == 1)), e, 0.0)
    held = np.where(z >= 3, 0.0, copies * weights)
    sharded = np.where(f.offload, 0.0, wide * part)
    # pipelines reduce once a step; replicas after each micro-batch from zero_stage 2 on
    waits_for_all = piped | (z < 2)
    kept = np.where(rounds > 1, np.where(waits_for_all, e * weights, sharded), 0.0)
    per_layer = layer_of(f, tokens)
    flying = np.where(piped, 1.0 if last else np.minimum(rounds, f.pp), 1.0)
    final = np.where(
        has_head, np.where(f.fused_norm, e, _WIDE + e) * own + e * tokens * f.hidden_size, 0.0
    )
    activations = flying * layers * per_layer.kept + np.where(piped, 1.5 * e * own, 0.0) + final
    logits = np.where(has_head, tokens * f.vocab_size / f.tp, 0.0)
    forward, backward, after = loss_of(f, logits, tokens, table, piped)
    at_loss = np.where((z >= 3) & has_head, e * table, 0.0)
    two_layers = np.where(z >= 3, 2 * e * layer_weights, 0.0)
    # gradients that are being reduced, while those of the layer before are computed one by one
    of_layers = np.where(gathers & ~(waits_for_all & (rounds > 1)), e * layer_weights, 0.0)
    working = per_layer.again + per_layer.above + e * own
    whole = _WIDE * head_params(f) * (1 + np.where(f.tp > 1, 1 / f.tp, 0.0))

    def at(
        gradients: Floats = kept,
        activations: Floats = nothing,
        logits: Floats = nothing,
        more: Floats = nothing,
        held: Floats = held,
        optimizer: Floats = state,
    ) -> Held:
        unseen = p["buffers_bytes"] + nothing
        return Held(held + more, gradients, optimizer, activations, logits, unseen)

    return [
        (_BUILD, at(nothing, optimizer=wide * part, held=whole)),
        (_FORWARD, at(activations=activations, logits=forward, more=at_loss)),
        (_BACKWARD, at(activations=activations, logits=backward, more=at_loss)),
        (_BACKWARD, at(activations=activations, logits=after, more=at_loss)),
        (_BACKWARD, at(kept + of_layers, activations - final + working, more=two_layers)),
        (_BACKWARD, at(np.where(waits_for_all, e * weights, 0.0) + sharded, working)),
        (_OPTIMIZER, at(sharded, held=np.where(gathers, 0.0, nothing))),
    ]
