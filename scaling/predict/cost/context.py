"""What context parallelism sends for a layer's attention: all-to-alls, or a ring."""

from collections.abc import Mapping

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.cost.links import TP_NETWORK_EFFICIENCY, link, node_bus, node_link
from scaling.predict.read.features import Features, Group


def exchanges(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """Ulysses' all-to-alls of a layer: seconds on the GPU; what they wait and launch is left out.

    Each attention trades tokens for heads: query, key and value before it, its result after it
    (arXiv 2309.14509, section 3.2), and the same in backward; full checkpointing does forward once
    more. A rank holds 1 / cp of the tokens, (2 query + 2 kv widths) / tp of a token, keeps 1 / cp
    of it and sends the rest. cp ranks are tp apart, so min(cp, gpus_per_node / tp) of a group are
    on a node: what goes to them takes the links, the rest the NICs, of which all GPUs of the node
    have their share at once; the slower of the two counts. Nothing hides it: attention waits.
    """
    tp, cp = f.tp, f.cp
    here = np.clip(f.gpus_per_node / tp, 1.0, cp)
    nodes = cp / here
    tokens = f.micro_batch_size * f.seq_length / cp
    held = tokens * 2 * (f.query_width + f.kv_width) / tp * f.element_bytes
    inside = held * (here - 1) / cp / (link(group) * p["link_efficiency"])
    nics = node_bus(group, np.maximum(nodes * tp * here / f.gpus_per_node, 1.0))
    leaving = f.gpus_per_node * held * (cp - here) / cp
    across = leaving / (nics * TP_NETWORK_EFFICIENCY)
    seconds = (2 + f.full) * f.attentions * np.maximum(inside, across)
    return np.where(cp > 1, seconds, 0.0)


def passes(group: Group, f: Features, p: Mapping[str, float], attention: Floats | float) -> Floats:
    """Ring attention of a layer: seconds on the GPU that attention does not hide.

    Forward the keys and values of every rank go around the ring of cp ranks once, backward they and
    their gradients do (arXiv 2310.01889, section 3; Transformer Engine's p2p). Each of the cp - 1
    passes travels while the block before it computes; what is longer than `attention`, seconds of
    the whole layer's attention kernels, is waited for. The slowest link of the ring counts: a NIC's
    share of the GPU as soon as the ring leaves the node.
    """
    tp, cp = f.tp, f.cp
    tokens = f.micro_batch_size * f.seq_length / cp
    block = tokens * 2 * f.kv_width / tp * f.element_bytes
    leaves = tp * cp > f.gpus_per_node
    across = node_link(group) / f.gpus_per_node * TP_NETWORK_EFFICIENCY
    bandwidth = np.where(leaves, across, link(group) * p["link_efficiency"])
    rounds = (3 + f.full) * f.attentions  # forward, and twice the bytes backward
    moving = rounds * (cp - 1) * block / bandwidth
    return np.where(cp > 1, np.maximum(moving - attention * (cp - 1) / cp, 0.0), 0.0)
