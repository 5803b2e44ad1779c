"""What a rank of this project's engines works on, whichever engine it is."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.chunks import Chunks
from scaling.predict.cost.experts import held_params
from scaling.predict.cost.own_parts import (
    WIDE,
    Layer,
    Loss,
    layer_of,
    loss_of,
    position_tables,
    weights_of_layer,
)
from scaling.predict.cost.sharding import Sharding, sharding_of
from scaling.predict.cost.stages import head_params, shared_ffn
from scaling.predict.read.features import Features, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What all stages of a layout share; elements of a micro-batch, bytes of a layer, (n,)."""

    f: Features
    piped: bool
    tokens: Floats
    own: Floats  # hidden states of a rank's own tokens
    layer: Layer
    routed: Floats  # weights of a rank's average layer that are its experts'
    layer_weights: Floats  # all of them
    table: Floats  # of a vocabulary matrix
    matrix: Floats  # of a feed-forward's matrix
    sharding: Sharding
    replicas: Floats


def of_rank(f: Features, c: Chunks) -> Features:
    """The layouts with the average layer of these chunks, which have other dense ones than most."""
    if c.dense is None:
        return f
    share = 1 - c.dense / np.maximum(c.layers, 1.0)
    ffn = (1 - share) * f.dense_ffn + share * shared_ffn(f)
    return dataclasses.replace(f, expert_share=share, ffn_hidden_size=ffn)


def step_of(group: Group, f: Features, *, piped: bool, gradients_stay: Flags | None) -> Step:
    """What all stages of these layouts share; see `layer_of` for the gradients that stay."""
    tokens, routed = f.micro_batch_size * f.seq_length / f.cp, held_params(f)
    return Step(
        f=f,
        piped=piped,
        tokens=tokens,
        own=tokens * f.hidden_size / np.where(f.sequence_parallel, f.tp, 1.0),
        layer=layer_of(f, tokens, gradients_stay),
        routed=routed,
        layer_weights=weights_of_layer(f) + routed,
        table=head_params(f) / f.tp,
        matrix=f.hidden_size * f.ffn_hidden_size / f.tp,
        sharding=sharding_of(group, f),
        replicas=f.dp * f.cp,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a rank of a pipeline keeps of its model's work; bytes unless said otherwise, (n,).

    When the last layer is done it holds `passing`, activations of layers and messages, and `final`,
    those of the final norm. Recomputing keeps the position tables of encoder and decoder, which
    every layer is given: of each micro-batch on its way the one of the stage's layers.
    """

    step: Step
    chunks: Chunks
    weights: Floats  # elements of a tp rank
    passing: Floats
    final: Floats | float
    logits: Floats | float  # elements
    unfused: Floats | float  # of the hidden states that a plain final norm works on
    loss: Loss


def stage_of(s: Step, c: Chunks) -> Stage:
    """What a rank that holds these chunks keeps."""
    f, e = s.f, s.f.element_bytes
    weights = c.layers * s.layer_weights + c.tables * s.table
    passing = c.flying * s.layer.kept
    passing = passing + (f.full | f.selective) * c.positions * position_tables(f)
    if s.piped:
        passing = passing + c.messages * e * s.own
    final: Floats | float
    logits: Floats | float
    unfused: Floats | float
    final, logits, unfused, loss = 0.0, 0.0, 0.0, Loss(0.0, 0.0, 0.0, 0.0)
    if np.any(c.has_head):
        final = np.where(f.fused_norm, e, WIDE + e) * s.own + e * s.tokens * f.hidden_size
        final, unfused = c.has_head * final, c.has_head * ~f.fused_norm * s.own
        logits = c.has_head * s.tokens * f.vocab_size / f.tp
        loss = loss_of(f, logits, s.tokens, s.table, c.outputs)
    return Stage(
        step=s,
        chunks=c,
        weights=weights + c.looks_up * f.positions * f.hidden_size,
        passing=passing,
        final=final,
        logits=logits,
        unfused=unfused,
        loss=loss,
    )
