"""Alpha-beta costs of collectives by algorithm, and the one NCCL would take for a message."""

from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Floats

# NCCL's own model of its simple protocol (nccl/src/graph/tuning.cc), seconds a hop whatever it
# carries. Its faster protocols for small messages and its table of corrections by size are left
# out: gradients travel in buckets of a gigabyte, where both are close to one.
RING_NODE_HOP_S = 14e-6
RING_LINK_HOP_S = 3.4e-6
TREE_NODE_HOP_S = 14e-6
TREE_LINK_HOP_S = 4.0e-6
# ... and the share of a ring's bandwidth its double binary tree reaches.
TREE_EFFICIENCY = 0.92


@dataclass(frozen=True, slots=True)
class Ranks:
    """Groups of ranks that communicate, and the links each has to itself, (n,).

    `size` ranks on `nodes` nodes; `link` is the bus bandwidth inside a node, `network` this group's
    share of what a node sends over all its NICs, bytes/s. `network` only counts from two nodes on.
    `waits_s`: what a pass of any size waits beside its hops (links.py).
    """

    size: Floats
    nodes: Floats
    link: float
    network: Floats
    waits_s: Floats | float = 0.0

    @property
    def here(self) -> Floats:
        """Ranks of the group on one node."""
        return self.size / self.nodes

    @property
    def bus(self) -> Floats:
        """Bytes/s of the slowest link of a ring through all ranks."""
        return np.where(self.nodes > 1, np.minimum(self.network, self.link), self.link)


def ring_pass(message: Floats, ranks: Ranks) -> Floats:
    """Seconds once around a ring: a reduce-scatter or an all-gather of `message` bytes, (n,).

    Every rank sends (n - 1) / n of the message; a pass enters each node once. NCCL has nothing else
    for these two where a node has several ranks.
    """
    moving = (ranks.size - 1) / ranks.size * message / ranks.bus
    return moving + ring_latency_s(ranks) + ranks.waits_s


def ring_latency_s(ranks: Ranks) -> Floats:
    """Seconds one pass of a ring costs however little it carries, (n,)."""
    crossings = np.where(ranks.nodes > 1, ranks.nodes, 0.0)
    return crossings * RING_NODE_HOP_S + (ranks.size - ranks.nodes) * RING_LINK_HOP_S


def ring_all_reduce(message: Floats, ranks: Ranks) -> Floats:
    """Seconds of a reduce-scatter and an all-gather around one ring, (n,)."""
    return 2 * ring_pass(message, ranks)


def tree_all_reduce(message: Floats, ranks: Ranks) -> Floats:
    """Seconds up and down NCCL's double binary tree, (n,).

    A chain inside each node and two complementary binary trees over nodes, half of the message on
    each (Sanders, Speck, Traeff 2009): every byte crosses a rank's link twice, and only log2(nodes)
    hops follow each other.
    """
    chain = (ranks.here - 1) * TREE_LINK_HOP_S
    over = np.log2(np.maximum(ranks.nodes, 1.0)) * TREE_NODE_HOP_S
    hops = chain + over + ranks.waits_s
    return 2 * message / (TREE_EFFICIENCY * ranks.bus) + 2 * hops


def hierarchical_all_reduce(message: Floats, ranks: Ranks) -> Floats:
    """Seconds of a reduce-scatter in each node, all-reduces over nodes, an all-gather, (n,).

    arXiv 1807.11205: each rank of a node reduces its own part with its peers of the other nodes,
    around rings or up and down trees, and those parts share the node's NICs; one after the other.
    """
    here, nodes = ranks.here, ranks.nodes
    inside = (here - 1) / here * message / ranks.link + (here - 1) * RING_LINK_HOP_S
    ring = (nodes - 1) / nodes * message / ranks.network + nodes * RING_NODE_HOP_S
    tree = message / (TREE_EFFICIENCY * ranks.network)
    tree = tree + np.log2(np.maximum(nodes, 1.0)) * TREE_NODE_HOP_S
    return 2 * inside + np.where(nodes > 1, 2 * (np.minimum(ring, tree) + ranks.waits_s), 0.0)


def all_reduce(message: Floats, ranks: Ranks, *, in_switch: bool) -> Floats:
    """Seconds of the fastest algorithm for each message and group, 0 for a group of one, (n,).

    NCCL chooses the same way, by its model's time, between ring and tree, and a hierarchy
    (NVLSTree) only where switches inside the node can reduce.

    Args:
        message: bytes of the whole tensor each rank holds, (n,).
        ranks: who takes part.
        in_switch: whether the node's switch reduces (NVLink SHARP, from H100 on).
    """
    seconds = np.minimum(ring_all_reduce(message, ranks), tree_all_reduce(message, ranks))
    if in_switch:
        seconds = np.minimum(seconds, hierarchical_all_reduce(message, ranks))
    return np.where(ranks.size > 1, seconds, 0.0)
