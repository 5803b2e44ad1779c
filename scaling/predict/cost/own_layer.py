"""Bytes of this project's own layers, experts and loss (scaling/train/model), under any engine."""

from dataclasses import dataclass

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.predict.cost.stages import (
    busiest_load,
    has_experts,
    head_params,
    held_expert_params,
    layer_params,
)
from scaling.predict.read.features import Features

FP32 = 4.0  # bytes of an element


def position_bias_bytes(f: Features) -> Floats | float:
    """Bytes of the position bias that one stack of an encoder-decoder adds to its scores."""
    if not (f.attentions > 1).any():
        return 0.0
    heads: Floats = f.num_heads / f.tp / f.cp
    return (f.attentions > 1) * f.element_bytes * heads * f.seq_length**2


def vocab_init_bytes(f: Features) -> Floats:
    """Bytes while a vocabulary matrix is drawn: all of it in fp32, and a tp rank's slice."""
    return np.asarray(FP32 * head_params(f) * (1 + np.where(f.tp > 1, 1 / f.tp, 0.0)))


def _expert_memory(f: Features) -> tuple[Floats, Floats, Floats]:
    """Bytes of routed experts in the average layer and a micro-batch: (kept, above, weights).

    kept: for backward. above: most that their backward needs beyond what was alive when it began.
    weights: of the rank's experts in the training precision; gradients take as many.

    A rank's experts receive k copies of each token of the ep group, `busiest_load` times as many
    where the router is uneven. Kept for backward are the experts' inputs, their outputs in token
    order (combining reads them again), and the inner tensors of a feed-forward.
    """
    if not has_experts(f):
        return np.zeros(len(f)), np.zeros(len(f)), np.zeros(len(f))
    e, remote = f.element_bytes, f.ep > 1
    copies_sent = f.tokens * f.experts_per_token
    copies_received = copies_sent * np.where(remote, busiest_load(f), 1.0)
    sent, received = e * copies_sent * f.hidden_size, e * copies_received * f.hidden_size
    inner = e * copies_received * f.expert_ffn / f.tp
    inner_kept = np.where(f.fused_mlp, 3.0, 4.0) * inner
    kept = received + sent + inner_kept
    weights = e * held_expert_params(f)
    matrix = weights / np.maximum(f.expert_share, 1e-9) / (f.mlp_inputs + 1)
    # at the last matrix, and at the experts' input
    at_last = received + inner + matrix - sent
    at_input = 2 * received - sent - inner_kept + f.mlp_inputs * inner + matrix
    above = np.maximum(at_last, at_input)
    share = f.expert_share
    return share * kept, share * above, weights


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Bytes of one layer and micro-batch, (n,)."""

    kept: Floats  # for backward
    recomputed: Floats  # what recomputing adds before backward begins
    in_backward: Floats  # the most that backward needs beyond what it found


def layer_memory(f: Features, stay: Flags) -> LayerMemory:
    """Memory of one layer of the engine's own blocks (scaling/train/model).

    `stay` marks layouts whose gradients of all the layer's weights stay until its backward is done.
    """
    e = f.element_bytes
    whole = f.tokens * f.hidden_size  # elements of the hidden states, and of a tp rank's part
    local = whole / np.where(f.sequence_parallel, f.tp, 1.0)
    queries, keys = e * f.tokens * f.query_width / f.tp, e * f.tokens * f.kv_width / f.tp
    inner = e * f.tokens * f.ffn_hidden_size / f.tp
    scores = e * f.micro_batch_size * f.num_heads / f.tp * f.seq_length**2 / f.cp
    unfused = f.math | f.fused_softmax
    experts_kept, above_experts, expert_weights = _expert_memory(f)

    normed_tokens = f.tokens / np.where(f.sequence_parallel, f.tp, 1.0)
    # the matrices behind a norm read its output whole
    norm = e * (local + whole) + FP32 * normed_tokens
    # an attention block without scores; without a flash kernel keys and values are repeated for
    # all query heads
    # FlashAttention keeps an fp32 logsumexp of each row too (arXiv 2205.14135, section 3.1)
    flash = 2 * (queries + keys) + FP32 * f.tokens * f.num_heads / f.tp
    attention = np.where(unfused, 4 * queries, flash)
    # the second all-to-all copies what it sends: with selective checkpointing the kernel's own
    # output is let go
    attention = attention + np.where((f.cp > 1) & ~f.ring & ~f.selective, queries, 0.0)
    heads = f.tokens * f.num_heads / f.tp * (1 + f.kv_width / f.query_width)  # with a norm each
    attention = attention + f.head_norms * (queries + keys + FP32 * heads)
    # what the last matrix of a dense feed-forward reads, and what that is made from
    gated = np.where(f.fused_mlp, 2.0, 3.0) * inner
    ffn = inner + np.where(f.mlp_inputs > 1, gated, inner) + experts_kept
    in_core = f.attentions * np.where(unfused, scores, 0.0)
    outside_core = (1 + f.attentions) * norm + f.attentions * attention + ffn
    input_bytes = e * local
    kept = np.where(f.full, input_bytes, outside_core + np.where(f.selective, 0.0, in_core))
    recomputed = outside_core + in_core - input_bytes

    # gradients of weights that stay: of the feed-forward's last matrix, of the whole layer
    down = e * f.hidden_size * f.ffn_hidden_size / f.tp
    last_gradient = stay * down
    layer_gradients = stay * (e * layer_params(f) / f.tp + expert_weights)
    # backward comes to the feed-forward first, then to attention and its input
    at_gate = np.maximum(inner + down, ~f.fused_mlp * 2 * inner + last_gradient)
    at_gate = np.maximum(at_gate, above_experts)
    at_scores = np.where(f.math, 2.0, 1.0) + np.where(f.selective, 1.0, 0.0)
    at_scores = np.where(unfused, at_scores * scores, 0.0) - ffn - norm + layer_gradients
    at_input = layer_gradients - outside_core - in_core + norm
    return LayerMemory(
        kept=kept,
        recomputed=np.where(f.full, recomputed, 0.0),
        in_backward=np.max([at_gate, at_scores, at_input], axis=0),
    )


def loss_memory(
    f: Features, logits: Floats, vocab_params: Floats, logit_buffers: Floats | float = 0.0
) -> tuple[Floats, Floats]:
    """Bytes at the peaks of the forward and the backward of the loss over so many `logits`, (n,).

    `logit_buffers`: how many outputs the last stage of a pipeline holds on to.
    """
    e, parallel, buffered = f.element_bytes, f.tp > 1, f.element_bytes * logit_buffers
    low = e < FP32
    # one rank has an fp32 copy and its softmax; tp ranks also their difference from the maximum
    forward = np.where(parallel, 8.0 + buffered, 8.0 + low * e) * logits
    backward = np.where(parallel, 16.0 + buffered, 12.0 + buffered) * logits
    if not f.fused_cross_entropy.any():
        return forward, backward
    fused = f.fused_cross_entropy & (logits > 0)
    hidden = e * f.tokens * f.hidden_size
    # Liger computes the loss in pieces of a power of two of rows; their logits are about 4 x
    pieces = np.ceil(f.vocab_size / (4 * np.maximum(f.hidden_size, 1.0)))
    rows = np.minimum(f.tokens, 2 ** np.ceil(np.log2(np.ceil(f.tokens / pieces))))
    working = FP32 * vocab_params + np.maximum(e * rows * f.vocab_size, low * e * vocab_params)
    return np.where(fused, hidden + working, forward), np.where(fused, 0.0, backward)
