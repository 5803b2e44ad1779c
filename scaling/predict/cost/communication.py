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
    Ranks,
    link,
    node_link,
    ring_bus,
    ring_pass,
    tp_bus,
)
from scaling.predict.cost.sharding import (
    Sharding,
    expert_replicas,
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
    stage_weights: Floats  # parameters that a rank's stage holds, without routed experts
    expert_weights: Floats  # of its routed experts


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
    crossing = (f.pp > 1) & (f.world_size > f.gpus_per_node)
    per_layer, host = _tensor_parallel(group, f, p, crossing, gemm)
    if (f.cp > 1).any():
        ring = _ring_attention_s(group, f, p, attention)
        per_layer = per_layer + np.where(f.ring, ring, _ulysses_s(group, f, p))
    weights = weights_of_heaviest_stage(f, stages)
    gradients, gathering = _data_parallel(
        # gradients are summed over the cp ranks too
        group, f, p, weights, sharding_of(group, f), replicas=f.dp * f.cp, stride=f.tp
    )  # fmt: skip
    all_to_all: Floats = np.zeros(len(f))
    expert_weights: Floats = np.zeros(len(f))
    if has_experts(f):
        all_to_all = _all_to_all_s(group, f, p)
        expert_weights = experts_of_heaviest_stage(f, stages)
        more_gradients, more_gathering = _data_parallel(
            group, f, p, expert_weights, expert_sharding_of(group, f),
            replicas=expert_replicas(f), stride=f.ep * f.etp,
        )  # fmt: skip
        # a model without experts has no messages about them, not empty ones
        gradients = gradients + np.where(f.expert_share > 0, more_gradients, 0.0)
        gathering = gathering + np.where(f.expert_share > 0, more_gathering, 0.0)
    return Traffic(
        per_layer=per_layer,
        all_to_all=all_to_all,
        host_per_layer=host,
        message=_message(group, f, crossing),
        gradients=gradients,
        gathering=gathering,
        stage_weights=weights,
        expert_weights=expert_weights,
    )


def _tensor_parallel(
    group: Group, f: Features, p: Mapping[str, float], crossing: Flags, gemm: Floats | float
) -> tuple[Floats, Floats]:
    """Tp collectives of a layer: seconds on the GPU that nothing hides, and of the host.

    Ring all-reduces of (tokens, h), each moving 2 (tp - 1) / tp of it. They come after attention
    and after the mlp, forward and backward, and once more where forward is recomputed. Under
    sequence_parallel all-gather and reduce-scatter move the same bytes.
    `gemm` seconds of GEMMs hide a share of what lasts no longer. `crossing` marks pipelines over
    nodes: over a lossy transport they slow the host's launches down.
    """
    tp = f.tp
    count = (2 + f.full) * (f.attentions + 1)
    volume = 2 * (tp - 1) / tp * f.tokens * f.hidden_size * f.element_bytes
    # every rank waits for the last one to arrive; latencies are stated for 4 ranks
    meeting = np.log2(np.maximum(tp, 2.0)) / 2
    # twice around the ring of a group over nodes, in one collective or in two
    if group.cluster.lossy_transport:
        around = _TP_NETWORK_LATENCY_S * tp
    else:
        nodes = np.maximum(tp / f.gpus_per_node, 1.0)
        around = nodes * RING_NODE_HOP_S + (tp - nodes) * RING_LINK_HOP_S
    over_nodes = np.where(tp > f.gpus_per_node, 2 * around, 0.0)
    latency = TP_LATENCY_S * meeting + over_nodes
    seconds = count * (volume / _tp_bandwidth(group, f, p) + latency)
    seconds = seconds - (1 - p["tp_exposed"]) * np.minimum(seconds, gemm)
    host = count * p["host_collective_s"] * meeting
    if group.cluster.lossy_transport:
        host = host + np.where(crossing, p["host_transport_s"] * tp * count, 0.0)
    return np.where(tp > 1, seconds, 0.0), np.where(tp > 1, host, 0.0)


def _tp_bandwidth(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """Bytes/s of a tp group, (n,): the links in a node; of a larger one its NICs, if slower."""
    links = link(group.gpu, np.minimum(f.tp, f.gpus_per_node))
    inside = links * p["link_efficiency"]
    if not (f.tp > f.gpus_per_node).any():
        return inside
    over = tp_bus(group, f.tp / f.gpus_per_node, p["network_efficiency"])
    return np.where(f.tp > f.gpus_per_node, np.minimum(over, inside), inside)


def _ulysses_s(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """Seconds on the GPU of a layer's all-to-alls under cp_style all_to_all, (n,).

    Each attention trades tokens for heads: query, key and value before it, its result after it
    (DeepSpeed Ulysses, arXiv 2309.14509, section 3.2), again in backward, and once more under full
    checkpointing. A rank holds 1 / cp of the tokens, (2 query + 2 kv widths) / tp elements of each,
    keeps 1 / cp of that and sends the rest. cp ranks lie tp apart, so min(cp, gpus_per_node / tp)
    ranks of a group are on a node. Traffic to them takes the links, the rest the NICs, which all
    GPUs of the node use at once; the slower of the two counts. Attention waits for it, so nothing
    hides it. Latency and launches are left out.
    """
    tp, cp = f.tp, f.cp
    ranks_on_node = np.clip(f.gpus_per_node / tp, 1.0, cp)
    nodes = cp / ranks_on_node
    held = f.tokens * 2 * (f.query_width + f.kv_width) / tp * f.element_bytes
    links = link(group.gpu, ranks_on_node) * p["link_efficiency"]
    inside = held * (ranks_on_node - 1) / cp / links
    spanned = np.maximum(nodes * tp * ranks_on_node / f.gpus_per_node, 1.0)
    nics = ring_bus(group, spanned, p["network_efficiency"])
    leaving = f.gpus_per_node * held * (cp - ranks_on_node) / cp
    across = leaving / nics
    seconds = (2 + f.full) * f.attentions * np.maximum(inside, across)
    return np.where(cp > 1, seconds, 0.0)


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


def _message(group: Group, f: Features, crossing: Flags) -> Floats:
    """Seconds of activations forward and their gradient back between stages, (n,); 0 without pp."""
    moved = f.tokens * f.hidden_size * f.element_bytes / np.where(f.sequence_parallel, f.tp, 1.0)
    nic = node_link(group) / f.gpus_per_node
    bandwidth = _MESSAGE_EFFICIENCY * np.where(crossing, nic, link(group.gpu, 2))
    return np.where(f.pp > 1, 2 * (moved / bandwidth + _MESSAGE_LATENCY_S), 0.0)


def _data_parallel(
    group: Group,
    f: Features,
    p: Mapping[str, float],
    weights: Floats,
    sharding: Sharding,
    *,
    replicas: Floats,
    stride: Floats,
) -> tuple[Floats, Floats]:
    """Seconds of gradient and weight traffic, once a step and per micro-batch, (n,) each.

    For `weights` parameters that `replicas` ranks, `stride` apart, hold. One copy of their state is
    sharded over `sharding.state` ranks (1 at zero_stage 0); the gradients of the copies are
    all-reduced once a step, and weights gathered where more ranks update them. Among the ranks of a
    copy:
    zero_stage 1 reduce-scatters gradients (some software all-reduces them, at this stage and the
    next) and all-gathers weights, once a step;
    zero_stage 2 keeps no whole gradient, so it reduce-scatters behind each micro-batch's backward;
    zero_stage 3 does that too, and gathers weights for forward and for backward of each
    micro-batch, layer by layer. With a second copy (hpZ) only the scattering and a step's first
    gather leave the small group. A pipeline that reduces late scatters once a step, and its
    backward keeps what it gathered for the forward that follows. In whatever order m of each come,
    that is m + 1 gathers a step (counted in rehearsals; more where a rank has over three chunks).
    """
    copies = replicas / sharding.state
    once_a_step: Floats = np.zeros(len(f))
    per_micro_batch: Floats = np.zeros(len(f))
    gradients, gathered = weights * gradient_bytes(group, f), weights * f.element_bytes
    if (copies > 1).any():
        among_copies = _ranks(group, f, p, copies, stride * sharding.state)
        # an all-reduce is a reduce-scatter and an all-gather
        once_a_step = 2 * ring_pass(gradients / sharding.state, among_copies)
    if (sharding.updates > sharding.state).any():
        updating = _ranks(group, f, p, sharding.updates, stride)
        updated = ring_pass(gathered, updating)
        updated = np.where(sharding.updates > sharding.state, updated, 0.0)
        once_a_step = once_a_step + updated
    if (sharding.state > 1).any():
        in_copy = _ranks(group, f, p, sharding.state, stride)
        reduced = gradients * (2 if group.stack.all_reduces_gradients else 1)
        late = group.stack.reduces_late & (f.pp > 1)
        scatters_each = (f.zero_stage == 2) & ~late
        at_end = np.where(scatters_each, 0.0, reduced) + gathered
        zero_1_or_2 = ring_pass(at_end, in_copy)
        zero_2 = ring_pass(reduced, in_copy)
        small_group = _ranks(group, f, p, sharding.inside, stride)
        gathers = np.where(late, 1 + 1 / f.accumulation, 2.0)
        wide_gathers = np.where(sharding.second, 1 / f.accumulation, gathers)
        layers = f.num_layers / f.pp
        zero_3 = wide_gathers * ring_pass(gathered, in_copy, layers)
        zero_3 = zero_3 + (gathers - wide_gathers) * ring_pass(gathered, small_group, layers)
        scatter = ring_pass(gathered, in_copy, layers)
        zero_3_late = np.where(late, scatter, 0.0)
        once_a_step = once_a_step + np.where(f.zero_stage < 3, zero_1_or_2, zero_3_late)
        per_micro_batch = np.where(f.zero_stage >= 3, zero_3 + scatter - zero_3_late, 0.0)
        per_micro_batch = np.where(scatters_each, zero_2, per_micro_batch)
    return once_a_step, per_micro_batch


def _ranks(
    group: Group,
    f: Features,
    p: Mapping[str, float],
    size: Floats,
    stride: Floats,
) -> Ranks:
    """Groups of `size` ranks that lie `stride` apart, so that `stride` groups share a node.

    A measured bus falls with the length of the ring. Eight rings of 16 ranks are as fast as one
    through two nodes of eight: published steps without pipelines show it from 64 GPUs on.
    """
    groups_on_node = np.minimum(stride, f.gpus_per_node)
    ranks_on_node = np.maximum(1.0, np.minimum(size, f.gpus_per_node / groups_on_node))
    nodes = np.maximum(1.0, size / ranks_on_node)
    network = ring_bus(group, size / f.gpus_per_node, p["network_efficiency"]) / groups_on_node
    links = link(group.gpu, ranks_on_node) * p["link_efficiency"]
    return Ranks(size, nodes, links, network)
