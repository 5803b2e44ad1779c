"""The costs of experts in a layer: weights, GEMMs, memory traffic, all-to-alls, memory.

All formulas are of the average layer: `expert_share` of a model's layers have experts. The part
that every token passes through (attention, dense layers, shared experts) is in the dense formulas.
A rank holds num_experts / ep experts, each split over etp ranks. The tokens of a tp group are
divided among its ranks before they are sent (sequence-parallel dispatch; without sequence
parallelism the same).
"""

from collections.abc import Mapping

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.predict.cost.links import TP_LATENCY_S, link, node_link
from scaling.predict.read.features import Features, Group

_GROUPED = 0.9  # efficiency of a large grouped GEMM over that of a plain one.
_PASSES = 8.0  # over a token's k copies, permuted and summed.
FFN_PASSES = 9.0  # over a feed-forward's width, of its activation and their gradients.
_HOST_WAITS_S = 0.5e-3  # of a layer with experts, for the number of tokens of each.
KEPT_MLP = 8.0  # bytes kept per token and element of a gated feed-forward's width
_KEPT_ROUTED = 4.0  # bytes kept per copy of a token and h: inputs and outputs of the experts


def has_experts(f: Features) -> bool:
    """Whether any of the layouts has experts."""
    return bool((f.expert_share > 0).any())


def routed_params(f: Features) -> Floats:
    """Weights that routing multiplies one token with in the average layer, (n,).

    Those of its k experts, and those of the router.
    """
    per_token = f.experts_per_token * _params_per_expert(f) + f.num_experts * f.hidden_size
    return np.asarray(f.expert_share * per_token)


def held_expert_params(f: Features) -> Floats:
    """Weights of routed experts that a rank holds of the average layer, (n,)."""
    return np.asarray(f.expert_share * f.num_experts * _params_per_expert(f) / (f.ep * f.etp))


def _params_per_expert(f: Features) -> Floats:
    return (f.mlp_inputs + 1) * f.hidden_size * f.expert_ffn


def is_lean(group: Group, f: Features) -> Flags:
    """Whether fused kernels, the software's or Inductor's, keep only what backward reads, (n,)."""
    return f.compile | group.stack.lean_kernels


def kept_of_ffn(group: Group, f: Features) -> Floats:
    """Share of gate, up, activation and product that a feed-forward keeps for backward, (n,).

    Lean kernels fuse the gate with its activation. Without a gate there are the activation's input
    and output.
    """
    return np.where(f.mlp_inputs > 1, np.where(is_lean(group, f), 0.75, 1.0), 0.5)


def busiest_load(f: Features) -> Floats:
    """Tokens of the busiest rank over the mean, (n,). All ranks wait for it.

    One of E experts gets x = `imbalance` times the mean number of tokens, the others
    (E - x) / (E - 1) times. The busiest rank holds that one and E / ep - 1 others.
    """
    experts = np.maximum(f.num_experts, 2.0)
    experts_of_rank = np.maximum(experts / f.ep, 1.0)
    fullest = np.minimum(f.imbalance, experts)
    other = (experts - fullest) / (experts - 1)
    return np.asarray((fullest + (experts_of_rank - 1) * other) / experts_of_rank)


def expert_time(f: Features, p: Mapping[str, float], hbm: float) -> tuple[Floats, Floats]:
    """Seconds of GEMMs and of element-wise operators that routed experts add to the average layer.

    Per micro-batch, forward and backward, (n,); `hbm` is in bytes/s.

    GEMMs: each of a rank's E / ep experts multiplies its m tokens, on average k ep etp / (E tp) per
    token of the tp group. The fewer they are, the emptier the GEMM's tiles. Element-wise operators
    make eight passes over the k copies of a token (permute and weighted sum, with their gradients).
    The activation passes over an expert's width as in a dense layer.
    """
    h, width = f.hidden_size, f.expert_ffn / f.etp
    tokens = f.tokens / f.tp
    recomputed = f.full * 1.0
    copies = tokens * f.experts_per_token * busiest_load(f)  # for a rank's experts, x 1 / etp
    experts = np.maximum(f.num_experts / f.ep, 1.0)
    m, half = copies * f.etp / experts, p["expert_half_size"]
    up = 2 * experts * (m + half) * (h + half) * (f.mlp_inputs * width + half)
    down = 2 * experts * (m + half) * (width + half) * (h + half)
    rate = f.gemm_peak * p["gemm_efficiency"] * _GROUPED
    router = 6 * tokens * h * f.num_experts / (f.peak * p["gemm_efficiency"])
    passed = _PASSES * h * f.etp + FFN_PASSES * f.expert_ffn
    moved = copies * f.element_bytes * passed
    gemm = f.expert_share * ((up + down) * (3 + recomputed) / rate + router)
    return gemm, f.expert_share * moved * (1 + recomputed / 3) / hbm


def all_to_all_s(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """Seconds of the average layer's all-to-alls that nothing hides, per micro-batch, (n,).

    Tokens go to their experts (to each of the etp ranks of one) and come back, and so do gradients:
    four exchanges a micro-batch, six with full checkpointing. A rank sends k copies of each token,
    of which (ep - ranks on its node) / ep leave the node. A stack with `tokens_once_a_node`
    (DeepEP, arXiv 2412.19437, section 3.2) sends a token only once to each node with an expert that
    it is routed to: with even routing over N nodes N (1 - (1 - 1 / N)^k) (N - 1) / N copies leave.
    Links of the node and NICs work at the same time, so the slower one counts. Each exchange also
    takes a latency that grows with log2(ep), and the host waits for the number of tokens of each
    expert.
    """
    ep, k = f.ep, f.experts_per_token
    ranks_on_node = np.clip(f.gpus_per_node / f.etp, 1.0, ep)
    nodes = ep / ranks_on_node
    token_bytes = f.hidden_size * f.element_bytes
    tokens = f.tokens / f.tp * f.etp * busiest_load(f)
    copies_leaving = k * (ep - ranks_on_node) / ep
    if group.stack.tokens_once_a_node:
        reached = nodes * (1 - (1 - 1 / nodes) ** k)  # nodes with one of a token's experts
        copies_leaving = np.minimum(copies_leaving, reached * (nodes - 1) / nodes)
    nics = node_link(group) / f.gpus_per_node * p["network_efficiency"]
    links = link(group.gpu, ranks_on_node) * p["link_efficiency"]
    inside = tokens * k * (ranks_on_node - 1) / ep * token_bytes / links
    across = tokens * copies_leaving * token_bytes / nics
    exchanges = 4 + 2 * f.full
    latency = TP_LATENCY_S * np.log2(np.maximum(ep, 2.0)) / 2  # stated for 4 ranks, as for tp
    seconds = exchanges * (np.maximum(inside, across) + latency)
    seconds = seconds + _HOST_WAITS_S * (1 + f.full / 3)
    return np.asarray(f.expert_share * np.where(ep > 1, seconds, 0.0))


def kept_expert_bytes(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """Bytes per micro-batch that routed experts of the average layer keep for backward, (n,).

    They are the inputs and outputs of the experts per copy of a token. Per element of the expert's
    width they are as in a dense feed-forward.
    """
    copies = f.tokens * f.experts_per_token / f.tp * busiest_load(f)
    of_width = KEPT_MLP * p["kept_sharded"] * kept_of_ffn(group, f) * f.expert_ffn
    per_copy = _KEPT_ROUTED * f.hidden_size * f.etp + of_width
    return np.asarray(f.expert_share * copies * per_copy)
