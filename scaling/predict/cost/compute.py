"""Seconds one layer, the head and the host take for one micro-batch: a roofline per operator."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.cost.experts import experts_of, present
from scaling.predict.read.features import Features, Group

# Of the HBM data sheet a streaming kernel reaches (STREAM-like copies on A100 and H100).
_HBM_EFFICIENCY = 0.85


# Judgement: PCIe 4.0 x16 as copies reach it, and what two sockets of DDR4 stream.
_HOST_LINK_BYTES_PER_S = 25e9
_HOST_BYTES_PER_S = 150e9


@dataclass(frozen=True, slots=True)
class Layer:
    """Seconds of one layer for one micro-batch, forward, backward and recomputation, (n,)."""

    gemm: Floats
    attention: Floats
    elementwise: Floats
    host: Floats  # launching its kernels, without collectives


def layer_of(group: Group, f: Features, p: Mapping[str, float]) -> Layer:
    """GEMMs by shape, attention by kernel, element-wise operators by the bytes they move."""
    tokens = f.micro_batch_size * f.seq_length / f.cp
    # full checkpointing computes forward once more
    again = f.full * 1.0 + f.selective * group.stack.selective_share
    scores_again = (f.full | f.selective) * 1.0
    hbm = _hbm(group)
    gemm = _gemms(f, p, tokens, again)
    elementwise = _elementwise(f, p, tokens, again, hbm)
    host = p["host_layer_s"] * (1 + again / 3) + f.math * p["host_softmax_s"]
    if present(f):
        routed = experts_of(f, p, hbm)
        gemm, elementwise = gemm + routed.gemm, elementwise + routed.elementwise
    return Layer(
        gemm=gemm,
        attention=_attention(f, p, scores_again, hbm),
        elementwise=elementwise,
        host=host,
    )


def head_of(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """Seconds of the head with its loss for one micro-batch, (n,); the embedding's count for none.

    A GEMM of (tokens, h) with (h, vocabulary / tp), and passes over fp32 logits.
    """
    tokens = f.micro_batch_size * f.seq_length / f.cp
    hbm = _hbm(group)
    columns = f.vocab_size / f.tp
    seen = f.vocab_size if group.stack.gathered_logits else columns
    rate = f.peak * p["gemm_efficiency"]
    gemm = _gemm(tokens, columns, f.hidden_size, p["gemm_half_size"]) * 3 / rate
    return np.asarray(gemm + tokens * seen * 4 * p["logit_passes"] / hbm)


def optimizer_seconds(group: Group, weights: Floats) -> Floats:
    """Adam over `weights` parameters a rank holds, (n,).

    34 bytes a parameter: read gradient (4), master, two moments (12), write the three (12), the
    16-bit copy (2), and clip's pass over the gradient (4).
    """
    return np.asarray(weights * 34.0 / _hbm(group))


def offloaded_seconds(f: Features, weights: Floats) -> Floats:
    """Adam on the host over `weights` parameters a rank holds, (n,); nothing hides it.

    fp32 gradients come (4 bytes a parameter) and 16-bit weights go (2); all ranks of a node share
    its memory for the 28 bytes that Adam moves: read gradient, master, two moments, write three.
    """
    ranks = np.minimum(f.world_size, f.gpus_per_node)
    return np.asarray(weights * (6.0 / _HOST_LINK_BYTES_PER_S + ranks * 28.0 / _HOST_BYTES_PER_S))


def _hbm(group: Group) -> float:
    bandwidth = group.gpu.hbm_bytes_per_s
    assert bandwidth is not None
    return bandwidth * _HBM_EFFICIENCY


def _gemm(m: Floats, n: Floats, k: Floats, half: float) -> Floats:
    """FLOPs of an (m, k) x (k, n) product as a perfect GPU would have to run them.

    Each dimension d costs (d + half) / d: tiles and waves that are not full.
    """
    return np.asarray(2 * (m + half) * (n + half) * (k + half))


def _gemms(f: Features, p: Mapping[str, float], tokens: Floats, again: Floats) -> Floats:
    """Query-key-value, projection, up (and gate), down; x (1 forward + 2 backward + again)."""
    h, tp, half = f.hidden_size, f.tp, p["gemm_half_size"]
    ffn = f.ffn_hidden_size / tp
    attention = _gemm(tokens, (f.query_width + 2 * f.kv_width) / tp, h, half)
    attention = attention + _gemm(tokens, h, f.query_width / tp, half)
    mlp = _gemm(tokens, f.mlp_inputs * ffn, h, half) + _gemm(tokens, h, ffn, half)
    flops = (attention * f.attention_weights * f.attentions + mlp) * (3 + again)
    return flops / (f.gemm_peak * p["gemm_efficiency"])


def _attention(f: Features, p: Mapping[str, float], again: Floats, hbm: float) -> Floats:
    """Scores and values: 4 s^2 width FLOPs forward, 2.5 (flash recomputes scores) or 2 x backward.

    Flash kernels skip the causal half; matmul-softmax-matmul does not, and reads and writes its
    s x s scores several times.
    """
    full = 4 * f.seq_length * f.seq_length * f.query_width / (f.tp * f.cp) * f.micro_batch_size
    full = full * f.attentions
    efficiency = np.where(f.flash1, p["flash1_efficiency"], p["flash2_efficiency"] * f.flash_gain)
    flash = full * f.causal * (3.5 + again) / (f.peak * efficiency)
    scores = f.micro_batch_size * f.num_heads / f.tp * f.seq_length * f.seq_length / f.cp
    passes = np.where(f.math, p["math_passes"], p["fused_passes"]) * f.attentions
    moved = scores * f.element_bytes * passes * (1 + again / 3) / hbm
    unfused = full * (3 + again) / (f.peak * p["score_efficiency"]) + moved
    return np.where(f.math | f.fused_softmax, unfused, flash)


def _elementwise(
    f: Features, p: Mapping[str, float], tokens: Floats, again: Floats, hbm: float
) -> Floats:
    """Norms and residuals (sharded by tp only under sequence_parallel); activation, rotary, bias.

    The tp-sharded part is counted: 9 passes over a gated ffn (7 without a gate), 10 over the heads.
    GEMMs of low precision have what they read cast first.
    """
    passes = np.where(f.fused_norm, p["norm_passes_fused"], p["norm_passes"])
    norms = passes * f.hidden_size / np.where(f.sequence_parallel, f.tp, 1.0)
    counted = np.where(f.mlp_inputs > 1, 9.0, 7.0) * f.ffn_hidden_size + 10 * f.query_width
    moved = tokens * f.element_bytes * (norms + counted / f.tp)
    casts = f.cast_bytes * tokens * _cast_elements(f)
    return (moved + casts) * (1 + again / 3) / hbm


def _cast_elements(f: Features) -> Floats:
    """Elements a token brings to 8 or 4 bits: what the four GEMMs of a layer read each way.

    Forward their inputs (h, query width, h, ffn), backward the gradients of their outputs.
    """
    forward = f.attentions * (f.hidden_size + f.query_width) + f.hidden_size + f.ffn_hidden_size
    backward = f.attentions * (f.query_width + 2 * f.kv_width + f.hidden_size)
    backward = backward + f.mlp_inputs * f.ffn_hidden_size + f.hidden_size
    return (forward + backward) / f.tp
