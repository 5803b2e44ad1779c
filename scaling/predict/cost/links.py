"""Bandwidths of a group's links, before any efficiency."""

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.read.features import Group


def node_bus(group: Group, nodes: Floats) -> Floats:
    """Bus bandwidth of a whole node's NICs in a ring over `nodes`, bytes/s, before efficiency."""
    cluster = group.cluster
    assert cluster.node_link_bytes_per_s is not None
    if cluster.bus_bytes_per_s is None:
        return np.full(len(nodes), cluster.node_link_bytes_per_s)
    at = np.log2(list(cluster.bus_bytes_per_s))
    rate = np.log(list(cluster.bus_bytes_per_s.values()))
    return np.exp(np.interp(np.log2(np.maximum(nodes, 1.0)), at, rate))


def link(group: Group) -> float:
    """Bytes/s a GPU sends to its peers in the node, one direction."""
    bandwidth = group.gpu.link_bytes_per_s
    assert bandwidth is not None
    return bandwidth


def node_link(group: Group) -> float:
    """Bytes/s that leave a node over all its NICs, one direction, as stack or cluster state it."""
    bandwidth = group.cluster.node_link_bytes_per_s
    if group.stack.node_link_gbit_per_s is not None:
        bandwidth = group.stack.node_link_gbit_per_s * 1e9 / 8
    assert bandwidth is not None
    return bandwidth
