"""Peak memory of a rank, term by term; the fullest pipeline stage decides."""

import functools
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.predict.cost import own_deepspeed, own_torch
from scaling.predict.cost.experts import (
    KEPT_MLP,
    has_experts,
    held_expert_params,
    is_lean,
    kept_expert_bytes,
    kept_of_ffn,
)
from scaling.predict.cost.links import link, node_link
from scaling.predict.cost.own_layer import loss_memory
from scaling.predict.cost.own_memory import (
    TERMS,
    ZBV,
    Memory,
    Moment,
    Sizes,
    Stage,
    deepspeed_stages,
    in_flight,
    peak_of,
    split_rows,
    torch_stages,
    whole_model,
)
from scaling.predict.cost.sharding import (
    Sharding,
    expert_sharding_of,
    gradient_bytes,
    sharding_of,
)
from scaling.predict.cost.stages import (
    head_params,
    layer_params,
    multiplied_params,
    stages_of,
)
from scaling.predict.read.features import Features, Group
from scaling.predict.read.stacks import own_framework

MEMORY_TERMS = tuple(f"{name}_bytes" for name in TERMS)


# By framework name: what an engine holds in a step, the stages of its pipelines, and which of its
# gradients stay whole (see `layer_memory`). Under DeepSpeed they go into buckets one by one.
ENGINES: Mapping[
    str,
    tuple[
        Callable[[Stage], list[Moment]],
        Callable[[Sizes], Iterable[Stage]],
        Callable[[Features, bool], Flags | None],
    ],
] = {
    own_framework("deepspeed"): (own_deepspeed.moments_of, deepspeed_stages, lambda *_: None),
    own_framework("torch"): (own_torch.moments_of, torch_stages, own_torch.whole_gradients),
}

# Bytes that a layer keeps in 16 bits: per token, h / tp of q, k, v and output; per token, h more
# without a fused norm; per score of torch's and of a fused softmax.
_KEPT_ATTENTION, _KEPT_UNFUSED, _KEPT_MATH, _KEPT_FUSED = 14.0, 16.0, 5.0, 4.0

# Share of the capacity that a recipe fills that recomputes until its model fits.
_FILLED = 0.95
# Share of the capacity that blocks which are released late may exceed it by, and still be refused
# by nobody: a chance of 12 % to fit.
_LATE = 1.1


def memory_of(group: Group, f: Features, p: Mapping[str, float]) -> Memory:
    """Memory of the layouts `f` (rows of `group`) under parameters `p`.

    This project's engines are counted tensor by tensor (own_memory.py), except for what is
    compiled. Other software is modelled:
    weights, gradients: 2 bytes (4 in fp32) and `Stack.gradient_bytes` a parameter, divided by dp
    from zero_stage 3 and 2 on (arXiv 1910.02054); of what is divided, the layer that is computed
    is whole beside its part.
    optimizer: fp32 copy and two Adam moments, divided by dp from stage 1 on; on the host if
    offloaded.
    activations: what backward needs of each layer (arXiv 2205.05198, section 4, with calibrated
    constants) times the micro-batches in flight, and the layer that is being recomputed.
    logits: the loss's copies of (tokens, vocabulary), divided by tp unless the stack gathers them.
    They and the layer being recomputed are never there together; the larger one counts.
    buffers: workspaces and communication buffers.
    """
    modelled = functools.partial(_modelled, group)
    if group.stack.name not in ENGINES:
        return modelled(f, p)
    return split_rows(~f.compile, f, p, functools.partial(_counted, group), modelled)


def _counted(group: Group, f: Features, p: Mapping[str, float]) -> Memory:
    """The fullest moment of the fullest stage of this project's engines."""
    moments_of, stages_of_ranks, whole_gradients = ENGINES[group.stack.name]

    def peak(f: Features, p: Mapping[str, float], *, piped: bool) -> Memory:
        sizes = Sizes(group, f, piped=piped, whole_gradients=whole_gradients(f, piped))
        stages = stages_of_ranks(sizes) if piped else [whole_model(sizes)]
        moments = [moment for stage in stages for moment in moments_of(stage)]
        return peak_of(moments, p["buffers_bytes"])

    piped, whole = (functools.partial(peak, piped=piped) for piped in (True, False))
    return split_rows(f.pp > 1, f, p, piped, whole)


def _modelled(group: Group, f: Features, p: Mapping[str, float]) -> Memory:
    """The fullest one of the first, the second and the last stage.

    The second holds more than the first where stages between have more layers. Tied vocabulary
    matrices are two where a pipeline parts them.
    """
    stages = stages_of(f, group.stack)
    state = _bytes_per_weight(group, f, p, sharding_of(group, f))
    expert_state = _bytes_per_weight(group, f, p, expert_sharding_of(group, f))
    expert_params = held_expert_params(f)
    kept, recomputed = _activations_of_layer(group, f, p)
    vocabulary = f.vocab_size if group.stack.gathered_logits else f.vocab_size / f.tp
    logits = p["kept_logits"] * f.tokens * vocabulary * f.element_bytes / 2
    if f.fused_cross_entropy.any():
        fused = loss_memory(f, f.tokens * f.vocab_size / f.tp, head_params(f) / f.tp)
        logits = np.where(f.fused_cross_entropy, np.maximum(*fused), logits)

    def stage_terms(
        layers: Floats, matrices: Floats | float, in_flight: Floats, logits: Floats
    ) -> dict[str, Floats]:
        params = (layers * layer_params(f) + matrices * head_params(f)) / f.tp
        experts = layers * expert_params
        gathered = layer_params(f) / f.tp * np.minimum(layers * state[3], state[0] + state[3])
        gathered_experts = np.minimum(layers * expert_state[3], expert_state[0] + expert_state[3])
        whole = gathered + expert_params * gathered_experts
        # the loss is over when a layer is recomputed
        in_backward = np.where(recomputed > logits, recomputed, 0.0)
        return {
            "weights_bytes": params * state[0] + experts * expert_state[0] + whole,
            "gradients_bytes": params * state[1] + experts * expert_state[1],
            "optimizer_bytes": params * state[2] + experts * expert_state[2],
            "activations_bytes": layers * in_flight * kept + in_backward,
            "logits_bytes": np.where(recomputed > logits, 0.0, logits),
            "buffers_bytes": np.full(len(f), p["buffers_bytes"]),
        }

    # in a V the first rank has the model's first and last chunk
    is_v = stages.piped & (f.schedule >= ZBV)
    first_matrices = np.where(stages.piped & ~is_v, 1.0, f.embeddings)
    first_logits = np.where(stages.piped & ~is_v, 0.0, logits)
    terms = stage_terms(stages.first, first_matrices, in_flight(f, 0.0), first_logits)
    total = np.asarray(sum(terms.values()))
    no_logits = np.zeros(len(f))
    for has_stage, other in (
        (f.pp > 2, stage_terms(stages.middle, 0.0, in_flight(f, 1.0), no_logits)),
        (stages.piped & ~is_v, stage_terms(stages.last, 1.0, in_flight(f, f.pp - 1), logits)),
    ):
        other_total = np.asarray(sum(other.values()))
        is_fuller = has_stage & (other_total > total)
        total = np.where(is_fuller, other_total, total)
        terms = {name: np.where(is_fuller, other[name], terms[name]) for name in terms}
    memory = Memory(total, terms)
    return _recomputed_to_fit(group, f, p, memory) if f.recomputes.any() else memory


def _recomputed_to_fit(group: Group, f: Features, p: Mapping[str, float], memory: Memory) -> Memory:
    """The same where software recomputes as many layers or operators as it must, at most all.

    Publishers of such a row seldom state what was recomputed. Megatron-Core begins with norms,
    activations and up projections, whose second forward costs little time.
    """
    nothing = np.zeros(len(f), dtype=bool)
    all_of_it = f.but(full=~nothing, selective=nothing, recomputes=nothing)
    least = memory_of(group, all_of_it, p)
    room = np.maximum(group.capacity_bytes * _FILLED / p["fragmentation"], least.total)
    saved = np.where(f.recomputes, np.maximum(memory.total - room, 0.0), 0.0)
    return _less(memory, saved)


def _less(memory: Memory, saved: Floats) -> Memory:
    """The memory without these bytes of activations, (n,), as far as there are so many."""
    saved = np.minimum(saved, memory.terms["activations_bytes"])
    terms = {**memory.terms, "activations_bytes": memory.terms["activations_bytes"] - saved}
    return Memory(memory.total - saved, terms, memory.phase)


def memory_at_limit(group: Group, f: Features, p: Mapping[str, float]) -> Memory:
    """`memory_of`, where blocks that are released late fill no more than a little too much.

    Short of memory, the allocator waits until they are free, so they alone exclude no layout.
    """
    memory, limit = memory_of(group, f, p), group.capacity_bytes * _LATE / p["fragmentation"]
    rows = np.flatnonzero(memory.total > limit)
    if group.stack.name in ENGINES or not rows.size or not f.sequence_parallel.any():
        return memory
    at_once = memory_of(group, f.take(rows), {**p, "late_release": 0.0}).total
    saved = np.zeros(len(f))
    saved[rows] = memory.total[rows] - np.maximum(limit, at_once)
    return _less(memory, saved)


def rehearsed_memory(memory: Memory, rehearsed: Floats, p: Mapping[str, float]) -> Memory:
    """The memory with a rehearsal's bytes, (n,), NaN without one.

    The counted terms keep their proportions; buffers, which no rehearsal sees, are added.
    """
    known = np.isfinite(rehearsed)
    if not known.any():
        return memory
    buffers = p["buffers_bytes"]
    ratio = np.where(known, rehearsed / (memory.total - buffers), 1.0)
    terms = {name: values * ratio for name, values in memory.terms.items()}
    terms["buffers_bytes"] = (memory.terms["buffers_bytes"] - buffers) * ratio + buffers
    total = np.where(known, rehearsed + buffers, memory.total)
    return Memory(total, terms, memory.phase)


def need_of(memory: Memory, p: Mapping[str, float]) -> Floats:
    """Bytes the allocator must get from the device: allocated ones times fragmentation."""
    return memory.total * p["fragmentation"]


def _bytes_per_weight(
    group: Group, f: Features, p: Mapping[str, float], sharding: Sharding
) -> tuple[Floats, Floats, Floats, Floats]:
    """Bytes per parameter of a rank's stage, (n,): weights, gradients, optimizer, others' weights.

    Gradients that a pipeline reduces once a step are whole until then. The last are bytes of
    weights that the rank gathers from others.
    """
    stack, z = group.stack, f.zero_stage
    share = sharding.weights_share(z)
    wide = f.element_bytes * p["state_ratio"]
    gradients = gradient_bytes(group, f) * p["state_ratio"]
    whole = (z < 2) | ((f.pp > 1) & stack.reduces_late)
    gradients = gradients / np.where(whole, 1.0, sharding.state)
    # training in fp32 has no master copy: two moments of 4 bytes
    state = np.where(f.element_bytes > 2, 8.0, stack.master_bytes)
    state = np.where(f.short_states, 6.0, state)  # all three in 16 bits
    state = np.where(f.offload, 0.0, state)
    optimizer = state * p["state_ratio"] / sharding.updates
    return wide * share, gradients, optimizer, wide * np.maximum(1 - share, 0.0)


def _activations_of_layer(
    group: Group, f: Features, p: Mapping[str, float]
) -> tuple[Floats, Floats]:
    """Bytes a layer keeps for backward per micro-batch, and those that recomputing one adds, (n,).

    Calibrated constants (`kept_*`) are bytes per element in 16 bits, so wider elements scale them.
    """
    wide = f.element_bytes / 2
    without_scores = wide * f.tokens * _kept_per_token(group, f, p)
    if has_experts(f):
        without_scores = without_scores + wide * kept_expert_bytes(group, f, p)
    scores = f.micro_batch_size * f.num_heads / f.tp * f.seq_length * f.seq_length / f.cp
    per_score = p["kept_scores"] * (f.math * _KEPT_MATH + f.fused_softmax * _KEPT_FUSED)
    everything = without_scores + wide * per_score * scores * f.attentions
    # full checkpointing keeps the layer's input alone; selective leaves scores out
    layer_input = wide * 2 * f.tokens * f.hidden_size / np.where(f.sequence_parallel, f.tp, 1.0)
    kept = np.where(f.full, layer_input, np.where(f.selective, without_scores, everything))
    recomputed = np.where(f.full, everything, 0.0)
    return kept, recomputed + np.where(f.selective, everything - without_scores, 0.0)


def _kept_per_token(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """Bytes a layer keeps of a token, in 16 bits, without scores and routed experts, (n,).

    Gated models keep gate, up, activation and product, and rotated copies of q and k. A gpt keeps
    the activation's input and output, and rotates nothing: the 34 bytes of arXiv 2205.05198.
    Lean kernels fuse rotation with its copies and the gate with its activation. They keep only q,
    k, v and the output, and gate, up and product.
    """
    h, tp = f.hidden_size, f.tp
    attention_share = np.where(is_lean(group, f), 8 / 14, np.where(f.mlp_inputs > 1, 1.0, 0.7))
    saved = 2.0 - f.saved_bytes  # by keeping no GEMM's input
    attention = _KEPT_ATTENTION * p["kept_sharded"] * attention_share * f.attentions
    attention = attention * (f.query_width + f.kv_width) / 2 / tp
    ffn = (KEPT_MLP * p["kept_sharded"] * kept_of_ffn(group, f) - saved) * f.ffn_hidden_size / tp
    norms = p["kept_replicated"] + np.where(f.fused_norm, 0.0, _KEPT_UNFUSED) - 2 * saved
    norms = norms * h / np.where(f.sequence_parallel, tp, 1.0)
    gathered = p["late_release"] * _gpu_bound(group, f)
    return norms + attention + ffn + np.where(f.sequence_parallel & (tp > 1), gathered * h, 0.0)


def _gpu_bound(group: Group, f: Features) -> Floats:
    """0 to 1: whether the GPU, not the launching host, is the bottleneck of a layer.

    While the host is slower, blocks that a side stream used are free at once; otherwise torch's
    caching allocator releases them late (record_stream). 0.45 is a usual MFU. If tp groups span
    nodes, published peaks show less than this: short of memory, the allocator waits until blocks
    are free, and such steps are the ones that stall.
    """
    # half the NICs: rings of both directions share them
    bandwidth = np.where(f.tp > f.gpus_per_node, node_link(group) * 0.5, link(group.gpu, f.tp))
    math_s = 6 * f.tokens * multiplied_params(f) / f.tp / (f.peak * 0.45)
    gpu_s = math_s + 16 * f.tokens * f.hidden_size / bandwidth
    crossing = (f.pp > 1) & (f.world_size > f.gpus_per_node) & group.cluster.lossy_transport
    host_s = 3.3e-3 + np.where(crossing, 1.8e-3 * f.tp, 0.0)
    return 1 / (1 + (host_s / gpu_s) ** 4)
