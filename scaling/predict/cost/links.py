"""Bandwidths of a group's links, and what a ring over them takes."""

from collections.abc import Callable, Mapping

import numpy as np

from scaling.arrays import Floats
from scaling.cluster.hardware import Gpu
from scaling.predict.read.features import Features, Group

# Seconds a hop, whatever it carries: NCCL's own model of its simple protocol
# (nccl/src/graph/tuning.cc). Its trees, hierarchies and faster protocols for small messages are
# left out: they moved no published row's step by 0.1 %.
RING_NODE_HOP_S = 14e-6
RING_LINK_HOP_S = 3.4e-6
TP_LATENCY_S = 25e-6  # of a collective of four ranks on the GPU


def ring_of(
    group: Group,
    f: Features,
    p: Mapping[str, float],
    size: Floats,
    stride: Floats | float,
    bus: Callable[[Group, Floats, float], Floats] | None = None,
) -> tuple[Floats, Floats]:
    """Bytes/s of the slowest link of rings of `size` ranks that lie `stride` apart, and its nodes.

    So `stride` rings share a node and its NICs. A measured bus falls with the length of the ring.
    Eight rings of 16 ranks are as fast as one through two nodes of eight: published steps without
    pipelines show it from 64 GPUs on.
    """
    rings_on_node = np.minimum(stride, f.gpus_per_node)
    ranks_on_node = np.clip(f.gpus_per_node / rings_on_node, 1.0, size)
    nodes, links = size / ranks_on_node, link(group.gpu, ranks_on_node) * p["link_efficiency"]
    network = (bus or ring_bus)(group, size / f.gpus_per_node, p["network_efficiency"])
    return np.where(nodes > 1, np.minimum(network / rings_on_node, links), links), nodes


def ring_s(
    group: Group,
    f: Features,
    p: Mapping[str, float],
    message: Floats,
    size: Floats,
    stride: Floats | float,
    parts: Floats | float = 1.0,
) -> Floats:
    """Seconds of a reduce-scatter or all-gather of `message` bytes in `parts` around a ring, (n,).

    Every rank sends (n - 1) / n of the message; each part enters each node once.
    """
    bandwidth, nodes = ring_of(group, f, p, size, stride)
    hops = np.where(nodes > 1, nodes, 0.0) * RING_NODE_HOP_S + (size - nodes) * RING_LINK_HOP_S
    return np.asarray((size - 1) / size * message / bandwidth + parts * hops)


def ring_bus(group: Group, nodes: Floats, efficiency: float) -> Floats:
    """Bytes/s of a node's NICs in a ring through all GPUs of so many nodes, (n,)."""
    return np.minimum(node_link(group) * efficiency, tp_bus(group, nodes, efficiency))


def tp_bus(group: Group, nodes: Floats, efficiency: float) -> Floats:
    """Bytes/s of a node's NICs in all-reduces over so many nodes, (n,).

    The measured bus bandwidth, interpolated as logarithm over logarithm; else the NICs times
    `efficiency`.
    """
    measured = group.cluster.bus_bytes_per_s
    if measured is None or not any(count > 1 for count in measured):
        return np.full(len(nodes), node_link(group) * efficiency)
    at, rate = np.log2(list(measured)), np.log(list(measured.values()))
    return np.asarray(np.exp(np.interp(np.log2(np.maximum(nodes, 1.0)), at, rate)))


def link(gpu: Gpu, ranks: Floats | float) -> Floats:
    """Bytes/s a GPU sends to the others of so many ranks in its node, one direction, (n,).

    In a mesh without a switch each peer has a part of the links to itself. A group of n ranks
    exchanges with all its peers at once. It has n - 1 of `link_peers` parts, and a message to one
    peer has one: two MI300X have 64 of 448 GB/s between them.
    """
    bandwidth = gpu.link_bytes_per_s
    assert bandwidth is not None
    if gpu.link_peers is None:
        return np.full(np.shape(ranks), bandwidth)
    return np.asarray(bandwidth * np.clip(ranks - 1.0, 1.0, gpu.link_peers) / gpu.link_peers)


def node_link(group: Group) -> float:
    """Bytes/s that leave a node over all its NICs, one direction, as stack or cluster state it."""
    bandwidth = group.cluster.node_link_bytes_per_s
    if group.stack.node_link_gbit_per_s is not None:
        bandwidth = group.stack.node_link_gbit_per_s * 1e9 / 8
    assert bandwidth is not None
    return bandwidth
