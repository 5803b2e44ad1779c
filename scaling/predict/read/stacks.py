"""Facts about training software that need no measurement, and how a framework finds its entry."""

import re
from dataclasses import replace
from functools import cache
from typing import Any

from scaling.cluster.hardware import Generation, Gpu
from scaling.predict.read.stack_facts import Stack

# Megatron-Core as its recipes have run it since 2024: distributed optimizer, bf16 gradients
# (grad_reduce_in_fp32 off), sequence parallelism, ring attention, cuDNN kernels, overlapped tp, dp
# and pp traffic (user buffers), 8-bit weights held in 8 bits (fp8_param_gather), and one kernel
# that dispatches tokens to experts (DeepEP, HybridEP).
_MEGATRON_CORE = Stack(
    name="Megatron-Core",
    gradient_bytes=2.0,
    split="even_or_ends",
    fused_norms=True,
    scattered_messages=True,
    newest_flash=True,
    lean_kernels=True,
    low_precision_weights=True,
    zero_stage=1,
    sequence_parallel=True,
    ring=True,
    tokens_once_a_node=True,
    recomputes_modules=True,
    defaults={
        "host_layer_s": 1.2e-3,
        "tp_exposed": 0.15,
        "dp_exposed": 0.25,
        # an expert's output is not kept: its weight multiplies the activation before it
        "kept_routed": 2.0,
    },
    source="Megatron-Core's recipes since 2024",
)


def _megatron(name: str, *, source: str, **facts: Any) -> Stack:
    """Megatron-Core under another name, with the facts in which it differs."""
    defaults = {**_MEGATRON_CORE.defaults, **facts.pop("defaults", {})}
    return replace(_MEGATRON_CORE, name=name, source=source, defaults=defaults, **facts)


# This project's own engines, matched by their whole names.
OWN_STACKS = {
    stack.name: stack
    for stack in (
        Stack(
            name="scaling",
            gradient_bytes=2.0,
            split="slowest_least",
            scattered_messages=True,
            deals_bf16_pipelines=True,  # BF16_Optimizer
            second_copy=True,
            casts_as_read=True,
            keeps_gathered=True,
            waits_without_ep=False,
            splits_backward=False,
            all_reduces_gradients=True,  # use_multi_rank_bucket_allreduce
            reduces_late=True,  # overlap_comm: from ZeRO-1 on, and not in a pipeline
            # besides the engine's own tensors, which scaling/predict/cost/own_memory.py counts
            defaults={"buffers_bytes": 0.3e9},
            source="scaling/train: DeepSpeed 0.19 with its defaults, pipe_partitioned messages",
        ),
        Stack(
            name="scaling torch",
            gradient_bytes=2.0,
            casts_as_read=True,
            keeps_gathered=True,
            waits_without_ep=False,
            split="slowest_least",
            reduces_late=True,
            hides_without_zero=True,
            # HSDP has no second copy and FSDP2 no buckets: two layers are gathered at a time
            defaults={"kept_logits": 12.0},
            source="scaling/train/engines/torch: FSDP2 of torch 2.13, gradients reduced in bf16",
        ),
    )
}

# Software of unknown name is assumed to be as old as the GPUs it runs on.
_EARLY: tuple[Generation, ...] = ("volta", "ampere", "cdna2")
_MODERN: tuple[Generation, ...] = ("ada", "hopper", "blackwell", "cdna3", "cdna4")

# First, for names that match no other entry, one entry for each era of GPUs; then known software.
# Defaults were set with published rows of that software in sight, and entries with only one file
# behind them are no better than that: benchmarks/held_out.py measures the cost of predicting each
# file without its own entry.
STACKS = (
    Stack(
        name="",
        generations=_EARLY,
        source="assumed: DeepSpeed or Megatron-LM with fp32 gradient accumulation, 1F1B",
    ),
    _megatron(
        "",
        generations=_MODERN,
        also=("Megatron-DeepSpeed",),
        virtual_stages=2,
        # between Megatron-Core and software that hides half of its traffic: what other software of
        # these GPUs hides is not known, and rows that hide more are off by 1 to 3 %
        defaults={"tp_exposed": 0.3, "dp_exposed": 0.4},
        source="assumed: fused kernels, 16-bit gradients and overlap, as published software for "
        "Hopper and later has them: NeMo, MLPerf's, Megatron-Bridge, Paxml, Automodel",
    ),
    Stack(
        name="Aleph Alpha",
        gradient_bytes=2.0,
        gathered_logits=True,
        # its GEMMs reach 230 TFLOP/s on an A100, those of others 250; its norms are its own; its
        # loss holds each rank's logits and the gathered ones, their fp32 copy, softmax and both
        # gradients: 2 + 2 + 4 + 4 + 4 + 4 + 2 bytes
        defaults={
            "gemm_efficiency": 0.74,
            "norm_passes_fused": 45.0,
            "norm_passes": 190.0,
            "kept_logits": 22.0,
        },
        source="arXiv 2311.05610: bf16 gradients fit 13B on one GPU (tp1 pp1), fp32 would not",
    ),
    Stack(
        name="nanotron",
        layer_messages=True,
        stalls_without_zero=True,
        split="by_cost",
        peak_of_first_rank=True,
        fused_norms=True,
        # fp32 gradients are reduced after the last micro-batch, where nothing hides them;
        # tensor-parallel linears communicate asynchronously and keep what they gathered
        defaults={
            "dp_exposed": 0.95,
            "host_layer_s": 3.0e-3,
            "tp_exposed": 0.5,
            "kept_gathered": 1.0,
            "late_release": 4.0,
            "tp_latency_s": 1e-4,
            "gemm_half_size": 120.0,
            "flash2_efficiency": 0.35,
        },
        source="nanotron: fp32 gradients, blocks dealt by cost, TritonRMSNorm, no overlap",
    ),
    Stack(
        name="Megatron-DeepSpeed",
        generations=_EARLY,
        gradient_bytes=2.0,
        softmax_rule=True,
        node_link_gbit_per_s=800.0,
        source="Megatron's FusedScaleMaskSoftmax; vTrain (MICRO'24): 4 x 200 Gb/s a node",
    ),
    Stack(
        name="Megatron-LM",
        generations=_EARLY,
        softmax_rule=True,
        fused_norms=True,
        scattered_messages=True,
        virtual_stages=2,
        source="arXiv 2104.04473: fused kernels, interleaved schedule; 2 chunks are an assumption",
    ),
    _megatron(
        "Megatron-Core",
        also=("mcore", "Primus", "Megatron"),  # Megatron-LM is built on it since 2023
        virtual_stages=4,
        source="Megatron-LM README: tp, dp and pp traffic overlapped; 4 chunks are an assumption",
    ),
    _megatron(
        "Megatron-Core MoE",
        defaults={"ep_exposed": 0.45},
        source="Megatron-Core's model zoo of experts: recipes that overlap all-to-alls",
    ),
    _megatron(
        "NeMo",
        also=("MLPerf",),
        virtual_stages=6,
        source="MLPerf Training v3.1 GPT-3: interleaved schedule (6 chunks), user-buffer overlap; "
        "v4.1, v5.0: configurations with FP8_PARAMS",
    ),
    _megatron(
        "Megatron-Bridge",
        source="Megatron-Bridge performance recipes: fp8_param_gather, grad_reduce_in_fp32 off",
    ),
    _megatron(
        "Megatron-Bridge",
        since="26.06",
        generations=("blackwell",),
        defaults={"ep_exposed": 0.34, "host_waits_s": 0.1e-3, "expert_half_size": 300.0},
        source="as before; on GB200 equal layouts with experts are 1.17 to 1.56 times as fast, the "
        "more the narrower the experts are (2048, 1536, 768); on H100 no faster",
    ),
    Stack(
        name="Automodel",
        gradient_bytes=2.0,
        master_bytes=8.0,
        fused_norms=True,
        newest_flash=True,
        lean_kernels=True,
        zero_stage=3,
        tokens_once_a_node=True,
        recomputes_modules=True,
        defaults={"host_layer_s": 1.2e-3},
        # bf16 parameters without an fp32 copy: otherwise its 30B would not fit on 8 GPUs
        source="NeMo Automodel: FSDP2, Transformer Engine, DeepEP",
    ),
    Stack(
        name="JAX",
        also=("Pax", "Paxml", "MaxText", "Levanter", "T5X"),
        fused_norms=True,
        newest_flash=True,
        lean_kernels=True,
        zero_stage=3,
        source="JAX: XLA fuses element-wise operators, cuDNN attention, fsdp axis by default",
    ),
    Stack(
        name="torchtitan",
        # weights are fp32 shards, whose bf16 copy lives for one layer
        master_bytes=10.0,
        zero_3_gradient_bytes=4.0,
        zero_stage=3,
        sequence_parallel=True,
        selective_share=0.5,
        # torch's stages reduce gradients after a step's last backward, and add them up in fp32
        reduces_late=True,
        hides_without_zero=True,
        keeps_weights_in_pipelines=True,
        also=("torch titan",),
        source="torchtitan: FSDP2, fp32 shards and reductions; selective checkpointing recomputes "
        "every second matrix product (or layer); fsdp_reshard_after_forward, by default, is off "
        "with a pipeline",
    ),
    Stack(
        name="llm-foundry",
        zero_stage=3,
        gradient_bytes=2.0,
        lean_kernels=True,
        fused_norms=True,
        # rows of 16k tokens and more run as slowly as FlashAttention 1 in triton; the loss keeps
        # bf16 logits, their shifted copy and their gradient
        defaults={"flash2_efficiency": 0.33, "norm_passes_fused": 45.0, "kept_logits": 6.0},
        source="llm-foundry: low-precision LayerNorm, FSDP with mixed_precision PURE",
    ),
    Stack(
        name="DeepSpeed ZeRO-3",
        generations=_EARLY,
        gradient_bytes=2.0,
        defaults={"zero3_exposed": 0.3, "network_efficiency": 0.10},
        source="arXiv 2104.04473, table 2: as slow at 1,536 GPUs as at 768, so gathers decide",
    ),
)

_RELEASE = re.compile(r"(?<![\d.])\d\d\.\d\d(\.\d+)?(?!\d|\.\d)")


@cache
def with_release(framework: str, release: str) -> str:
    """The framework's name plus the latest release, up to `release`, at which its facts changed.

    The name alone if no such release is known, or if it states one. Releases sort as text
    (26.02.01, 26.04, 26.06).
    """
    stated = _RELEASE.search(release)
    if stated is None or _RELEASE.search(framework):
        return framework
    since = [
        stack.since
        for stack in STACKS
        if stack.since and stack.since <= stated[0] and _match_length(stack, framework) >= 0
    ]
    return f"{framework} {max(since)}" if since else framework


def stack_of(framework: str, gpu: Gpu | None, *, unfused: bool = False) -> Stack:
    """The entry of a framework on this GPU.

    Of the entries for this GPU's generation, the one with the longest name whose words occur in
    `framework`, ignoring case and separators; of these, the latest that is not newer than the
    release in the name. A name without an entry gets the software usual for its generation of GPUs.

    Args:
        framework: name, with a release if its facts depend on it.
        gpu: None if unknown; then taken as an A100.
        unfused: a table shows its norms to be chains of operators, as on A100.
    """
    generation = None if unfused or gpu is None else gpu.generation
    return _stack_of(framework, generation or "ampere")


@cache
def _stack_of(framework: str, generation: Generation) -> Stack:
    if framework in OWN_STACKS:
        return OWN_STACKS[framework]
    stated = _RELEASE.search(framework)
    release = stated[0] if stated else ""
    fitting = [
        stack
        for stack in STACKS
        if generation in (stack.generations or (generation,))
        and stack.since <= release
        and _match_length(stack, framework) >= 0
    ]
    return max(fitting, key=lambda stack: (_match_length(stack, framework), stack.since))


def named_zero_stage(framework: str) -> int | None:
    """The ZeRO stage in a framework's name: 3 of `DeepSpeed ZeRO-3` and of `PyTorch FSDP2`."""
    name = framework.lower()
    if stated := re.search(r"zero[\W_]*([0-3])", name):
        return int(stated[1])
    return 3 if re.search(r"(?<![a-z])fsdp", name) else None


def _match_length(stack: Stack, framework: str) -> int:
    """Length of the longest of an entry's names found in the framework's, -1 if none is."""
    return max((len(n) for n in (stack.name, *stack.also) if _is_in(n, framework)), default=-1)


def _is_in(name: str, framework: str) -> bool:
    words = r"[\W_]*".join(re.findall("[a-z0-9]+", name.lower()))
    return not words or bool(re.search(rf"(?<![a-z]){words}(?![a-z])", framework.lower()))
