"""Seconds of collectives and messages: alpha-beta with the links each group of ranks really has."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.context import exchanges, passes
from scaling.predict.cost.experts import exchange_s, expert_sharding_of, present
from scaling.predict.cost.experts import replicas as expert_replicas
from scaling.predict.cost.links import (
    TP_NETWORK_EFFICIENCY,
    Ranks,
    link,
    node_bus,
    node_link,
    ring_latency_s,
    ring_pass,
    transport_of,
)
from scaling.predict.cost.sharding import Sharding, sharding_of
from scaling.predict.cost.stages import (
    Stages,
    experts_of_heaviest_stage,
    weights_of_heaviest_stage,
)
from scaling.predict.read.features import Features, Group


@dataclass(frozen=True, slots=True)
class Traffic:
    """Communication of one step, (n,)."""

    per_layer: Floats  # s on the GPU, tp and cp collectives of one layer and micro-batch
    exchange: Floats  # s of the all-to-alls among experts of one layer, likewise
    host_per_layer: Floats  # s the host needs to launch them
    head: Floats  # s to gather logits, one micro-batch
    message: Floats  # s from one stage to the next and back, one micro-batch
    gradients: Floats  # s of dp traffic a step, hidden or not
    gathering: Floats  # s of ZeRO-3's parameter and gradient traffic a micro-batch
    stage_weights: Floats  # parameters a rank's stage holds, routed experts apart
    expert_weights: Floats  # those of routed experts


def traffic_of(
    group: Group,
    f: Features,
    p: Mapping[str, float],
    stages: Stages,
    attention: Floats | float = 0.0,
) -> Traffic:
    """All communication of the layouts `f`; `attention` are the kernels' seconds of a layer.

    Ranks are placed tp innermost, then cp, dp, and pp outermost (layout.py): a tp group of at most
    gpus_per_node ranks never leaves its node; a dp group has gpus_per_node / (tp * cp) ranks on a
    node, and tp * cp such groups share the node's NICs.
    """
    layer, host = _in_layer(group, f, p, attention)
    exchange: Floats = np.zeros(len(f))
    experts: Floats = np.zeros(len(f))
    if present(f):
        exchange = exchange_s(group, f, p)
        experts = experts_of_heaviest_stage(f, stages)
    crossing = (f.pp > 1) & (f.world_size > f.gpus_per_node)
    if group.cluster.lossy_transport:
        host = host + np.where(crossing & (f.tp > 1), p["host_transport_s"] * f.tp * _count(f), 0.0)
    tokens = f.micro_batch_size * f.seq_length / f.cp
    bandwidth = _tp_bandwidth(group, f, p)
    gathered = (f.tp - 1) / f.tp * tokens * f.vocab_size * f.element_bytes / bandwidth
    weights = weights_of_heaviest_stage(f, stages)
    replicas = f.dp * f.cp  # gradients are summed over the cp ranks too
    sharding = sharding_of(group, f)
    gradients, gathering = _data_parallel(group, f, p, weights, sharding, replicas, f.tp)
    if present(f):
        of_experts = _data_parallel(
            group, f, p, experts, expert_sharding_of(f), expert_replicas(f), f.ep * f.etp
        )
        gradients, gathering = gradients + of_experts[0], gathering + of_experts[1]
    return Traffic(
        per_layer=layer,
        exchange=exchange,
        host_per_layer=host,
        head=gathered if group.stack.gathered_logits else np.zeros(len(f)),
        message=_message(group, f, p, tokens, crossing),
        gradients=gradients,
        gathering=gathering,
        stage_weights=weights,
        expert_weights=experts,
    )


def _count(f: Features) -> Floats:
    """How many tp collectives a layer has: after attention and mlp, each way, and recomputed."""
    return (4 + 2 * f.full) * (f.attentions + 1) / 2


def _tp_bandwidth(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """Of a tp group, innermost: inside a node unless it has more ranks than the node."""
    inside = link(group) * p["link_efficiency"]
    if not (f.tp > f.gpus_per_node).any():
        return np.full(len(f), inside)
    over = node_bus(group, f.tp / f.gpus_per_node) * TP_NETWORK_EFFICIENCY
    return np.where(f.tp > f.gpus_per_node, over, inside)


def _in_layer(
    group: Group, f: Features, p: Mapping[str, float], attention: Floats | float
) -> tuple[Floats, Floats]:
    """Collectives inside a layer: seconds on the GPU, and seconds the host needs to launch them.

    tp: ring all-reduces of (tokens, h), 2 (tp - 1) / tp of it each way; under sequence_parallel the
    same bytes as all-gather and reduce-scatter, and one more all-gather in backward
    (arXiv 2205.05198). cp: see context.py.
    """
    tp = f.tp
    tokens = f.micro_batch_size * f.seq_length / f.cp
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
    seconds, host = np.where(tp > 1, seconds, 0.0), np.where(tp > 1, host, 0.0)
    if (f.cp > 1).any():
        ring = passes(group, f, p, attention)
        seconds = seconds + np.where(f.ring, ring, exchanges(group, f, p))
    return seconds, host


def _message(
    group: Group, f: Features, p: Mapping[str, float], tokens: Floats, crossing: Flags
) -> Floats:
    """Activations forward and their gradient back between two stages; 0 without a pipeline.

    An encoder-decoder sends both of its streams, whole: its messages also carry the position bias,
    of which every tp rank holds other heads (scaling/train/engines/deepspeed/pipeline.py).
    """
    pairs = f.attentions > 1
    scattered = f.sequence_parallel | (group.stack.scattered_messages & ~pairs)
    moved = tokens * f.hidden_size * f.element_bytes / np.where(scattered, f.tp, 1.0)
    moved = moved * np.where(pairs, 2.0, 1.0)
    share = node_link(group) / f.gpus_per_node * p["p2p_efficiency"]
    share = np.where(crossing, share, link(group) * p["p2p_efficiency_inside"])
    latency = np.where(crossing, p["p2p_latency_s"], p["p2p_latency_inside_s"])
    seconds = 2 * (moved / share + latency)
    return np.where(f.pp > 1, seconds, 0.0)


def _data_parallel(
    group: Group,
    f: Features,
    p: Mapping[str, float],
    weights: Floats,
    sharding: Sharding,
    replicas: Floats,
    stride: Floats,
) -> tuple[Floats, Floats]:
    """Gradient and parameter traffic of data parallelism: seconds a step, and a micro-batch.

    Of `weights` parameters a rank holds, which `replicas` ranks `stride` apart hold as well.

    One copy of the state is spread over `sharded` ranks (1 at zero_stage 0), and `copies` such
    groups are all-reduced, once a step. Inside a group: reduce-scatter and all-gather (1). ZeRO-2
    scatters gradients every micro-batch (the second return value) and gathers weights once; ZeRO-3
    gathers them for forward and for backward every micro-batch, each layer on its own. Hybrid
    sharding is both (MiCS, arXiv 2205.00119), its copies further apart than the ranks of a group.
    With a second copy (hpZ) only the first gather of a step and the scattering cross groups.
    """
    sharded = sharding.state
    copies = replicas / sharded
    gradients, gathering = np.zeros(len(f)), np.zeros(len(f))
    held = weights * group.stack.gradient_bytes
    if (copies > 1).any():
        across = _ranks(group, f, p, copies, stride * sharded, reduced=True)
        # an all-reduce is a reduce-scatter and an all-gather
        gradients = 2 * _in_messages(group, f, held / sharded, across)
    if (sharded > 1).any():
        inside = _ranks(group, f, p, sharded, stride)
        # stage 2 keeps no whole gradient, so each micro-batch's is reduced (DeepSpeed, FSDP),
        # behind the backward pass like stage 3's
        at_end = np.where(f.zero_stage == 2, 0.0, held)
        once = _in_messages(group, f, at_end + weights * f.element_bytes, inside)
        scattering = _in_messages(group, f, held, inside)
        near = _ranks(group, f, p, sharding.inside, stride)
        far_passes = np.where(sharding.second, 1 + 1 / f.accumulation, 3.0)
        each = far_passes * _gathered(f, weights, inside)
        each = each + (3 - far_passes) * _gathered(f, weights, near)
        spread = sharded > 1
        gradients = gradients + np.where(spread & (f.zero_stage < 3), once, 0.0)
        gathering = np.where(spread & (f.zero_stage >= 3), each, 0.0)
        gathering = np.where(spread & (f.zero_stage == 2), scattering, gathering)
    return gradients, gathering


def _gathered(f: Features, weights: Floats, ranks: Ranks) -> Floats:
    """Seconds to gather every layer's weights once, or to scatter its gradients, (n,)."""
    moved = (ranks.size - 1) / ranks.size * weights * f.element_bytes
    return moved / ranks.bus + f.num_layers * (ring_latency_s(ranks) + ranks.waits_s)


def _in_messages(group: Group, f: Features, moved: Floats, ranks: Ranks) -> Floats:
    """Seconds of a ring's pass of `moved` bytes, one message a layer where a stack sends so."""
    messages = np.maximum(f.num_layers / f.pp, 1.0) if group.stack.layer_messages else 1.0
    return np.asarray(messages * ring_pass(moved / messages, ranks))


def _ranks(
    group: Group,
    f: Features,
    p: Mapping[str, float],
    size: Floats,
    stride: Floats,
    *,
    reduced: bool = False,
) -> Ranks:
    """Groups of `size` ranks that lie `stride` apart; `stride` such groups share a node.

    `reduced`: for all-reduces.
    """
    inner = np.minimum(stride, f.gpus_per_node)
    here = np.maximum(1.0, np.minimum(size, f.gpus_per_node / inner))
    nodes = np.maximum(1.0, size / here)
    ring, reducing, waits_s = transport_of(group, nodes, p["network_efficiency"])
    network = (reducing if reduced else ring) / inner
    return Ranks(size, nodes, link(group) * p["link_efficiency"], network, waits_s)
