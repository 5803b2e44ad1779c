"""Seconds of one optimizer step: stages, bubbles, what hides behind what, and what stalls."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.predict.cost.communication import Traffic, traffic_of
from scaling.predict.cost.compute import (
    head_time,
    layer_time,
    offloaded_seconds,
    optimizer_seconds,
)
from scaling.predict.cost.risk import STALL_S, stalls_of
from scaling.predict.cost.stages import (
    DUALPIPEV,
    ZBV,
    ZERO_BUBBLE,
    stages_of,
)
from scaling.predict.read.features import Features, Group

_ON_GPU = ("gemm_s", "attention_s", "elementwise_s", "head_s", "tp_comm_s", "ep_comm_s")
TIME_TERMS = (
    *_ON_GPU, "host_s", "pp_comm_s", "bubble_s", "dp_comm_s", "optimizer_s", "jitter_s", "stall_s",
)  # fmt: skip

# Judgement, because no published table tells these apart:
_FRICTION = 0.01  # share of a slot by which 1F1B slows a stage down
_INTERLEAVED_EXPOSED = 0.1  # share of a message between interleaved chunks that is not hidden
_NODE_JITTER = 0.004  # slow-down of the step per doubling of nodes
_SHARPNESS = 4.0  # of the smooth maximum of host and GPU times
_STALL_KNEE = 0.95  # share of the capacity from which the allocator retries


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of a step, float64 (n,); `terms` add up to `total`."""

    total: Floats
    terms: dict[str, Floats]

    def times(self, factor: Floats) -> "Step":
        """The same step with every term multiplied by a factor, (n,)."""
        return Step(self.total * factor, {name: s * factor for name, s in self.terms.items()})


def step_of(group: Group, f: Features, p: Mapping[str, float], memory_used: Floats) -> Step:
    """Step time of the layouts `f` (rows of `group`) under parameters `p`.

    `memory_used` is the predicted memory over the capacity, (n,).

    With m micro-batches and pp stages 1F1B takes m slots of the slowest stage, and the time to fill
    and drain the others once (arXiv 2104.04473); v model chunks a rank shorten that by v. In a
    backward of two parts the gradients of weights wait for idle time, which falls by twice their
    own (arXiv 2401.10241, section 2.3). But no step is shorter than its first micro-batch takes
    through all stages, without gradients of weights. After it the last stage has m - 1 passes of a
    chunk: with fewer micro-batches than stages that is longer. DualPipeV with a whole backward
    (DeepSpeed's) idles 2 (pp - 1) backwards and pp - 2 forwards of a chunk, whatever m: counted in
    its instructions.
    """
    stages = stages_of(f, group.stack)
    kernels, host = layer_time(group, f, p)
    gemm = kernels["gemm_s"]
    traffic = traffic_of(group, f, p, stages, kernels["attention_s"], gemm)
    kernels |= {"tp_comm_s": traffic.per_layer, "ep_comm_s": traffic.all_to_all}
    gpu, host = np.asarray(sum(kernels.values())), host + traffic.host_per_layer
    # Computation of the GPU and launches of the host alternate within a layer, so neither hides the
    # other in full: their p-norm counts. Embedding and head each launch about as much as one and a
    # half layers.
    head, ends = head_time(group, f, p), 1.5 * host
    first = _p_norm(stages.first * gpu, stages.first * host + ends)
    one_layer = _p_norm(gpu, host)  # k layers take k times as long
    ends_of_last = np.where(stages.piped, ends, 2 * ends)
    last = _p_norm(stages.last * gpu + head, stages.last * host + ends_of_last)
    middle = stages.middle * one_layer
    between = (f.num_layers - stages.first - stages.last) * one_layer  # all middle stages
    # the slowest stage
    is_middle = (f.pp > 2) & (middle > np.maximum(first, last))
    is_last = ~is_middle & (~stages.piped | (last > first))
    slot = np.select([is_middle, is_last], [middle, last], first)
    layers = np.select([is_middle, is_last], [stages.middle, stages.last], stages.first)
    m, message = f.accumulation, traffic.message
    busy = m * slot
    chunks = np.where(f.schedule >= ZBV, 2.0, f.virtual)
    in_parts = (f.schedule >= ZERO_BUBBLE) & group.stack.splits_backward
    later = in_parts * layers * gemm / (3 + f.full) / slot  # of a slot, weights' gradients
    others = first + between + last - slot
    spared = later * (1 - 1 / chunks) + (m - 1) * (1 - (1 - later) / chunks)  # slots
    fill = np.maximum(others * (1 - 2 * later) / chunks, others * (1 - later) - slot * spared)
    whole = (f.schedule == DUALPIPEV) & (not group.stack.splits_backward)
    fill = np.where(whole, others - (others + slot) / (2 * (3 + f.full)), fill)
    fill = fill + (f.pp - 1) * message
    bubble = np.where(stages.piped, fill + (m - 1) * _FRICTION * slot, 0.0)
    # each chunk sends its own messages; interleaved, one chunk's travel while another computes
    sent = np.where(chunks > 1, chunks * _INTERLEAVED_EXPOSED, 1.0)
    pp_comm = np.where(stages.piped, (m - 1) * message * sent, 0.0)
    pipeline = busy + bubble + pp_comm
    dp_comm = _dp_comm_s(group, f, p, traffic, pipeline)
    offloaded = offloaded_seconds(f, p, traffic.updated)
    optimizer = np.where(f.offload, offloaded, optimizer_seconds(group, f, traffic.updated))
    working = pipeline + dp_comm + optimizer
    jitter = working * _NODE_JITTER * np.log2(np.maximum(f.world_size / f.gpus_per_node, 1.0))
    stall = _allocator_stall_s(group, f, memory_used) + stalls_of(group, f, p).expected_s
    on_gpu = {name: layers * m * seconds for name, seconds in kernels.items()}
    on_gpu["head_s"] = np.where(is_last, m * head, 0.0)
    terms = {
        # what the slowest stage takes beyond its GPU work is the host's
        "host_s": busy - sum(on_gpu.values()),
        "pp_comm_s": pp_comm,
        "bubble_s": bubble,
        "dp_comm_s": dp_comm,
        "optimizer_s": optimizer,
        "jitter_s": jitter,
        "stall_s": stall,
    }
    return Step(working + jitter + stall, on_gpu | terms)


def bound_by_host(terms: Mapping[str, Floats]) -> Flags:
    """Whether the slowest stage's host takes longer than its GPU, (n,).

    Then launches make the stage longer than the GPU's work by more than the smooth maximum of two
    equal times does.
    """
    on_gpu = sum(terms[name] for name in _ON_GPU)
    return np.asarray(terms["host_s"] > (2 ** (1 / _SHARPNESS) - 1) * on_gpu)


def _p_norm(a: Floats, b: Floats) -> Floats:
    """A smooth maximum of two times."""
    large = np.maximum(a, b)
    return large * (1 + (np.minimum(a, b) / large) ** _SHARPNESS) ** (1 / _SHARPNESS)


def _dp_comm_s(
    group: Group, f: Features, p: Mapping[str, float], traffic: Traffic, pipeline: Floats
) -> Floats:
    """Seconds of data-parallel traffic that nothing hides, (n,).

    A share of once-a-step traffic is exposed, or all of it where gradients are reduced after the
    last backward. Traffic per micro-batch (ZeRO-2 and 3) and the pipeline alternate layer by layer,
    so neither hides the other in full: their p-norm counts.
    """
    without_zero = (f.zero_stage == 0) & (not group.stack.hides_without_zero)
    late = group.stack.reduces_late & ((f.pp > 1) | without_zero)
    once_a_step = traffic.gradients * np.where(late, 1.0, p["dp_exposed"])
    gathering = _p_norm(traffic.gathering * f.accumulation, pipeline) - pipeline
    return np.asarray(once_a_step + gathering)


def _allocator_stall_s(group: Group, f: Features, memory_used: Floats) -> Floats:
    """Seconds of allocator retries over a lossy transport when memory is nearly full, (n,).

    Each synchronises: one in every micro-batch but the first, half as many in a pipeline of two.
    """
    past = np.clip((memory_used - _STALL_KNEE) / 0.02, -50, 50)
    per_micro_batch = group.cluster.lossy_transport * STALL_S * np.where(f.pp == 2, 0.5, 1.0)
    return np.asarray((f.accumulation - 1) * per_micro_batch / (1 + np.exp(-past)))
