"""Facts about training software that need no measurement, and how a framework finds its entry."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from scaling.cluster.hardware import Generation, Gpu
from scaling.layout.axes import DEFAULTS

SplitRule = Literal["even", "by_cost", "slowest_least"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Facts about one framework, never fitted numbers."""

    name: str  # found in the framework's name
    also: tuple[str, ...] = ()  # or one of these
    generations: tuple[Generation, ...] = ()  # GPUs on which it holds, all if empty
    source: str

    # memory, bytes per parameter; master: the fp32 copy and two Adam moments
    gradient_bytes: float = 4.0
    master_bytes: float = 12.0
    casts_as_read: bool = False  # fp8 operands are cast for each product, all is saved in 16 bits
    deals_bf16_pipelines: bool = False  # optimizer state over all replicas, also without ZeRO
    second_copy: bool = False  # zero_shard_size adds a copy of ZeRO-3's weights (sharding.py)
    lean_kernels: bool = False  # fused kernels save only what backward reads (memory.py)
    recomputes_modules: bool = False  # its recipes recompute single modules or layers to fit memory

    # kernels
    fused_norms: bool = False  # norms are one kernel whatever a column says
    newest_flash: bool = False  # "flash" means cuDNN's attention or FlashAttention 3

    # pipelines and communication
    split: SplitRule = "even"  # of layers over pipeline stages (stages.py)
    gathered_logits: bool = False  # the loss sees the whole vocabulary on every tp rank
    # of schedules that can: weights' gradients are computed after those of activations
    splits_backward: bool = True
    # a token goes once to each node with experts it needs and is forwarded there (DeepEP, HybridEP)
    tokens_once_a_node: bool = False
    # gradients of a pipeline, or without ZeRO, are reduced after the last backward, in the open
    reduces_late: bool = False
    all_reduces_gradients: bool = False  # at zero_stage 1 and 2, where a scatter would do
    # but not without ZeRO and pipelines
    hides_without_zero: bool = False
    # the host's work on a layer's hooks under ZeRO-3, over that to launch the layer's kernels
    zero_3_hooks: float = 0.0

    node_link_gbit_per_s: float | None = None  # overrides the cluster's NICs, by the source

    # choices where a table does not state them
    zero_stage: int = 0
    sequence_parallel: bool = False
    ring: bool = False  # cp passes keys and values around
    defaults: Mapping[str, float] = field(default_factory=dict)  # of parameters (parameters.py)


# Framework of this project's default engine, and of rows that state neither framework nor source.
OWN_FRAMEWORK = "scaling"
# Framework of other people's rows that do not state theirs.
UNNAMED_FRAMEWORK = "unnamed"

# This project's own engines, matched by their whole names.
OWN_STACKS = {
    stack.name: stack
    for stack in (
        Stack(
            name="scaling",
            gradient_bytes=2.0,
            fused_norms=True,
            split="slowest_least",
            deals_bf16_pipelines=True,  # BF16_Optimizer
            second_copy=True,
            casts_as_read=True,
            splits_backward=False,
            all_reduces_gradients=True,  # use_multi_rank_bucket_allreduce
            reduces_late=True,  # overlap_comm: from ZeRO-1 on, and not in a pipeline
            # a step on an H100 waited for 5.5, with 5,500 Python calls a layer and micro-batch;
            # today there are 2,900 (tests/train/test_host_work.py)
            zero_3_hooks=2.8,
            # besides the engine's own tensors, which scaling/predict/cost/own_memory.py counts
            defaults={"buffers_bytes": 0.3e9},
            source="scaling/train: DeepSpeed 0.19 with its defaults, pipe_partitioned messages",
        ),
        Stack(
            name="scaling torch",
            gradient_bytes=2.0,
            fused_norms=True,
            casts_as_read=True,
            split="slowest_least",
            reduces_late=True,
            hides_without_zero=True,
            zero_3_hooks=1.3,  # measured on an H100
            # HSDP has no second copy and FSDP2 no buckets: two layers are gathered at a time
            defaults={"buffers_bytes": 0.3e9, "kept_logits": 12.0},
            source="scaling/train/engines/torch: FSDP2 of torch 2.13, gradients reduced in bf16",
        ),
    )
}

_EARLY: tuple[Generation, ...] = ("volta", "ampere", "cdna2")

# First, for names that match no other entry, what is usual; then known software.
STACKS = (
    Stack(
        name="",
        gradient_bytes=2.0,
        newest_flash=True,
        sequence_parallel=True,
        zero_stage=1,
        tokens_once_a_node=True,
        recomputes_modules=True,
        # the centre of what whole tables of others ask for, each fitted as unknown software
        defaults={
            "gemm_efficiency": 0.74,
            "flash2_efficiency": 0.44,
            "norm_passes_fused": 36.0,
            "tp_exposed": 0.5,
            "dp_exposed": 0.5,
        },
        source="assumed: 16-bit gradients, half of the traffic hidden, between the stacks below",
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
        split="by_cost",
        fused_norms=True,
        # its rows ask for slower GEMMs; tensor-parallel linears communicate asynchronously and keep
        # what they gathered
        defaults={
            "gemm_efficiency": 0.72,
            "dp_exposed": 0.95,
            "host_layer_s": 3.0e-3,
            "tp_exposed": 0.5,
            "late_release": 4.0,
            "gemm_half_size": 120.0,
            "flash2_efficiency": 0.35,
        },
        source="nanotron: fp32 gradients, blocks dealt by cost, TritonRMSNorm, no overlap",
    ),
    Stack(
        name="Megatron-DeepSpeed",
        generations=_EARLY,
        gradient_bytes=2.0,
        node_link_gbit_per_s=800.0,
        source="Megatron's FusedScaleMaskSoftmax; vTrain (MICRO'24): 4 x 200 Gb/s a node",
    ),
    Stack(
        name="Megatron-LM",
        generations=_EARLY,
        fused_norms=True,
        source="arXiv 2104.04473: fused kernels",
    ),
    # As its recipes have run it since 2024. They have the distributed optimizer, bf16 gradients,
    # sequence parallelism, ring attention and cuDNN kernels. Traffic of tp, dp and pp overlaps
    # (user buffers), and one kernel dispatches tokens to experts (DeepEP, HybridEP).
    Stack(
        name="Megatron-Core",
        also=("mcore", "Primus", "Megatron", "NeMo", "MLPerf", "Megatron-Bridge"),
        gradient_bytes=2.0,
        fused_norms=True,
        lean_kernels=True,
        newest_flash=True,
        zero_stage=1,
        sequence_parallel=True,
        ring=True,
        tokens_once_a_node=True,
        recomputes_modules=True,
        defaults={"host_layer_s": 1.2e-3, "tp_exposed": 0.15, "dp_exposed": 0.25},
        source="Megatron-Core's, NeMo's and Megatron-Bridge's recipes since 2024",
    ),
    Stack(
        name="Automodel",
        gradient_bytes=2.0,
        master_bytes=8.0,
        fused_norms=True,
        lean_kernels=True,
        newest_flash=True,
        zero_stage=3,
        tokens_once_a_node=True,
        recomputes_modules=True,
        defaults={"host_layer_s": 1.2e-3},
        # bf16 parameters without an fp32 copy: otherwise its 30B would not fit on 8 GPUs
        source="NeMo Automodel: FSDP2, Transformer Engine, DeepEP",
    ),
    Stack(
        name="torchtitan",
        # weights are fp32 shards, whose bf16 copy lives for one layer
        master_bytes=10.0,
        zero_stage=3,
        sequence_parallel=True,
        # torch's stages reduce gradients after a step's last backward, and add them up in fp32
        reduces_late=True,
        hides_without_zero=True,
        source="torchtitan: FSDP2, fp32 shards and reductions",
    ),
    Stack(
        name="llm-foundry",
        zero_stage=3,
        gradient_bytes=2.0,
        fused_norms=True,
        lean_kernels=True,
        # rows of 16k tokens and more run as slowly as FlashAttention 1 in triton; the loss keeps
        # bf16 logits, their shifted copy and their gradient
        defaults={"flash2_efficiency": 0.33, "norm_passes_fused": 45.0, "kept_logits": 6.0},
        source="llm-foundry: low-precision LayerNorm, FSDP with mixed_precision PURE",
    ),
)


def own_framework(engine: str) -> str:
    """The framework name of an engine of this project."""
    return OWN_FRAMEWORK if engine == DEFAULTS["engine"] else f"{OWN_FRAMEWORK} {engine}"


def stack_of(framework: str, gpu: Gpu | None) -> Stack:
    """The entry of a framework on this GPU.

    The entry for the GPU's generation, the one with the longest name whose words occur in
    `framework`, ignoring case and separators; for a name without an entry the first one.
    """
    return _stack_of(framework, None if gpu is None else gpu.generation)


@cache
def _stack_of(framework: str, generation: Generation | None) -> Stack:
    if framework in OWN_STACKS:
        return OWN_STACKS[framework]
    fitting = [
        stack
        for stack in STACKS
        if generation is None or generation in (stack.generations or (generation,))
    ]
    return max(fitting, key=lambda stack: _match_length(stack, framework))


def _match_length(stack: Stack, framework: str) -> int:
    """Length of the longest of an entry's names found in the framework's, -1 if none is."""
    return max((len(n) for n in (stack.name, *stack.also) if _is_in(n, framework)), default=-1)


def _is_in(name: str, framework: str) -> bool:
    words = r"[\W_]*".join(re.findall("[a-z0-9]+", name.lower()))
    return not words or bool(re.search(rf"(?<![a-z]){words}(?![a-z])", framework.lower()))
