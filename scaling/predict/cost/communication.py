"""Seconds of collectives and messages: alpha-beta with the links each group of ranks really has.

Ranks are placed tp innermost, then cp, dp, and pp outermost (layout.py). So a tp group of at most
gpus_per_node ranks never leaves its node. A dp group has gpus_per_node / (tp * cp) ranks on a node,
and tp * cp such groups share the node's NICs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.predict.cost.links import (
    RING_LINK_HOP_S,
    RING_NODE_HOP_S,
    TP_LATENCY_S,
    link,
    node_link,
    ring_bus,
    ring_of,
    ring_s,
    tp_bus,
)
from scaling.predict.cost.risk import crosses_nodes
from scaling.predict.cost.sharding import (
    Sharding,
    expert_sharding_of,
    gradient_bytes,
    sharding_of,
)
from scaling.predict.cost.stages import (
    Stages,
    busiest_load,
    experts_of_heaviest_stage,
    has_experts,
    weights_of_heaviest_stage,
)
from scaling.predict.read.features import Features, Group

# Judgement: no published table tells these apart.
_TP_NETWORK_LATENCY_S = 50e-6  # per rank and round of a tp collective over EFA
_MESSAGE_EFFICIENCY = 0.6  # share of a link, or of a GPU's share of the NICs, between stages
_MESSAGE_LATENCY_S = 100e-6
_HOST_WAITS_S = 0.5e-3  # of a layer with experts, for the number of tokens of each.


@dataclass(frozen=True, slots=True)
class Traffic:
    """Communication of one step: seconds, and the parameters that it is about, (n,)."""

    per_layer: Floats  # tp and cp collectives on the GPU, per layer and micro-batch
    all_to_all: Floats  # exchange of tokens among experts, per layer and micro-batch
    host_per_layer: Floats  # of the host to launch the collectives, per layer and micro-batch
    message: Floats  # from one stage to the next and back, per micro-batch
    gradients: Floats  # data-parallel traffic once a step, hidden or not
    gathering: Floats  # weights and gradients of ZeRO-2 and 3, per micro-batch
    updated: Floats  # parameters that a rank of the heaviest stage updates


def traffic_of(
    group: Group,
    f: Features,
    p: Mapping[str, float],
    stages: Stages,
    attention: Floats | float = 0.0,
    gemm: Floats | float = np.inf,
) -> Traffic:
    """All communication of the layouts `f`.

    Ring attention hides behind `attention`, tp collectives behind `gemm`: seconds of a layer's
    attention kernels and of its GEMMs.
    """
    per_layer, host = _tensor_parallel(group, f, p, gemm)
    if (f.cp > 1).any():
        ring = _ring_attention_s(group, f, p, attention)
        per_layer = per_layer + np.where(f.ring, ring, _ulysses_s(group, f, p))
    kinds = [(weights_of_heaviest_stage(f, stages), sharding_of(group, f))]
    if has_experts(f):
        kinds.append((experts_of_heaviest_stage(f, stages), expert_sharding_of(group, f)))
    moved = [_data_parallel(group, f, p, *kind) for kind in kinds]
    return Traffic(
        per_layer=per_layer,
        all_to_all=_all_to_all_s(group, f, p) if has_experts(f) else np.zeros(len(f)),
        host_per_layer=host,
        message=_message(group, f),
        gradients=np.asarray(sum(once_a_step for once_a_step, _ in moved)),
        gathering=np.asarray(sum(per_micro_batch for _, per_micro_batch in moved)),
        updated=np.asarray(sum(weights / sharding.updates for weights, sharding in kinds)),
    )


def _tensor_parallel(
    group: Group, f: Features, p: Mapping[str, float], gemm: Floats | float
) -> tuple[Floats, Floats]:
    """Tp collectives of a layer: seconds on the GPU that nothing hides, and of the host.

    Ring all-reduces of (tokens, h), each moving 2 (tp - 1) / tp of it. They come after attention
    and after the mlp, forward and backward, and once more where forward is recomputed. Under
    sequence_parallel all-gather and reduce-scatter move the same bytes.
    `gemm` seconds of GEMMs hide a share of what lasts no longer. Pipelines over nodes of a lossy
    transport slow the host's launches down.
    """
    tp = f.tp
    count = (2 + f.full) * (f.attentions + 1)
    volume = 2 * (tp - 1) / tp * f.tokens * f.hidden_size * f.element_bytes
    # every rank waits for the last one to arrive; latencies are stated for 4 ranks
    meeting = np.log2(np.maximum(tp, 2.0)) / 2
    bandwidth, nodes = ring_of(group, f, p, tp, 1.0, tp_bus)
    # twice around the ring of a group over nodes, in one collective or in two
    if group.cluster.lossy_transport:
        around = _TP_NETWORK_LATENCY_S * tp
    else:
        around = nodes * RING_NODE_HOP_S + (tp - nodes) * RING_LINK_HOP_S
    latency = TP_LATENCY_S * meeting + np.where(nodes > 1, 2 * around, 0.0)
    seconds = count * (volume / bandwidth + latency)
    seconds = seconds - (1 - p["tp_exposed"]) * np.minimum(seconds, gemm)
    host = count * p["host_collective_s"] * meeting
    if group.cluster.lossy_transport:
        host = host + crosses_nodes(f) * p["host_transport_s"] * tp * count
    return np.where(tp > 1, seconds, 0.0), np.where(tp > 1, host, 0.0)


def _exchange_s(
    group: Group,
    f: Features,
    p: Mapping[str, float],
    size: Floats,
    stride: Floats,
    sent: Floats,
    copies: Floats | None = None,
) -> Floats:
    """Seconds in which each of `size` ranks, `stride` apart, deals `sent` bytes to all of them.

    Traffic to ranks of its node takes the links, the rest the NICs, which all GPUs of the node use
    at once. They work at the same time, so the slower one counts.
    `copies` of each token go to as many ranks; if given, only one goes to each node that wants some
    (DeepEP, arXiv 2412.19437, section 3.2). Even routing over N nodes reaches N (1 - (1 - 1 / N)^k)
    of them.
    """
    on_node = np.clip(f.gpus_per_node / stride, 1.0, size)
    leaving, nodes = (size - on_node) / size, size / on_node
    if copies is not None:
        reached = nodes * (1 - (1 - 1 / nodes) ** copies)
        leaving = np.minimum(leaving, reached * (nodes - 1) / nodes / np.maximum(copies, 1.0))
    spanned = np.maximum(size * stride / f.gpus_per_node, 1.0)
    inside = (on_node - 1) / size / (link(group.gpu, on_node) * p["link_efficiency"])
    across = leaving * f.gpus_per_node / ring_bus(group, spanned, p["network_efficiency"])
    return np.asarray(sent * np.maximum(inside, across))


def _ulysses_s(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """Seconds on the GPU of a layer's all-to-alls under cp_style all_to_all, (n,).

    Each attention trades tokens for heads: query, key and value before it, its result after it
    (DeepSpeed Ulysses, arXiv 2309.14509, section 3.2), again in backward, and once more under full
    checkpointing. A rank holds 1 / cp of the tokens, (2 query + 2 kv widths) / tp elements of each,
    keeps 1 / cp of that and sends the rest. cp ranks lie tp apart. Attention waits for it, so
    nothing hides it. Latency and launches are left out.
    """
    held = f.tokens * 2 * (f.query_width + f.kv_width) / f.tp * f.element_bytes
    seconds = (2 + f.full) * f.attentions * _exchange_s(group, f, p, f.cp, f.tp, held)
    return np.where(f.cp > 1, seconds, 0.0)


def _ring_attention_s(
    group: Group, f: Features, p: Mapping[str, float], attention: Floats | float
) -> Floats:
    """Seconds on the GPU of a layer's key-value ring under cp_style ring that nothing hides, (n,).

    Forward the keys and values of every rank go around the ring of cp ranks once. Backward they and
    their gradients do (arXiv 2310.01889, section 3; Transformer Engine's p2p), and once more where
    checkpointing computes attention again. Each of the cp - 1 passes travels while the block before
    it is computed; only what takes longer than `attention`, the layer's kernels, is waited for. The
    ring's slowest link counts: a GPU's share of the NICs as soon as the ring leaves the node.
    """
    tp, cp = f.tp, f.cp
    block = f.tokens * 2 * f.kv_width / tp * f.element_bytes
    across = node_link(group) / f.gpus_per_node * p["network_efficiency"]
    inside = link(group.gpu, 2) * p["link_efficiency"]  # to the next rank alone
    bandwidth = np.where(tp * cp > f.gpus_per_node, across, inside)
    rounds = (3 + (f.full | f.selective)) * f.attentions  # twice the bytes backward
    moving = rounds * (cp - 1) * block / bandwidth
    return np.where(cp > 1, np.maximum(moving - attention * (cp - 1) / cp, 0.0), 0.0)


def _all_to_all_s(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """Seconds of the average layer's all-to-alls that nothing hides, per micro-batch, (n,).

    k copies of each token go to their experts (to each of the etp ranks of one) and come back, and
    so do gradients: four exchanges a micro-batch, six with full checkpointing. The tokens of a tp
    group are divided among its ranks before. Each exchange also takes a latency that grows with
    log2(ep), and the host waits for the number of tokens of each expert.
    """
    ep, k = f.ep, f.experts_per_token
    sent = f.tokens / f.tp * f.etp * busiest_load(f) * k * f.hidden_size * f.element_bytes
    once = k if group.stack.tokens_once_a_node else None
    latency = TP_LATENCY_S * np.log2(np.maximum(ep, 2.0)) / 2  # stated for 4 ranks, as for tp
    seconds = (4 + 2 * f.full) * (_exchange_s(group, f, p, ep, f.etp, sent, once) + latency)
    seconds = seconds + _HOST_WAITS_S * (1 + f.full / 3)
    return np.asarray(f.expert_share * np.where(ep > 1, seconds, 0.0))


def _message(group: Group, f: Features) -> Floats:
    """Seconds of activations forward and their gradient back between stages, (n,); 0 without pp."""
    moved = f.tokens * f.hidden_size * f.element_bytes / np.where(f.sequence_parallel, f.tp, 1.0)
    nic = node_link(group) / f.gpus_per_node
    bandwidth = _MESSAGE_EFFICIENCY * np.where(crosses_nodes(f), nic, link(group.gpu, 2))
    return np.where(f.pp > 1, 2 * (moved / bandwidth + _MESSAGE_LATENCY_S), 0.0)


def _data_parallel(
    group: Group, f: Features, p: Mapping[str, float], weights: Floats, sharding: Sharding
) -> tuple[Floats, Floats]:
    """Seconds of gradient and weight traffic, once a step and per micro-batch, (n,) each.

    One copy of the state of `weights` parameters is sharded over `sharding.state` ranks (1 at
    zero_stage 0); the gradients of the copies are all-reduced once a step, and weights gathered
    where more ranks update them. Among the ranks of a copy:
    zero_stage 1 reduce-scatters gradients (some software all-reduces them, at this stage and the
    next) and all-gathers weights, once a step;
    zero_stage 2 keeps no whole gradient, so it reduce-scatters behind each micro-batch's backward;
    zero_stage 3 does that too, and gathers weights for forward and for backward of each
    micro-batch, layer by layer. With a second copy (hpZ) only the scattering and a step's first
    gather leave the small group. A pipeline that reduces late scatters once a step, and its
    backward keeps what it gathered for the forward that follows. In whatever order m of each come,
    that is m + 1 gathers a step (counted in rehearsals; more where a rank has over three chunks).
    """
    state, stride, third = sharding.state, sharding.stride, f.zero_stage >= 3
    gradients, gathered = weights * gradient_bytes(group, f), weights * f.element_bytes
    reduced = gradients * (2 if group.stack.all_reduces_gradients else 1)
    late = group.stack.reduces_late & (f.pp > 1)
    scatters_each = (f.zero_stage == 2) & ~late
    gathers = np.where(late, 1 + 1 / f.accumulation, 2.0)
    far = np.where(sharding.second, 1 / f.accumulation, gathers)
    near, scatters = gathers - far, np.where(late, 0.0, 1.0)
    layers = np.where(third, f.num_layers / f.pp, 1.0)

    def passed(
        times: Floats | Flags | float,
        message: Floats,
        size: Floats,
        apart: Floats,
        parts: Floats | float = 1.0,
    ) -> Floats:
        """Seconds of so many passes of a message around rings of so many ranks."""
        times = times * (weights > 0)  # who has no experts sends no empty messages about them
        if not np.any(times * (size > 1)):
            return np.zeros(len(f))
        return times * ring_s(group, f, p, message, size, apart, parts)

    at_end = np.where(third, gathered, ~scatters_each * reduced + gathered)
    once_a_step = (
        # an all-reduce is a reduce-scatter and an all-gather
        passed(2.0, gradients / state, sharding.replicas / state, stride * state)
        + passed(sharding.updates > state, gathered, sharding.updates, stride)
        + passed(~third | late, at_end, state, stride, layers)
    )
    per_micro_batch = (
        passed(scatters_each, reduced, state, stride)
        + passed(third * (far + scatters), gathered, state, stride, layers)
        + passed(third * near, gathered, sharding.inside, stride, layers)
    )
    return once_a_step, per_micro_batch
