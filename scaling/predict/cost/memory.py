"""Peak memory of a rank, term by term; the fullest pipeline stage decides."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.predict.cost import own_deepspeed, own_torch
from scaling.predict.cost.links import link, node_link
from scaling.predict.cost.own_layer import loss_memory
from scaling.predict.cost.own_memory import (
    TERMS,
    Held,
    Memory,
    Moment,
    Sizes,
    Stage,
    peak_of,
    stages_in,
)
from scaling.predict.cost.sharding import (
    Sharding,
    expert_sharding_of,
    gradient_bytes,
    sharding_of,
)
from scaling.predict.cost.stages import (
    ZBV,
    busiest_load,
    has_experts,
    head_params,
    held_expert_params,
    in_flight,
    layer_params,
    multiplied_params,
    stages_of,
)
from scaling.predict.read.features import Features, Group
from scaling.predict.read.stacks import own_framework

MEMORY_TERMS = tuple(f"{name}_bytes" for name in TERMS)

# The moments of a step by framework name, each with what the engine holds then.
ENGINES: Mapping[str, Callable[[Stage], list[Moment]]] = {
    own_framework("deepspeed"): own_deepspeed.moments_of,
    own_framework("torch"): own_torch.moments_of,
}

# Bytes that a layer keeps in 16 bits: per token, h / tp of q, k, v and output; per token, h more
# without a fused norm; per score of torch's and of a fused softmax; per token and element of a
# gated feed-forward's width; per copy of a token and h, inputs and outputs of the experts.
_KEPT_ATTENTION, _KEPT_UNFUSED, _KEPT_MATH, _KEPT_FUSED = 14.0, 16.0, 5.0, 4.0
_KEPT_MLP, _KEPT_ROUTED = 8.0, 4.0

# Share of the capacity that a recipe fills that recomputes until its model fits.
_FILLED = 0.95
# Share of the capacity up to which blocks that are released late count: a chance of 12 % to fit.
MOST_LATE = 1.1


def memory_of(group: Group, f: Features, p: Mapping[str, float], *, late: float = np.inf) -> Memory:
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

    Blocks that are released late exclude no layout alone: short of memory, the allocator waits
    until they are free. They fill no more than the share `late` of the capacity.
    """
    moments_of = ENGINES.get(group.stack.name)
    if moments_of is None or f.compile.all():
        return _modelled(group, f, p, late)
    moments = [moment for stage in stages_in(Sizes(group, f)) for moment in moments_of(stage)]
    counted = peak_of(moments, p["buffers_bytes"])
    if not f.compile.any():
        return counted
    modelled = _modelled(group, f, p, late)
    return Memory(
        np.where(f.compile, modelled.total, counted.total),
        {n: np.where(f.compile, modelled.terms[n], counted.terms[n]) for n in counted.terms},
        np.where(f.compile, modelled.phase, counted.phase),
    )


def _modelled(group: Group, f: Features, p: Mapping[str, float], late_share: float) -> Memory:
    """The fullest one of the first, the second and the last stage.

    The second holds more than the first where stages between have more layers. Tied vocabulary
    matrices are two where a pipeline parts them. In a V the first rank has the model's first and
    last chunk.
    """
    stages = stages_of(f, group.stack)
    state = _bytes_per_weight(group, f, p, sharding_of(group, f))
    expert_state = _bytes_per_weight(group, f, p, expert_sharding_of(group, f))
    expert_params = held_expert_params(f)
    kept, everything, late = _activations_of_layer(group, f, p)
    recomputed = np.where(f.full, everything, np.where(f.selective, everything - kept, 0.0))
    vocabulary = f.vocab_size if group.stack.gathered_logits else f.vocab_size / f.tp
    all_logits = p["kept_logits"] * f.tokens * vocabulary * f.element_bytes / 2
    if f.fused_cross_entropy.any():
        fused = loss_memory(f, f.tokens * f.vocab_size / f.tp, head_params(f) / f.tp)
        all_logits = np.where(f.fused_cross_entropy, np.maximum(*fused), all_logits)
    limit = group.capacity_bytes * late_share / p["fragmentation"] - p["buffers_bytes"]

    def held(layers: Floats, matrices: Floats, passes: Floats, has_head: Flags) -> Held:
        params = (layers * layer_params(f) + matrices * head_params(f)) / f.tp
        experts = layers * expert_params
        gathered = layer_params(f) / f.tp * np.minimum(layers * state[3], state[0] + state[3])
        gathered_experts = np.minimum(layers * expert_state[3], expert_state[0] + expert_state[3])
        whole = gathered + expert_params * gathered_experts
        # the loss is over when a layer is recomputed
        logits = has_head * all_logits
        recomputes = recomputed > logits
        without_late = Held(
            params * state[0] + experts * expert_state[0] + whole,
            params * state[1] + experts * expert_state[1],
            params * state[2] + experts * expert_state[2],
            layers * passes * kept + np.where(recomputes, recomputed, 0.0),
            np.where(recomputes, 0.0, logits),
        )
        late_passes = np.where(f.full, 1.0 * recomputes, layers * passes)
        room = np.maximum(limit - without_late.total, 0.0)
        return without_late.plus(np.minimum(late * late_passes, room))

    head = ~(stages.piped & (f.schedule < ZBV))  # on the first rank
    peak = peak_of(
        [
            (None, held(stages.first, np.where(head, f.embeddings, 1.0),
                in_flight(f, 0.0), head)),
            (None, held(stages.middle, 0.0 * f.pp, in_flight(f, 1.0), f.pp < 0)),
            (None, held(stages.last, 1.0 * ~head, in_flight(f, f.pp - 1), ~head)),
        ],
        p["buffers_bytes"],
    )  # fmt: skip
    return _recomputed_to_fit(group, f, p, peak) if f.recomputes.any() else peak


def _recomputed_to_fit(group: Group, f: Features, p: Mapping[str, float], memory: Memory) -> Memory:
    """The same where software recomputes as many layers or operators as it must, at most all.

    Publishers of such a row seldom state what was recomputed. Megatron-Core begins with norms,
    activations and up projections, whose second forward costs little time.
    """
    nothing = np.zeros(len(f), dtype=bool)
    all_of_it = f.but(full=~nothing, selective=nothing, recomputes=nothing)
    least = _modelled(group, all_of_it, p, np.inf)
    room = np.maximum(group.capacity_bytes * _FILLED / p["fragmentation"], least.total)
    activations = memory.terms["activations_bytes"]
    saved = np.where(f.recomputes, np.clip(memory.total - room, 0.0, activations), 0.0)
    terms = {**memory.terms, "activations_bytes": activations - saved}
    return Memory(memory.total - saved, terms, memory.phase)


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
    return dataclasses.replace(memory, total=total, terms=terms)


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
) -> tuple[Floats, Floats, Floats]:
    """Bytes of a layer and micro-batch, (n,): kept for backward, all, and those released late.

    Calibrated constants (`kept_*`) are bytes per element in 16 bits, so wider elements scale them.
    Gated models keep gate, up, activation and product, and rotated copies of q and k. A gpt keeps
    the activation's input and output, and rotates nothing: the 34 bytes of arXiv 2205.05198.
    Lean kernels, the software's or Inductor's, fuse rotation with its copies and the gate with its
    activation. They keep only q, k, v and the output, and gate, up and product. The same is kept of
    an expert's width for each copy of a token that it gets.
    """
    h, tp = f.hidden_size, np.where(f.sequence_parallel, f.tp, 1.0)
    lean, gated = f.compile | group.stack.lean_kernels, f.mlp_inputs > 1
    saved = 2.0 - f.saved_bytes  # by keeping no GEMM's input
    attention = _KEPT_ATTENTION * np.where(lean, 8 / 14, np.where(gated, 1.0, 0.7)) * f.attentions
    attention = attention * p["kept_sharded"] * (f.query_width + f.kv_width) / 2 / f.tp
    of_width = np.where(gated, np.where(lean, 0.75, 1.0), 0.5) * _KEPT_MLP * p["kept_sharded"]
    norms = p["kept_replicated"] + np.where(f.fused_norm, 0.0, _KEPT_UNFUSED) - 2 * saved
    kept = norms * h / tp + attention + (of_width - saved) * f.ffn_hidden_size / f.tp
    if has_experts(f):
        copies = f.experts_per_token / f.tp * busiest_load(f)
        routed = copies * (_KEPT_ROUTED * h * f.etp + of_width * f.expert_ffn)
        kept = kept + f.expert_share * routed
    tokens = f.tokens * f.element_bytes / 2
    scores = f.micro_batch_size * f.num_heads / f.tp * f.seq_length * f.seq_length / f.cp
    per_score = p["kept_scores"] * (f.math * _KEPT_MATH + f.fused_softmax * _KEPT_FUSED)
    everything = tokens * kept + f.element_bytes / 2 * per_score * scores * f.attentions
    # full checkpointing keeps the layer's input alone; selective leaves scores out
    kept = np.where(f.selective, tokens * kept, everything)
    late = p["late_release"] * (f.sequence_parallel & (f.tp > 1)) * _gpu_bound(group, f)
    return np.where(f.full, tokens * 2 * h / tp, kept), everything, tokens * late * h


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
