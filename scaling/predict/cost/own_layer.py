"""Bytes of this project's own layers, experts and loss (scaling/train/model), under any engine."""

from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost import saved
from scaling.predict.cost.experts import busiest, held_params, present
from scaling.predict.cost.stages import head_params, layer_params
from scaling.predict.read.features import Features

WIDE = 4.0  # bytes of fp32


def weights_of_layer(f: Features) -> Floats:
    """Weights of a rank's average layer: norms, biases and routers too, routed experts apart."""
    norms = (1 + f.attentions + f.expert_share * f.num_experts) * f.hidden_size
    biases = (f.query_width + 2 * f.kv_width + f.ffn_hidden_size) / f.tp + 2 * f.hidden_size
    weights: Floats = layer_params(f) / f.tp + norms + (f.positions > 0) * (norms + biases)
    return weights


def position_tables(f: Features) -> Floats | float:
    """Bytes of the biases that one stack of an encoder-decoder adds to its scores."""
    if not (f.attentions > 1).any():
        return 0.0
    heads: Floats = f.num_heads / f.tp / f.cp
    return (f.attentions > 1) * f.element_bytes * heads * f.seq_length**2


def drawn_whole(f: Features) -> Floats:
    """Bytes of a vocabulary matrix while it is drawn, in fp32, and of the slice a rank takes."""
    whole: Floats = WIDE * head_params(f) * (1 + np.where(f.tp > 1, 1 / f.tp, 0.0))
    return whole


@dataclass(frozen=True, slots=True)
class Routed:
    """Bytes of the average layer and micro-batch, (n,).

    `kept` for backward, `above` what backward needs beyond what lived when it came to the experts,
    `weights` those of a rank's experts in the precision that trains, and of their gradients, `read`
    what only these gradients are made from.
    """

    kept: Floats
    above: Floats
    weights: Floats
    read: Floats


def routed_of(f: Features, tokens: Floats, gradients_stay: Flags) -> Routed:
    """Experts of a layer for `tokens` of a rank.

    A rank's experts get k copies of each token of its ep group, `busiest` of them where a router is
    uneven. Kept are what enters the experts, what leaves them (the copy back reads it again), where
    tokens travel what has come back, the copies in the tokens' order, and the parts of a
    feed-forward; of the router the scores in fp32 and whole numbers: of each copy its expert, its
    place, the token it is of and, where tokens travel, its place among those that arrived.
    """
    if not present(f):
        return Routed(*np.zeros((4, len(f))))
    e, share, travels = f.element_bytes, f.expert_share, f.ep > 1
    sent = tokens * f.experts_per_token  # copies of this rank's tokens
    received = sent * np.where(travels, busiest(f), 1.0)
    outside, inside = e * sent * f.hidden_size, e * received * f.hidden_size
    inner = e * received * f.expert_ffn / f.tp
    of_inner = np.where(f.fused_mlp, 3.0, 4.0) * inner
    places = 8.0 * (3 * sent + np.where(travels, received, 0.0)) + 4 * tokens * f.num_experts
    kept = 2 * inside + np.where(travels, 2.0, 1.0) * outside + of_inner + places
    weights = e * held_params(f)
    one = weights / np.maximum(share, 1e-9) / (f.mlp_inputs + 1)  # the gradient of one matrix
    # of the weighted sum two gradients beside each other; then those of what goes into the last
    # matrix, into the others, into the experts
    waits = np.where(gradients_stay, one, 0.0)
    freed = np.where(travels, 2.0, 1.0) * outside
    at_last = inside + inner + one - freed
    at_others = f.mlp_inputs * inner + waits - freed - inside
    at_first = inside - freed - of_inner + f.mlp_inputs * (inner + waits) + one
    above = np.max([2 * outside, at_last, at_others, at_first], axis=0)
    return Routed(share * kept, share * above, weights, share * (inside + inner))


@dataclass(frozen=True, slots=True)
class Layer:
    """Bytes of one layer and micro-batch, (n,).

    `kept` for backward, `again` what recomputing adds before backward begins, `in_ffn` and
    `in_attention` what backward needs there beyond what lived when it came to the layer, `waiting`
    the gradients from which those of the weights are made later, `read` what only these read.
    """

    kept: Floats
    again: Floats
    in_ffn: Floats
    in_attention: Floats
    waiting: Floats
    read: Floats

    @property
    def above(self) -> Floats:
        """The larger of the two."""
        return np.maximum(self.in_ffn, self.in_attention)


def layer_of(f: Features, tokens: Floats, gradients_stay: Flags | None = None) -> Layer:
    """One layer of the engine's own blocks (scaling/train/model), `tokens` of a rank.

    `gradients_stay`: of all the layer's weights, until its backward is done; None: of none.
    """
    e, shared = f.element_bytes, np.where(f.sequence_parallel, f.tp, 1.0)
    whole, own = tokens * f.hidden_size, tokens * f.hidden_size / shared  # elements
    queries, keys = e * tokens * f.query_width / f.tp, e * tokens * f.kv_width / f.tp
    inner = e * tokens * f.ffn_hidden_size / f.tp
    scores = e * f.micro_batch_size * f.num_heads / f.tp * f.seq_length**2 / f.cp
    plain = f.math | f.fused_softmax
    gated = f.mlp_inputs > 1
    # a norm keeps its input in fp32 and the normed in 16 bits; then what the matrices behind it
    # read, whole
    fused_norm = saved.rms_norm(e * own, tokens / shared)
    norm = np.where(f.fused_norm, fused_norm, (WIDE + e) * own) + e * whole
    # without a flash kernel keys are repeated where a product needs them so; a second all-to-all
    # copies
    none = np.zeros_like(queries)
    flash = saved.flash_attention(queries, keys, none)
    attention = np.where(plain, 4 * queries, flash) + np.where((f.cp > 1) & ~f.ring, queries, 0.0)
    attention = attention + f.head_norms * (WIDE + e) * (queries + keys) / e
    # what the last matrix reads, and what makes it
    gate = inner + np.where(gated, np.where(f.fused_mlp, saved.gate(inner), 3 * inner), inner)
    stay = np.zeros(len(f), dtype=bool) if gradients_stay is None else gradients_stay
    routed = routed_of(f, tokens, stay)
    gate = gate + routed.kept
    logsumexp = saved.flash_attention(none, none, tokens * f.num_heads / f.tp)
    in_core = f.attentions * np.where(plain, scores, logsumexp)
    outside = (1 + f.attentions) * norm + f.attentions * attention + gate
    # backward comes to the feed-forward first, then to its norm, then to attention
    down = e * f.hidden_size * f.ffn_hidden_size / f.tp  # the gradient of its last matrix
    of_last: Floats | float
    of_ffn: Floats | float
    of_all: Floats | float
    of_last = of_ffn = of_all = 0.0
    if gradients_stay is not None:
        of_last = stay * down
        of_ffn = stay * ((f.mlp_inputs + 1) * down + routed.weights)
        of_all = stay * (e * layer_params(f) / f.tp + routed.weights)
    at_gate = np.maximum(inner + down, ~f.fused_mlp * 2 * inner + of_last)
    at_gate = np.maximum(at_gate, routed.above)
    at_norm = np.where(f.fused_norm, e * own, 16.0 * own) - gate
    at_scores = np.where(f.math, 2.0, 1.0) + np.where(f.selective, 1.0, 0.0)
    at_scores = np.where(plain, at_scores * scores, 0.0) - gate - norm
    in_ffn = np.maximum(at_gate, np.maximum(at_norm, f.mlp_inputs * inner - gate) + of_ffn)
    in_attention = np.maximum(at_scores + of_ffn, of_all - outside - in_core + norm)
    waiting = f.mlp_inputs * inner + queries + 2 * keys + 2 * e * (own + whole)
    # a fused norm reads its input for the gradient of its scale
    read = (1 + f.attentions) * e * (own + whole) + inner + routed.read
    read = read - np.where(f.fused_norm, e * own, 0.0)
    boundary = e * own
    kept = np.where(f.full, boundary, outside + np.where(f.selective, 0.0, in_core))
    recomputed = outside + in_core - np.where(f.fused_norm, boundary, 0.0)
    return Layer(kept, np.where(f.full, recomputed, 0.0), in_ffn, in_attention, waiting, read)


@dataclass(frozen=True, slots=True)
class Loss:
    """Bytes of the loss, (n,), 0 where there is no head.

    In `forward`, in `backward`, of what leaves it (`of_logits`: a gradient in the precision that
    trains, and that of the head), of the head's gradient `after` it.
    """

    forward: Floats | float
    backward: Floats | float
    of_logits: Floats | float
    after: Floats | float


def loss_of(
    f: Features, logits: Floats, tokens: Floats, table: Floats, outputs: Floats | float = 0.0
) -> Loss:
    """The loss over so many `logits`; `outputs` of a pipeline's last stage are held on to."""
    e, parallel, held = f.element_bytes, f.tp > 1, f.element_bytes * outputs
    low = e < WIDE
    # of one rank an fp32 copy and its softmax, of several their difference from the largest too
    others = np.maximum(held - e, 0.0)
    forward = np.where(parallel, 8.0 + held, 8.0 + low * e + others) * logits
    backward = np.where(parallel, 16.0 + held, 12.0 + held) * logits
    gradient = np.where(logits > 0, e * table, 0.0)
    if not f.fused_cross_entropy.any():
        return Loss(forward, backward, e * logits + gradient, gradient)
    joined = f.fused_cross_entropy & (logits > 0)
    width = np.maximum(f.hidden_size, 1.0)
    pieces = np.ceil(f.vocab_size / (4 * width))
    rows = np.minimum(tokens, 2 ** np.ceil(np.log2(np.ceil(tokens / pieces))))
    fused = WIDE * table + np.maximum(e * rows * f.vocab_size, low * e * table)
    both = saved.linear_cross_entropy(e * tokens * width, e * table)
    return Loss(
        np.where(joined, e * tokens * width + fused, forward),
        np.where(joined, both, backward),
        np.where(joined, both, e * logits + gradient),
        np.where(joined, both, gradient),
    )
