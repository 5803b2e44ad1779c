"""Seconds of collectives and messages: alpha-beta with the links each group of ranks really has."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaling.hardware import gpu_named
from scaling.predict.columns import Flags, Floats
from scaling.predict.features import Features, Group
from scaling.predict.stages import Stages, weights_of_heaviest_stage

# What a hop of a ring costs whatever it carries: NCCL's own model of its simple protocol
# (nccl/src/graph/tuning.cc: 14 us over the network, 3.4 us over NVLink).
_NODE_HOP_S = 14e-6
_LINK_HOP_S = 3.4e-6
# Gradients are reduced in buckets; DeepSpeed's reduce_bucket_size is 5e8 elements, FSDP's a layer.
_BUCKET_BYTES = 1e9


@dataclass(frozen=True, slots=True)
class Traffic:
    """Communication of one step, (n,)."""

    per_layer: Floats  # s on the GPU, tp and cp collectives of one layer and micro-batch
    host_per_layer: Floats  # s the host needs to launch them
    head: Floats  # s to gather logits, one micro-batch
    message: Floats  # s from one stage to the next and back, one micro-batch
    gradients: Floats  # s of dp traffic a step, hidden or not
    gathering: Floats  # s of ZeRO-3's parameter and gradient traffic a micro-batch
    stage_weights: Floats  # parameters a rank's stage holds


def node_bus(group: Group, nodes: Floats) -> Floats:
    """Bus bandwidth of a whole node's NICs in a ring over `nodes`, bytes/s, before efficiency."""
    fabric = group.fabric
    assert fabric.node_link_bytes_per_s is not None
    if fabric.bus_bytes_per_s is None:
        return np.full(len(nodes), fabric.node_link_bytes_per_s)
    at = np.log2(list(fabric.bus_bytes_per_s))
    rate = np.log(list(fabric.bus_bytes_per_s.values()))
    return np.exp(np.interp(np.log2(np.maximum(nodes, 1.0)), at, rate))


def traffic_of(group: Group, f: Features, p: Mapping[str, float], stages: Stages) -> Traffic:
    """All communication of the layouts `f`.

    Ranks are placed tp innermost, then cp, dp, and pp outermost (layout.py): a tp group of at most
    gpus_per_node ranks never leaves its node; a dp group has gpus_per_node / (tp * cp) ranks on a
    node, and tp * cp such groups share the node's NICs.
    """
    layer, host = _in_layer(group, f, p)
    crossing = (f.pp > 1) & (f.world_size > f.gpus_per_node)
    if group.fabric.lossy_transport:
        host = host + np.where(crossing & (f.tp > 1), p["host_transport_s"] * f.tp * _count(f), 0.0)
    tokens = f.micro_batch_size * f.seq_length / f.cp
    bandwidth = _tp_bandwidth(group, f, p)
    gathered = (f.tp - 1) / f.tp * tokens * f.vocab_size * f.element_bytes / bandwidth
    weights = weights_of_heaviest_stage(f, stages)
    gradients, gathering = _data_parallel(group, f, p, weights)
    return Traffic(
        per_layer=layer,
        host_per_layer=host,
        head=gathered if group.stack.gathered_logits else np.zeros(len(f)),
        message=_message(group, f, p, tokens, crossing),
        gradients=gradients,
        gathering=gathering,
        stage_weights=weights,
    )


def _link(group: Group) -> float:
    link = gpu_named(group.fabric.gpu).link_bytes_per_s
    assert link is not None
    return link


def _node_link(group: Group) -> float:
    link = group.fabric.node_link_bytes_per_s
    if group.stack.node_link_gbit_per_s is not None:
        link = group.stack.node_link_gbit_per_s * 1e9 / 8
    assert link is not None
    return link


def _count(f: Features) -> Floats:
    """How many tp collectives a layer has: after attention and mlp, each way, and recomputed."""
    return (4 + 2 * f.full) * (f.attentions + 1) / 2


def _tp_bandwidth(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    inside = _link(group) * p["link_efficiency"]
    if not (f.tp * f.cp > f.gpus_per_node).any():
        return np.full(len(f), inside)
    over = node_bus(group, f.tp * f.cp / f.gpus_per_node) * p["tp_network_efficiency"]
    return np.where(f.tp * f.cp > f.gpus_per_node, over, inside)


def _in_layer(group: Group, f: Features, p: Mapping[str, float]) -> tuple[Floats, Floats]:
    """Collectives inside a layer: seconds on the GPU, and seconds the host needs to launch them.

    tp: ring all-reduces of (tokens, h), 2 (tp - 1) / tp of it each way; under sequence_parallel the
    same bytes as all-gather and reduce-scatter, and one more all-gather in backward
    (arXiv 2205.05198). cp: keys and values once around the ring, forward, and twice backward.
    """
    tp, cp = f.tp, f.cp
    tokens = f.micro_batch_size * f.seq_length / cp
    bandwidth = _tp_bandwidth(group, f, p)
    count = _count(f)
    volume = 2 * (tp - 1) / tp * tokens * f.hidden_size * f.element_bytes
    volume = volume * np.where(f.sequence_parallel, 1.25, 1.0)
    # every rank waits for the last to arrive; stated for 4 ranks
    meeting = np.log2(np.maximum(tp, 2.0)) / 2
    leaving = tp > f.gpus_per_node
    latency = p["tp_latency_s"] * meeting + np.where(leaving, p["tp_network_latency_s"] * tp, 0.0)
    latency = latency * np.where(f.sequence_parallel, 2.0, 1.0)
    seconds = p["tp_exposed"] * count * (volume / bandwidth + latency)
    host = count * p["host_collective_s"] * meeting
    context: Floats = np.zeros(len(f))
    if (cp > 1).any():
        ring = (cp - 1) / cp * (2 * f.kv_width / tp) * f.micro_batch_size * f.seq_length
        once = ring * f.element_bytes / bandwidth + (cp - 1) * p["tp_latency_s"]
        context = np.where(cp > 1, (3 + f.full) * once * f.attentions, 0.0)
    return np.where(tp > 1, seconds, 0.0) + context, np.where(tp > 1, host, 0.0)


def _message(
    group: Group, f: Features, p: Mapping[str, float], tokens: Floats, crossing: Flags
) -> Floats:
    """Activations forward and their gradient back between two stages; 0 without a pipeline."""
    scattered = f.sequence_parallel | group.stack.scattered_messages
    moved = tokens * f.hidden_size * f.element_bytes / np.where(scattered, f.tp, 1.0)
    share = np.where(crossing, _node_link(group) / f.gpus_per_node, _link(group))
    seconds = 2 * (moved / (share * p["p2p_efficiency"]) + p["p2p_latency_s"])
    return np.where(f.pp > 1, seconds, 0.0)


def _data_parallel(
    group: Group, f: Features, p: Mapping[str, float], weights: Floats
) -> tuple[Floats, Floats]:
    """Gradient all-reduce (zero_stage 0) or reduce-scatter and all-gather, and ZeRO-3's gathers.

    ZeRO-3 gathers weights for forward and for backward and scatters gradients, every micro-batch.
    """
    over = f.dp * f.cp  # gradients are summed over the cp ranks too
    inner = np.minimum(f.tp, f.gpus_per_node)
    ranks_here = np.maximum(1.0, np.minimum(over, f.gpus_per_node / inner))
    nodes = np.maximum(1.0, over / ranks_here)
    inside = _link(group) * p["link_efficiency"]
    outside = node_bus(group, nodes)
    if group.fabric.bus_bytes_per_s is None:
        outside = np.full(len(f), _node_link(group) * p["network_efficiency"])
    shared = np.minimum(outside / inner, inside)
    bandwidth = np.where(nodes > 1, shared, inside)
    part = (over - 1) / over
    per_weight = np.where(
        f.zero_stage >= 1,
        # stage 2 keeps no whole gradient, so each micro-batch's is reduced (DeepSpeed, FSDP)
        group.stack.gradient_bytes * np.where(f.zero_stage == 2, f.accumulation, 1.0)
        + f.element_bytes,
        2 * group.stack.gradient_bytes,
    )
    crossings = np.where(nodes > 1, nodes, 0.0)
    ring_s = crossings * _NODE_HOP_S + (over - nodes) * _LINK_HOP_S
    moved = part * weights * per_weight
    seconds = moved / bandwidth + np.ceil(moved / _BUCKET_BYTES) * ring_s
    # forward, backward and gradients, each layer on its own
    gathering = part * weights * 3 * f.element_bytes / bandwidth + 3 * f.num_layers * ring_s
    gathering = np.where(over > 1, gathering, 0.0)
    sharded = f.zero_stage >= 3
    return np.where(sharded, 0.0, seconds), np.where(sharded, gathering, 0.0)
