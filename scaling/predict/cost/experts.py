"""What a mixture of experts adds to a layer: weights, GEMMs, passes, all-to-alls, memory.

Everything is of the average layer: `expert_share` of a model's layers have experts. What all tokens
share (attention, dense layers, shared experts) is in the dense formulas. A rank holds num_experts /
ep experts, each cut over etp ranks, and its tp group's tokens are spread over tp ranks before they
are sent (sequence parallel dispatch; without tp the same).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.cost.links import link, node_link
from scaling.predict.cost.sharding import Sharding
from scaling.predict.read.features import Features, Group


@dataclass(frozen=True, slots=True)
class Experts:
    """Seconds of the average layer for one micro-batch, forward and backward, (n,)."""

    gemm: Floats
    elementwise: Floats


def present(f: Features) -> bool:
    """Whether any of the layouts has experts."""
    return bool((f.expert_share > 0).any())


def routed_params(f: Features) -> Floats:
    """Weights of routed experts that one token is multiplied with in the average layer, (n,)."""
    chosen = f.experts_per_token * _one_expert(f) + f.num_experts * f.hidden_size
    return np.asarray(f.expert_share * chosen)


def held_params(f: Features) -> Floats:
    """Weights of routed experts that a rank holds of the average layer, (n,)."""
    return np.asarray(f.expert_share * f.num_experts * _one_expert(f) / (f.ep * f.etp))


def _one_expert(f: Features) -> Floats:
    return (f.mlp_inputs + 1) * f.hidden_size * f.expert_ffn


def replicas(f: Features) -> Floats:
    """Ranks of a stage that hold the same experts, (n,): all of them over ep * etp."""
    return np.asarray(f.dp * f.cp * f.tp / (f.ep * f.etp))


def expert_sharding_of(f: Features) -> Sharding:
    """Over how many of those ranks ZeRO spreads one copy of the experts' state."""
    over = replicas(f)
    spread = np.where(f.shard < f.dp, np.minimum(over, f.shard * f.cp), over)
    spread = np.where(f.zero_stage >= 1, spread, 1.0)
    return Sharding(state=spread, inside=spread, second=np.zeros(len(f), dtype=bool))


def busiest(f: Features) -> Floats:
    """Tokens of the busiest rank over the mean, (n,), where one expert gets `imbalance` times it.

    The other experts share the rest: (E - x) / (E - 1) each, and a rank holds E / ep of them. All
    ranks wait for the busiest one.
    """
    experts = np.maximum(f.num_experts, 2.0)
    held = np.maximum(experts / f.ep, 1.0)
    x = np.minimum(f.imbalance, experts)
    rest = (experts - x) / (experts - 1)
    return np.asarray((x + (held - 1) * rest) / held)


def experts_of(f: Features, p: Mapping[str, float], hbm: float) -> Experts:
    """Seconds that routed experts add to the average layer.

    GEMMs: each of the E / ep experts of a rank multiplies the tokens it got, k ep etp / (E tp) of
    a tp group's on average: the fewer, the emptier its tiles. Element-wise: `expert_passes` over
    the k copies of a token (permute, its gradient, weigh and sum, theirs), nine over an expert's
    width (as a dense layer's activation), casts of what low-precision GEMMs read.
    """
    tokens = f.micro_batch_size * f.seq_length / f.cp / f.tp
    again = f.full * 1.0
    load = busiest(f)
    copies = tokens * f.experts_per_token * load  # that a rank's experts get, times 1 / etp of each
    local = np.maximum(f.num_experts / f.ep, 1.0)
    m = copies * f.etp / local
    half, h, width = p["expert_half_size"], f.hidden_size, f.expert_ffn / f.etp
    flops = 2 * local * (m + half) * (h + half) * (f.mlp_inputs * width + half)
    flops = (flops + 2 * local * (m + half) * (width + half) * (h + half)) * (3 + again)
    rate = f.gemm_peak * p["gemm_efficiency"] * p["expert_gemm_efficiency"]
    router = 6 * tokens * h * f.num_experts / (f.peak * p["gemm_efficiency"])
    moved = copies * f.element_bytes * (p["expert_passes"] * h * f.etp + 9 * f.expert_ffn)
    # what its GEMMs read: forward h and the width, backward the gradients of both outputs
    read = 2 * h * f.etp + (f.mlp_inputs + 1) * f.expert_ffn
    moved = moved + copies * f.cast_bytes * read
    share = f.expert_share
    return Experts(
        gemm=share * (flops / rate + router), elementwise=share * moved * (1 + again / 3) / hbm
    )


def exchange_s(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """All-to-alls of the average layer: seconds nothing hides, (n,).

    A token goes to its experts, to each of the etp ranks of one, and comes back, and so do
    gradients: four exchanges a micro-batch, six with full checkpointing. A rank sends k copies of
    each of its tokens, of which (ep - here) / ep leave the node; a stack that sends a token once to
    each node it is wanted on
    (`Stack.tokens_once_a_node`; DeepEP, arXiv 2412.19437, section 3.2) sends as many copies as
    the k experts lie on other nodes, N (1 - (1 - 1 / N)^k) (N - 1) / N for even routing over N
    nodes. Links of the node and NICs work at once: the slower of the two counts. Each exchange
    also takes a meeting of all, whatever its size.
    A layer with experts waits `host_waits_s` for the host to know how many tokens each of them got.
    """
    ep, k = f.ep, f.experts_per_token
    here = np.clip(f.gpus_per_node / f.etp, 1.0, ep)
    nodes = ep / here
    token = f.hidden_size * f.element_bytes
    tokens = f.micro_batch_size * f.seq_length / f.cp / f.tp * f.etp * busiest(f)
    inside = tokens * k * token * (ep - 1) / ep
    apart = k * (ep - here) / ep
    if group.stack.tokens_once_a_node:
        reached = nodes * (1 - (1 - 1 / nodes) ** k)
        apart = np.minimum(apart, reached * (nodes - 1) / nodes)
    else:
        inside = tokens * k * token * (here - 1) / ep
    nics = node_link(group) / group.cluster.gpus_per_node * p["network_efficiency"]
    across = tokens * apart * token / nics
    moving = np.maximum(inside / (link(group) * p["link_efficiency"]), across)
    meeting = np.log2(np.maximum(ep, 2.0)) / 2  # as for tp, stated for 4 ranks
    count = 4 + 2 * f.full
    seconds = p["ep_exposed"] * count * (moving + p["tp_latency_s"] * meeting)
    waiting = p["host_waits_s"] * (1 + f.full / 3)
    return np.asarray(f.expert_share * (np.where(ep > 1, seconds, 0.0) + waiting))


def kept_bytes(group: Group, f: Features, p: Mapping[str, float], tokens: Floats) -> Floats:
    """Bytes that routed experts of the average layer keep for backward a micro-batch, (n,).

    Of each of a token's k copies: `kept_routed` bytes per h (what went into the experts and what
    came out), and `kept_mlp` per expert width, as a dense feed-forward.
    """
    copies = tokens * f.experts_per_token / f.tp * busiest(f)
    narrower = 2.0 - f.saved_bytes  # what a GEMM of low precision read is kept as it was
    gate = 0.75 if group.stack.lean_kernels else 1.0
    each = (p["kept_routed"] - narrower) * f.hidden_size * f.etp
    each = each + (p["kept_mlp"] * gate - narrower) * f.expert_ffn
    return np.asarray(f.expert_share * copies * each)
