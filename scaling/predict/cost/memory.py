"""Peak memory of a rank, term by term; the fullest pipeline stage decides."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.cost import own_deepspeed, own_torch
from scaling.predict.cost.experts import expert_sharding_of, held_params, kept_bytes, present
from scaling.predict.cost.own_memory import (
    ONE_F_ONE_B,
    TERMS,
    Memory,
    Moment,
    by_rows,
    fullest_of,
    of_rank,
    stage_of,
    step_of,
    whole_model,
)
from scaling.predict.cost.sharding import Sharding, sharding_of
from scaling.predict.cost.stages import (
    Stages,
    head_params,
    layer_params,
    multiplied_params,
    stages_of,
)
from scaling.predict.read.features import Features, Group
from scaling.predict.read.inputs import own_framework

MEMORY_TERMS = tuple(f"{name}_bytes" for name in TERMS)


# By the framework that the engine is to the prediction: what it holds in a step (`moments_of`),
# how chunks are dealt (`chunks_of_ranks`), which gradients stay (`reduces`).
ENGINES: dict[str, Any] = {
    own_framework("deepspeed"): own_deepspeed,
    own_framework("torch"): own_torch,
}


def memory_of(group: Group, f: Features, p: Mapping[str, float]) -> Memory:
    """Memory of the layouts `f` (rows of `group`) under parameters `p`.

    weights, gradients: 2 bytes (4 in fp32) and `Stack.gradient_bytes` a parameter, divided by dp
    from zero_stage 3 and 2 on; optimizer: fp32 copy and two Adam moments, from stage 1 on
    (arXiv 1910.02054), on the host if offloaded. activations: per layer what backward needs
    (arXiv 2205.05198, section 4, with calibrated constants) times the micro-batches in flight under
    1F1B, min(accumulation, pp - stage), and the one layer that is being recomputed. logits: the
    loss's copies of (tokens, vocabulary), vocabulary-parallel unless the stack gathers them; of
    these and the recomputed layer the larger counts. buffers: workspaces and communication buffers.
    Of this project's engines all is counted (own_memory.py) but for what is compiled.
    """
    modelled = functools.partial(_modelled, group, p=p)
    if group.stack.name not in ENGINES:
        return modelled(f)
    count = functools.partial(_counted, group, p=p)
    return by_rows(~f.compiled, f, count, modelled)


def _counted(group: Group, f: Features, p: Mapping[str, float]) -> Memory:
    """The fullest moment of the fullest stage."""
    engine = ENGINES[group.stack.name]

    def of_ranks(f: Features, *, piped: bool) -> Memory:
        stay = engine.reduces(f, piped)
        step = step_of(group, f, piped=piped, gradients_stay=stay)
        moments: list[Moment] = []
        for chunks in engine.chunks_of_ranks(group, f) if piped else [whole_model(f)]:
            if chunks.dense is not None:
                own = of_rank(f, chunks)
                step = step_of(group, own, piped=piped, gradients_stay=stay)
            stage = stage_of(step, chunks)
            moments += engine.moments_of(stage)
        return fullest_of(moments, p["buffers_bytes"])

    piped, whole = (functools.partial(of_ranks, piped=piped) for piped in (True, False))

    def in_stages(f: Features) -> Memory:
        return by_rows(f.schedule == ONE_F_ONE_B, f, piped, piped)

    return by_rows(f.pp > 1, f, in_stages, whole)


def _modelled(group: Group, f: Features, p: Mapping[str, float]) -> Memory:
    stages = stages_of(f, group.stack)
    tokens = f.micro_batch_size * f.seq_length / f.cp
    kept, working = _kept_per_layer(group, f, p, tokens)
    vocabulary = f.vocab_size if group.stack.gathered_logits else f.vocab_size / f.tp
    logits = p["kept_logits"] * tokens * vocabulary * f.element_bytes / 2
    # the first and the last stage compete; a middle one never holds more than the first
    first_logits = np.where(stages.piped, 0.0, logits)
    # the loss is over when the first layer is recomputed: its buffers and that layer's never meet
    flying = in_flight(f)
    first_acts = stages.first * flying[0] * kept
    first_acts = first_acts + np.where(working > first_logits, working, 0.0)
    last_acts = stages.last * flying[1] * kept + np.where(working > logits, working, 0.0)
    first_logits = np.where(working > first_logits, 0.0, first_logits)
    logits = np.where(working > logits, 0.0, logits)
    first_weights, last_weights = _weights(f, stages)
    per_weight = _bytes_per_weight(group, f, p, sharding_of(group, f))
    bytes_of_all = per_weight[0] + per_weight[1] + per_weight[2]
    of_experts = _bytes_per_weight(group, f, p, expert_sharding_of(f))
    # copies in low precision are of the layers' matrices alone
    copies = (
        layer_params(f) / f.tp * f.copy_bytes * sharding_of(group, f).weights_share(f.zero_stage)
    )
    copies = copies + held_params(f) * f.copy_bytes * expert_sharding_of(f).weights_share(
        f.zero_stage
    )
    expert_bytes = held_params(f) * (of_experts[0] + of_experts[1] + of_experts[2]) + copies
    first = first_weights * bytes_of_all + stages.first * expert_bytes + first_acts + first_logits
    last = last_weights * bytes_of_all + stages.last * expert_bytes + last_acts + logits
    at_last = stages.piped & (last > first)
    weights = np.where(at_last, last_weights, first_weights)
    layers = np.where(at_last, stages.last, stages.first)
    experts = layers * held_params(f)
    buffers = np.full(len(f), p["buffers_bytes"])
    terms = {
        "weights_bytes": weights * per_weight[0] + experts * of_experts[0] + layers * copies,
        "gradients_bytes": weights * per_weight[1] + experts * of_experts[1],
        "optimizer_bytes": weights * per_weight[2] + experts * of_experts[2],
        "activations_bytes": np.where(at_last, last_acts, first_acts),
        "logits_bytes": np.where(at_last, logits, first_logits),
        "buffers_bytes": buffers,
    }
    memory = Memory(np.where(at_last, last, first) + buffers, terms, first + buffers)
    return _recomputed_to_fit(group, f, p, memory) if f.recomputes.any() else memory


# Of the capacity, what a recipe leaves that recomputes until its model fits.
_ROOM = 0.95


def _recomputed_to_fit(group: Group, f: Features, p: Mapping[str, float], memory: Memory) -> Memory:
    """The same where software recomputes as many layers or operators as it must, and no more.

    At most everything. Whoever publishes such a row seldom says what it recomputed; Megatron-Core
    begins with norms, activations and projections up, whose second forward costs little time.
    """
    nothing = np.zeros(len(f), dtype=bool)
    all_of_it = dataclasses.replace(f, full=~nothing, selective=nothing, recomputes=nothing)
    least = memory_of(group, all_of_it, p)
    room = np.maximum(group.capacity_bytes * _ROOM / p["fragmentation"], least.total)
    saved = np.where(f.recomputes, np.maximum(memory.total - room, 0.0), 0.0)
    saved = np.minimum(saved, memory.terms["activations_bytes"])
    terms = {**memory.terms, "activations_bytes": memory.terms["activations_bytes"] - saved}
    return Memory(memory.total - saved, terms, memory.first_stage - saved)


def in_flight(f: Features) -> tuple[Floats, Floats]:
    """Micro-batches whose activations the first and the last stage hold at once, (n,) each.

    1F1B: pp and 1. Interleaved with v chunks a rank (arXiv 2104.04473, section 2.2; Megatron-Core's
    warm-up of 2 (pp - rank - 1) + (v - 1) pp chunks, and the one that runs): pp + (pp - 1) / v and
    pp - (pp - 1) / v of a whole stage. Never more than there are.
    """
    more = np.where(f.virtual > 1, (f.pp - 1) / f.virtual, 0.0)
    first = f.pp + more
    last = np.where(f.virtual > 1, f.pp - more, 1.0)
    return np.minimum(f.accumulation, first), np.minimum(f.accumulation, last)


def need_of(memory: Memory, p: Mapping[str, float]) -> Floats:
    """Bytes the allocator must get from the device: allocated plus fragmentation."""
    return memory.total * p["fragmentation"]


def _bytes_per_weight(
    group: Group, f: Features, p: Mapping[str, float], sharding: Sharding
) -> tuple[Floats, Floats, Floats]:
    """Weights, gradients and optimizer state in bytes per parameter of the stage."""
    stack, z = group.stack, f.zero_stage
    weights = f.element_bytes * p["gradient_ratio"] * sharding.weights_share(z)
    gradients = stack.gradient_bytes * p["gradient_ratio"] / np.where(z >= 2, sharding.state, 1.0)
    # without low precision there is no second copy: two moments of 4 bytes
    state = np.where(f.element_bytes > 2, stack.master_bytes - 4.0, stack.master_bytes)
    state = np.where(f.offload, 0.0, state)
    return weights, gradients, state * p["master_ratio"] / sharding.state


def _weights(f: Features, stages: Stages) -> tuple[Floats, Floats]:
    """Parameters of the first and last stage per tp rank; tied matrices part over a pipeline."""
    layer, head = layer_params(f), head_params(f)
    matrices = np.where(stages.piped, 1.0, f.embeddings)
    return (stages.first * layer + matrices * head) / f.tp, (stages.last * layer + head) / f.tp


def _kept_per_layer(
    group: Group, f: Features, p: Mapping[str, float], tokens: Floats
) -> tuple[Floats, Floats]:
    """Bytes a layer keeps for backward per micro-batch, and what recomputing one adds at once."""
    h, tp, wide = f.hidden_size, f.tp, f.element_bytes / 2
    shard = np.where(f.sequence_parallel, tp, 1.0)
    sharded = f.sequence_parallel & (tp > 1)
    replicated = p["kept_replicated"] + np.where(f.fused_norm, 0.0, p["kept_unfused"])
    # Gated models keep gate, up, activation and product and rotate copies of q and k; a gpt keeps
    # the activation's input and output, and rotates nothing: its 34 bytes of arXiv 2205.05198.
    gated = f.mlp_inputs > 1
    # Kernels that fuse rotation with its copies and the gate with its activation keep q, k, v and
    # the output, gate, up and product alone; what a GEMM of low precision read is kept as it was.
    lean = group.stack.lean_kernels
    rotated, gate = (8 / 14, 0.75) if lean else (1.0, 1.0)
    attention = p["kept_attention"] * (f.query_width + f.kv_width) / 2 * f.attentions / tp
    attention = attention * np.where(gated, rotated, 8 / 14 if lean else 0.7)
    attention = attention + np.where(f.saved_bytes < 2, f.saved_bytes * f.query_width / tp, 0.0)
    narrower = 2.0 - f.saved_bytes
    replicated = replicated - 2 * narrower
    mlp = (p["kept_mlp"] * np.where(gated, gate, 0.5) - narrower) * f.ffn_hidden_size / tp
    gathered = p["kept_gathered"] + p["late_release"] * _gpu_bound(group, f, tokens)
    flat = replicated * h / shard + attention + mlp + np.where(sharded, gathered * h, 0.0)
    scores = f.micro_batch_size * f.num_heads / tp * f.seq_length * f.seq_length / f.cp
    per_score = f.math * p["kept_math"] + f.fused_softmax * p["kept_fused"]
    without_scores = wide * tokens * flat
    if present(f):
        without_scores = without_scores + wide * kept_bytes(group, f, p, tokens)
    everything = without_scores + wide * per_score * scores * f.attentions
    boundary = wide * 2 * tokens * h / shard
    again = group.stack.selective_share
    selected = without_scores + again * (boundary - without_scores)
    kept = np.where(f.full, boundary, np.where(f.selective, selected, everything))
    working = np.where(f.full, everything * p["recompute_layers"], 0.0)
    return kept, working + np.where(f.selective, everything - selected, 0.0)


def _gpu_bound(group: Group, f: Features, tokens: Floats) -> Floats:
    """0 to 1: whether the GPU, not the launching host, is the bottleneck of a layer.

    While the host is slower, blocks a side stream used are free at once; otherwise they are
    released late (torch's caching allocator, record_stream). 0.45 is a usual MFU. This is what a
    layout asks for: of tp groups over nodes published peaks show less, because the allocator,
    short of memory, waits until blocks are free, and those steps are the ones that stall.
    """
    gpu, cluster = group.gpu, group.cluster
    assert gpu.link_bytes_per_s is not None
    assert cluster.node_link_bytes_per_s is not None
    # half the NICs: rings of both directions share them
    link = np.where(
        f.tp > f.gpus_per_node, cluster.node_link_bytes_per_s * 0.5, gpu.link_bytes_per_s
    )
    math_s = 6 * tokens * multiplied_params(f) / f.tp / (f.peak * 0.45)
    gpu_s = math_s + 16 * tokens * f.hidden_size / link
    crossing = (f.pp > 1) & (f.world_size > f.gpus_per_node) & cluster.lossy_transport
    host_s = 3.3e-3 + np.where(crossing, 1.8e-3 * f.tp, 0.0)
    return 1 / (1 + (host_s / gpu_s) ** 4)
