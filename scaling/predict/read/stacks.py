"""What is known about training software without measuring it: facts, and the defaults they move."""

from collections.abc import Mapping
from types import MappingProxyType

from scaling.predict.read.stack_facts import Stack


def _megatron(
    prefix: str,
    *,
    gradient_bytes: float = 2.0,
    virtual_stages: int = 1,
    low_precision_weights: bool = False,
    defaults: Mapping[str, float] = MappingProxyType({}),
    source: str,
) -> Stack:
    """Megatron-Core as its recipes of 2024 and later run it.

    Distributed optimizer, bf16 gradients (grad_reduce_in_fp32 off), sequence parallelism, ring
    attention, cuDNN kernels, and tp, dp and pp traffic overlapped (user buffers); one kernel sends
    tokens to experts (DeepEP, HybridEP).
    """
    return Stack(
        prefix=prefix,
        gradient_bytes=gradient_bytes,
        split="even_or_ends",
        fused_norms=True,
        scattered_messages=True,
        newest_flash=True,
        lean_kernels=True,
        low_precision_weights=low_precision_weights,
        zero_stage=1,
        sequence_parallel=True,
        ring=True,
        virtual_stages=virtual_stages,
        tokens_once_a_node=True,
        recomputes_modules=True,
        defaults=MappingProxyType(
            {
                "host_layer_s": 1.2e-3,
                "tp_exposed": 0.15,
                "dp_exposed": 0.25,
                "ep_message_s": 0.2e-6,
                **defaults,
            }
        ),
        source=source,
    )


# A name that no prefix fits gets the first entry: a plain fp32-gradient, 1F1B, overlapped stack.
STACKS = (
    Stack(prefix="", source="assumed: DeepSpeed or Megatron-Core with fp32 gradient accumulation"),
    Stack(
        prefix="scaling",
        gradient_bytes=2.0,
        split="slowest_least",
        scattered_messages=True,
        second_copy=True,
        casts_as_read=True,
        reduces_late=True,  # overlap_comm: from ZeRO-1 on, and not in a pipeline
        # beyond the engine's own tensors, which scaling/predict/cost/own_memory.py counts
        defaults=MappingProxyType({"buffers_bytes": 0.3e9}),
        source="scaling/train: DeepSpeed 0.19 with its defaults, pipe_partitioned messages",
    ),
    Stack(
        prefix="scaling torch",
        gradient_bytes=2.0,
        casts_as_read=True,
        split="slowest_least",
        reduces_late=True,
        hides_without_zero=True,
        # HSDP has no second copy, FSDP2 no buckets: what is gathered is that of two layers
        defaults=MappingProxyType({"kept_logits": 12.0}),
        source="scaling/train/engines/torch: FSDP2 of torch 2.13, gradients reduced in bf16",
    ),
    Stack(
        prefix="Aleph Alpha",
        gradient_bytes=2.0,
        gathered_logits=True,
        # its GEMMs reach 230 TFLOP/s on an A100 where others' reach 250; norms of its own; the loss
        # holds each rank's logits and the gathered ones, their fp32 copy, softmax and both
        # gradients: 2 + 2 + 4 + 4 + 4 + 4 + 2 bytes
        defaults=MappingProxyType(
            {
                "gemm_efficiency": 0.74,
                "norm_passes_fused": 45.0,
                "norm_passes": 190.0,
                "kept_logits": 22.0,
            }
        ),
        source="arXiv 2311.05610: bf16 gradients fit 13B on one GPU (tp1 pp1), fp32 would not",
    ),
    Stack(
        prefix="nanotron",
        layer_messages=True,
        stalls_without_zero=True,
        split="by_cost",
        peak_of_first_rank=True,
        fused_norms=True,
        # fp32 gradients are reduced after the last micro-batch, nothing hides them
        # its tensor-parallel linears communicate asynchronously, and keep what they gathered
        defaults=MappingProxyType(
            {
                "dp_exposed": 0.95,
                "host_layer_s": 3.0e-3,
                "tp_exposed": 0.5,
                "kept_gathered": 1.0,
                "late_release": 4.0,
                "tp_latency_s": 1e-4,
                "gemm_half_size": 120.0,
                "flash2_efficiency": 0.35,
                "host_sharpness": 6.0,
            }
        ),
        source="nanotron: fp32 gradients, blocks dealt by cost, TritonRMSNorm, no overlap",
    ),
    Stack(
        prefix="Megatron-DeepSpeed",
        gradient_bytes=2.0,
        softmax_rule=True,
        node_link_gbit_per_s=800.0,
        source="Megatron's FusedScaleMaskSoftmax; vTrain (MICRO'24): 4 x 200 Gb/s a node",
    ),
    _megatron(
        "Megatron-Core",
        gradient_bytes=4.0,
        virtual_stages=4,
        source="Megatron-LM README: tp, dp and pp traffic overlapped; 4 chunks are an assumption",
    ),
    Stack(
        prefix="Megatron-LM",
        softmax_rule=True,
        fused_norms=True,
        scattered_messages=True,
        virtual_stages=2,
        source="arXiv 2104.04473: fused kernels, interleaved schedule; 2 chunks are an assumption",
    ),
    _megatron(
        "NeMo",
        virtual_stages=6,
        source="MLPerf Training v3.1 GPT-3: interleaved schedule (6 chunks), user-buffer overlap",
    ),
    _megatron(
        "NeMo (MLPerf",
        virtual_stages=6,
        low_precision_weights=True,
        source="MLPerf Training v4.1, v5.0: configurations with FP8_PARAMS",
    ),
    _megatron(
        "Megatron-Bridge",
        low_precision_weights=True,
        source="Megatron-Bridge performance recipes: fp8_param_gather, grad_reduce_in_fp32 off",
    ),
    _megatron(
        "Megatron-Bridge 26.06",
        low_precision_weights=True,
        defaults=MappingProxyType({"ep_exposed": 0.3, "host_waits_s": 0.1e-3}),
        source="as before; on equal layouts its rows with experts are 1.2 to 1.6 times as fast, by "
        "about as much as the bytes of their all-to-alls",
    ),
    *(
        Stack(
            prefix=prefix,
            gradient_bytes=2.0,
            master_bytes=8.0,
            fused_norms=True,
            newest_flash=True,
            lean_kernels=True,
            zero_stage=3,
            tokens_once_a_node=True,
            recomputes_modules=True,
            defaults=MappingProxyType({"host_layer_s": 1.2e-3, "ep_message_s": 0.2e-6}),
            # bf16 parameters without a copy in fp32: its 30B on 8 GPUs would not fit otherwise
            source="NeMo Automodel: FSDP2, Transformer Engine, DeepEP",
        )
        for prefix in ("Automodel", "NeMo Automodel")
    ),
    _megatron(
        "Megatron-Core (MoE",
        defaults=MappingProxyType({"ep_exposed": 0.4}),
        source="Megatron-Core's model zoo of experts: recipes that overlap all-to-alls",
    ),
    *(
        Stack(
            prefix=prefix,
            fused_norms=True,
            newest_flash=True,
            lean_kernels=True,
            zero_stage=3,
            # XLA launches a compiled step
            defaults=MappingProxyType({"host_layer_s": 0.4e-3}),
            source="JAX: XLA fuses element-wise operators, cuDNN attention, fsdp axis by default",
        )
        for prefix in ("Paxml", "MaxText", "JAX")
    ),
    Stack(
        prefix="torchtitan",
        # its weights are fp32 shards, their copy in bf16 lives for a layer
        master_bytes=10.0,
        zero_stage=3,
        sequence_parallel=True,
        selective_share=0.5,
        source="torchtitan: FSDP2, fp32 shards and reductions; selective checkpointing recomputes "
        "every second matrix product (or layer)",
    ),
    Stack(
        prefix="llm-foundry",
        gradient_bytes=2.0,
        lean_kernels=True,
        fused_norms=True,
        # its rows of 16k tokens and more run as slowly as FlashAttention 1 in triton does
        # and its loss keeps bf16 logits, their shifted copy and their gradient
        defaults=MappingProxyType(
            {"flash2_efficiency": 0.33, "norm_passes_fused": 45.0, "kept_logits": 6.0}
        ),
        source="llm-foundry: low-precision LayerNorm, FSDP with mixed_precision PURE",
    ),
    Stack(
        prefix="DeepSpeed ZeRO-3",
        gradient_bytes=2.0,
        defaults=MappingProxyType({"zero3_exposed": 0.3, "network_efficiency": 0.10}),
        source="arXiv 2104.04473, table 2: as slow at 1,536 GPUs as at 768, so gathers decide",
    ),
)


def with_release(framework: str, release: str) -> str:
    """A framework's name with the release from which its facts differ, if `release` is no older.

    Entries of STACKS whose prefix is a framework's name and a release say so; releases sort as text
    (26.02.01, 26.04, 26.06).
    """
    name = f"{framework} ".lower()
    since = [
        stack.prefix
        for stack in STACKS
        if stack.prefix.lower().startswith(name)
        and stack.prefix.lower().removeprefix(name) <= release
    ]
    return max(since, default=framework)


def stack_of(framework: str) -> Stack:
    """The longest prefix that fits the name, whatever its case; the plain stack if none does."""
    name = framework.lower()
    fitting = [stack for stack in STACKS if name.startswith(stack.prefix.lower())]
    return max(fitting, key=lambda stack: len(stack.prefix))
