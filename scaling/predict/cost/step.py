"""Seconds of one optimizer step: stages, bubbles, what hides behind what, and what stalls."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.cost.communication import Traffic, traffic_of
from scaling.predict.cost.compute import head_of, layer_of, offloaded_seconds, optimizer_seconds
from scaling.predict.cost.experts import expert_sharding_of, present
from scaling.predict.cost.risk import expected_stall_s
from scaling.predict.cost.sharding import sharding_of
from scaling.predict.cost.stages import stages_of
from scaling.predict.read.features import Features, Group

TIME_TERMS = (
    "gemm_s",
    "attention_s",
    "elementwise_s",
    "head_s",
    "tp_comm_s",
    "ep_comm_s",
    "host_s",
    "pp_comm_s",
    "bubble_s",
    "dp_comm_s",
    "optimizer_s",
    "jitter_s",
    "overhead_s",
    "stall_s",
)

# Judgement, of what no table tells apart: by how much 1F1B slows a stage, what is not hidden of a
# message between interleaved chunks, the slow-down per doubling of nodes, and from which share of
# the capacity on the allocator retries.
_FRICTION, _INTERLEAVED_EXPOSED, _NODE_JITTER, _STALL_KNEE = 0.01, 0.1, 0.004, 0.95


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of a step, float64 (n,); `terms` add up to `total`."""

    total: Floats
    terms: dict[str, Floats]

    def times(self, factor: Floats) -> "Step":
        """The same step, every term longer by a factor, (n,)."""
        return Step(self.total * factor, {name: s * factor for name, s in self.terms.items()})


def step_of(group: Group, f: Features, p: Mapping[str, float], memory_used: Floats) -> Step:
    """Step time of the layouts `f` (rows of `group`) under parameters `p`.

    Args:
        group: software and cluster.
        f: the layouts.
        p: every parameter by name.
        memory_used: predicted memory over capacity, (n,).

    A stage takes the longer of what its GPU computes and what its host launches, per micro-batch:
    a p-norm of the two, because the two alternate within a layer. With m micro-batches and pp
    stages 1F1B takes (m - 1) slots of the slowest stage and one fill of all of them
    (arXiv 2104.04473); v model chunks a rank shorten the fill by v.
    """
    stages = stages_of(f, group.stack)
    layer = layer_of(group, f, p)
    traffic = traffic_of(group, f, p, stages, layer.attention)
    head = head_of(group, f, p) + traffic.head
    gpu = layer.gemm + layer.attention + layer.elementwise
    gpu = gpu + traffic.per_layer + traffic.exchange
    host = layer.host + traffic.host_per_layer
    sharp = p["host_sharpness"]
    # embedding and head launch about as much as one and a half layers
    ends = 1.5 * host
    piped = stages.piped
    first = _longer(stages.first * gpu, stages.first * host + ends, sharp)
    host_last = stages.last * host + np.where(piped, ends, 2 * ends)
    last = _longer(stages.last * gpu + head, host_last, sharp)
    middle = _longer(stages.middle * gpu, stages.middle * host, sharp)
    at_last = ~piped | (last > first)
    slot = np.where(at_last, last, first)
    slot = np.where(f.pp > 2, np.maximum(slot, middle), slot)
    m, message = f.accumulation, traffic.message
    busy = m * slot
    fill = (first + last + (f.pp - 2) * middle - slot) / f.virtual + (f.pp - 1) * message
    bubble = np.where(piped, fill + (m - 1) * _FRICTION * slot, 0.0)
    # each chunk sends its own messages; interleaved, one chunk's travel while another computes
    sent = np.where(f.virtual > 1, f.virtual * _INTERLEAVED_EXPOSED, 1.0)
    pp_comm = np.where(piped, (m - 1) * message * sent, 0.0)
    pipeline = busy + bubble + pp_comm
    dp_comm = _exposed(group, f, p, traffic, pipeline)
    updated = traffic.stage_weights / sharding_of(group, f).state
    if present(f):
        updated = updated + traffic.expert_weights / expert_sharding_of(f).state
    optimizer = optimizer_seconds(group, updated)
    optimizer = np.where(f.offload, offloaded_seconds(f, updated), optimizer)
    nodes = np.maximum(f.world_size / f.gpus_per_node, 1.0)
    working = pipeline + dp_comm + optimizer
    jitter = working * _NODE_JITTER * np.log2(nodes)
    stall = _stall(f, p, memory_used) + expected_stall_s(group, f)
    total = working + jitter + p["step_overhead_s"] + stall
    layers = np.where(at_last, stages.last, stages.first) * m
    own = {
        "gemm_s": layers * layer.gemm,
        "attention_s": layers * layer.attention,
        "elementwise_s": layers * layer.elementwise,
        "head_s": m * np.where(at_last, head, 0.0),
        "tp_comm_s": layers * traffic.per_layer,
        "ep_comm_s": layers * traffic.exchange,
    }
    # what the busiest stage's slot lasts beyond its GPU work is the host's
    host_s = busy - sum(own.values())
    return Step(
        total,
        {
            **own,
            "host_s": host_s,
            "pp_comm_s": pp_comm,
            "bubble_s": bubble,
            "dp_comm_s": dp_comm,
            "optimizer_s": optimizer,
            "jitter_s": jitter,
            "overhead_s": np.full(len(f), p["step_overhead_s"]),
            "stall_s": stall,
        },
    )


def _longer(a: Floats, b: Floats, sharpness: float) -> Floats:
    """A smooth maximum of two times: the p-norm."""
    large = np.maximum(a, b)
    return large * (1 + (np.minimum(a, b) / large) ** sharpness) ** (1 / sharpness)


def _exposed(
    group: Group, f: Features, p: Mapping[str, float], traffic: Traffic, pipeline: Floats
) -> Floats:
    """Seconds of dp traffic nothing hides: a share of each kind, and what outlasts the pipeline.

    Of what is moved once a step, and of what ZeRO-2 and 3 move behind every micro-batch.
    """
    # ranks of dp and cp lie tp apart: past a node their traffic is the network's
    far = f.tp * f.cp * f.dp > f.gpus_per_node
    dp_exposed = np.where(far, p["dp_exposed"], p["dp_exposed_inside"])
    late = group.stack.reduces_late & ((f.pp > 1) | (f.zero_stage == 0))
    if group.stack.hides_without_zero:
        late = late & (f.pp > 1)
    gradients = traffic.gradients * np.where(late, 1.0, dp_exposed)
    gathering = traffic.gathering * f.accumulation
    beyond = np.maximum(gathering - pipeline, 0.0)
    return np.asarray(gradients + beyond + p["zero3_exposed"] * np.minimum(gathering, pipeline))


def _stall(f: Features, p: Mapping[str, float], memory_used: Floats) -> Floats:
    """Seconds of allocator retries when memory is nearly full: each synchronises the device.

    One every micro-batch but the first, half as many in a pipeline of two.
    """
    past = np.clip((memory_used - _STALL_KNEE) / 0.02, -50, 50)
    per_micro_batch = p["stall_s"] * np.where(f.pp == 2, 0.5, 1.0)
    return np.asarray((f.accumulation - 1) * per_micro_batch / (1 + np.exp(-past)))
