"""Seconds that one layer, the head and the host take for one micro-batch: a roofline per operator.

The factor of a pass is 1 for forward, 2 for backward, and 1 for what is recomputed: full
checkpointing runs a whole forward again.
"""

from collections.abc import Mapping

import numpy as np

from scaling.arrays import Floats
from scaling.predict.cost.stages import busiest_load, has_experts, layer_params
from scaling.predict.read.features import Features, Group

# Share of the data sheet's HBM bandwidth that streaming kernels reach (STREAM on A100 and H100).
_HBM_EFFICIENCY = 0.85

_LOGIT_PASSES = 8.0  # over the fp32 logits, forward and backward
_FLASH1 = 0.6  # efficiency of FlashAttention 1 over that of 2
_MATH = 1.8  # passes of torch's softmax over the scores, over those of a fused one
_SCORE_EFFICIENCY = 0.35  # of the peak, score matmuls without flash

_GROUPED = 0.9  # efficiency of a large grouped GEMM over that of a plain one.
_PASSES = 8.0  # over a token's k copies, permuted and summed.
_FFN_PASSES = 9.0  # over a feed-forward's width, of its activation and their gradients.

# Judgement: what copies reach over PCIe 4.0 x16, and what two sockets of DDR4 stream.
_HOST_LINK_BYTES_PER_S = 25e9
_HOST_BYTES_PER_S = 150e9
_RANK_HOST_BYTES_PER_S = 30e9  # a rank's share of the cores: measured on an H100's 16


def layer_time(
    group: Group, f: Features, p: Mapping[str, float]
) -> tuple[dict[str, Floats], Floats]:
    """Seconds of one layer for one micro-batch, forward, backward and recomputation, (n,).

    Kernels come by the names of TIME_TERMS: GEMMs by shape, attention by kernel, element-wise
    operators by the bytes they move. The host's time is that of launches, without collectives.
    """
    hbm = hbm_bytes_per_s(group)
    gemm, elementwise = _gemm_s(f, p), _elementwise_s(f, p, hbm)
    if has_experts(f):
        expert_gemm, expert_elementwise = _expert_s(f, p, hbm)
        gemm, elementwise = gemm + expert_gemm, elementwise + expert_elementwise
    hooks = np.where(f.zero_stage >= 3, group.stack.zero_3_hooks, 0.0)
    host = p["host_layer_s"] * (1 + hooks) * (1 + f.full / 3)
    return {
        "gemm_s": gemm,
        "attention_s": _attention_s(f, p, hbm),
        "elementwise_s": elementwise,
    }, host


def head_time(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """Seconds of the head and its loss for one micro-batch, (n,); the embedding counts for nothing.

    A GEMM of (tokens, h) with (h, vocabulary / tp), and several passes over fp32 logits.
    """
    columns = f.vocab_size / f.tp
    rate = f.peak * p["gemm_efficiency"]
    gemm = _gemm_flops(f.tokens, columns, f.hidden_size, p["gemm_half_size"]) * 3 / rate
    return np.asarray(gemm + f.tokens * columns * 4 * _LOGIT_PASSES / hbm_bytes_per_s(group))


def optimizer_seconds(group: Group, f: Features, weights: Floats) -> Floats:
    """Adam over the `weights` parameters that a rank holds, (n,).

    It moves 34 bytes a parameter. It reads the gradient (4), the master weight and two moments
    (12), and the gradient for clipping (4). It writes these three (12) and the 16-bit copy (2). It
    moves 18 with states and gradients in 16 bits.
    """
    return np.asarray(weights * np.where(f.short_states, 18.0, 34.0) / hbm_bytes_per_s(group))


def offloaded_seconds(f: Features, p: Mapping[str, float], weights: Floats) -> Floats:
    """Adam on the host over the `weights` parameters that a rank holds, (n,); nothing hides it.

    Over PCIe fp32 gradients come (4 bytes a parameter) and 16-bit weights go (2). All ranks of a
    node share its memory and cores for Adam's 28 bytes: read the gradient, the master weight and
    two moments (16), write the last three (12). States and gradients in 16 bits halve all but the
    weights.
    """
    rate = p["host_update"] * host_bytes_per_s(np.minimum(f.world_size, f.gpus_per_node))
    moved = np.where(f.short_states, 4.0, 6.0) / _HOST_LINK_BYTES_PER_S
    updated = np.where(f.short_states, 14.0, 28.0) / rate
    return np.asarray(weights * (moved + updated))


def host_bytes_per_s(ranks: Floats) -> Floats:
    """Bytes/s of Adam on a usual host that each of its ranks reaches, (n,)."""
    return np.asarray(np.minimum(_RANK_HOST_BYTES_PER_S, _HOST_BYTES_PER_S / ranks))


def hbm_bytes_per_s(group: Group) -> float:
    """Bytes/s of HBM that a streaming kernel reaches."""
    bandwidth = group.gpu.hbm_bytes_per_s
    assert bandwidth is not None
    return bandwidth * _HBM_EFFICIENCY


def _gemm_flops(m: Floats, n: Floats, k: Floats, half: float) -> Floats:
    """FLOPs of an (m, k) x (k, n) product, with those that part-filled tiles and waves waste.

    A dimension d takes as long as d + half would on a GPU without tiles.
    """
    return np.asarray(2 * (m + half) * (n + half) * (k + half))


def _gemm_s(f: Features, p: Mapping[str, float]) -> Floats:
    """Query-key-value and output projections, up (and gate) and down of the feed-forward."""
    h, tp, half = f.hidden_size, f.tp, p["gemm_half_size"]
    ffn = f.ffn_hidden_size / tp
    attention = _gemm_flops(f.tokens, (f.query_width + 2 * f.kv_width) / tp, h, half)
    attention = attention + _gemm_flops(f.tokens, h, f.query_width / tp, half)
    mlp = _gemm_flops(f.tokens, f.mlp_inputs * ffn, h, half)
    mlp = mlp + _gemm_flops(f.tokens, h, ffn, half)
    flops = (attention * f.attention_weights * f.attentions + mlp) * (3 + f.full)
    return np.asarray(flops / (f.gemm_peak * p["gemm_efficiency"]))


def _expert_s(f: Features, p: Mapping[str, float], hbm: float) -> tuple[Floats, Floats]:
    """Seconds of GEMMs and of element-wise operators that routed experts add to the average layer.

    Per micro-batch, forward and backward, (n,); `hbm` is in bytes/s.

    GEMMs: each of a rank's E / ep experts multiplies its m tokens, on average k ep etp / (E tp) per
    token of the tp group. The fewer they are, the emptier the GEMM's tiles. Element-wise operators
    make eight passes over the k copies of a token (permute and weighted sum, with their gradients).
    The activation passes over an expert's width as in a dense layer.
    """
    h, width = f.hidden_size, f.expert_ffn / f.etp
    tokens = f.tokens / f.tp
    copies = tokens * f.experts_per_token * busiest_load(f)  # for a rank's experts, x 1 / etp
    experts = np.maximum(f.num_experts / f.ep, 1.0)
    m, half = copies * f.etp / experts, p["expert_half_size"]
    up = 2 * experts * (m + half) * (h + half) * (f.mlp_inputs * width + half)
    down = 2 * experts * (m + half) * (width + half) * (h + half)
    rate = f.gemm_peak * p["gemm_efficiency"] * _GROUPED
    router = 6 * tokens * h * f.num_experts / (f.peak * p["gemm_efficiency"])
    passed = _PASSES * h * f.etp + _FFN_PASSES * f.expert_ffn
    moved = copies * f.element_bytes * passed
    gemm = f.expert_share * ((up + down) * (3 + f.full) / rate + router)
    return gemm, f.expert_share * moved * (1 + f.full / 3) / hbm


def _attention_s(f: Features, p: Mapping[str, float], hbm: float) -> Floats:
    """Products of queries with keys and of scores with values.

    Forward takes 4 s^2 width FLOPs, backward 2 times that, or 2.5 in flash kernels, which recompute
    the scores. Flash kernels skip the masked half; matmul-softmax-matmul does not, and reads and
    writes its s x s scores several times.
    """
    recomputed = f.full | f.selective
    forward = 4 * f.seq_length * f.seq_length * f.query_width / (f.tp * f.cp) * f.micro_batch_size
    forward = forward * f.attentions
    efficiency = p["flash2_efficiency"] * np.where(f.flash1, _FLASH1, f.flash_gain)
    flash = forward * f.causal * (3.5 + recomputed) / (f.peak * efficiency)
    scores = f.micro_batch_size * f.num_heads / f.tp * f.seq_length * f.seq_length / f.cp
    passes = p["score_passes"] * np.where(f.math, _MATH, 1.0) * f.attentions
    moved = scores * f.element_bytes * passes * (1 + recomputed / 3) / hbm
    unfused = forward * (3 + recomputed) / (f.peak * _SCORE_EFFICIENCY) + moved
    return np.where(f.math | f.fused_softmax, unfused, flash)


def _elementwise_s(f: Features, p: Mapping[str, float], hbm: float) -> Floats:
    """Norms and residuals, activation, rotary embedding, biases, casts of low-precision GEMMs.

    tp shards norms and residuals only under sequence_parallel. The rest is counted: passes over the
    ffn and 10 over the heads, all sharded by tp.
    """
    passes = np.where(f.fused_norm, p["norm_passes_fused"], p["norm_passes"])
    norms = passes * f.hidden_size / np.where(f.sequence_parallel, f.tp, 1.0)
    sharded = _FFN_PASSES * f.ffn_hidden_size + 10 * f.query_width
    moved = f.tokens * f.element_bytes * (norms + sharded / f.tp)
    if (f.cast_bytes > 0).any():
        moved = moved + f.cast_bytes * _cast_elements(f)
    return moved * (1 + f.full / 3) / hbm


def _cast_elements(f: Features) -> Floats:
    """Elements that a layer's GEMMs cast to 8 bits for a micro-batch, (n,).

    Forward the inputs of its four GEMMs (h, query width, h, ffn), backward the gradients of their
    outputs; each time the weights too. Tensors h wide are whole on each tp rank.
    """
    whole = 2 * (f.attentions + 1) * f.hidden_size
    sharded = 2 * f.attentions * (f.query_width + f.kv_width)
    sharded = sharded + (1 + f.mlp_inputs) * f.ffn_hidden_size
    return f.tokens * (whole + sharded / f.tp) + layer_params(f) / f.tp
