"""Bandwidths of a group's links, and what a ring over them takes."""

from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.read.features import Group

# NCCL's own model of its simple protocol (nccl/src/graph/tuning.cc), seconds a hop whatever it
# carries. Its trees, hierarchies and faster protocols for small messages are left out: on no
# published row did they move a step by 0.1 %.
RING_NODE_HOP_S = 14e-6
RING_LINK_HOP_S = 3.4e-6
# Of the NICs, of tp and cp ranks over nodes: judgement, which fits of no published table moved.
TP_NETWORK_EFFICIENCY = 0.6
_MEASURED_BYTES = 256e6  # of the all-reduces whose bus bandwidth clusters.yaml states


@dataclass(frozen=True, slots=True)
class Ranks:
    """Groups of ranks that communicate, and the links each has to itself, (n,).

    `size` ranks on `nodes` nodes; `link` is the bus bandwidth inside a node, `network` this group's
    share of what a node sends over all its NICs, bytes/s. `network` only counts from two nodes on.
    `waits_s`: what a pass of any size waits beside its hops (`transport_of`).
    """

    size: Floats
    nodes: Floats
    link: float
    network: Floats
    waits_s: Floats | float = 0.0

    @property
    def bus(self) -> Floats:
        """Bytes/s of the slowest link of a ring through all ranks."""
        return np.where(self.nodes > 1, np.minimum(self.network, self.link), self.link)


def ring_pass(message: Floats, ranks: Ranks) -> Floats:
    """Seconds once around a ring: a reduce-scatter or an all-gather of `message` bytes, (n,).

    Every rank sends (n - 1) / n of the message; a pass enters each node once.
    """
    moving = (ranks.size - 1) / ranks.size * message / ranks.bus
    return moving + ring_latency_s(ranks) + ranks.waits_s


def ring_latency_s(ranks: Ranks) -> Floats:
    """Seconds one pass of a ring costs however little it carries, (n,)."""
    crossings = np.where(ranks.nodes > 1, ranks.nodes, 0.0)
    return crossings * RING_NODE_HOP_S + (ranks.size - ranks.nodes) * RING_LINK_HOP_S


def node_bus(group: Group, nodes: Floats) -> Floats:
    """Bus bandwidth of a whole node's NICs in a ring over `nodes`, bytes/s, before efficiency."""
    cluster = group.cluster
    assert cluster.node_link_bytes_per_s is not None
    if cluster.bus_bytes_per_s is None:
        return np.full(len(nodes), cluster.node_link_bytes_per_s)
    at = np.log2(list(cluster.bus_bytes_per_s))
    rate = np.log(list(cluster.bus_bytes_per_s.values()))
    return np.exp(np.interp(np.log2(np.maximum(nodes, 1.0)), at, rate))


def transport_of(group: Group, nodes: Floats, efficiency: float) -> tuple[Floats, Floats, Floats]:
    """Bytes/s of a node's NICs in a pass of a ring and in an all-reduce, and seconds a pass waits.

    Without a measured bus all-reduces have what rings have: the NICs by `efficiency`. A measured
    one falls with the nodes because its messages of 256 MB wait the longer the more ranks they
    meet: what its best bandwidth over nodes does not explain of their time comes once for each
    message, whatever its size, half of it in each pass. That bandwidth is of all-reduces, in which
    switches help; reduce-scatter and all-gather know only rings.
    """
    ring = np.full(len(nodes), node_link(group) * efficiency)
    table = group.cluster.bus_bytes_per_s
    if table is None or not any(count > 1 for count in table):
        return ring, ring, np.zeros(len(nodes))
    best = max(rate for count, rate in table.items() if count > 1)
    slower = np.maximum(1 / node_bus(group, nodes) - 1 / best, 0.0)
    waits = np.where(nodes > 1, _MEASURED_BYTES * slower, 0.0)
    return ring, np.full(len(nodes), best), waits


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
