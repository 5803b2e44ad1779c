"""What is known about training software without measuring it: facts, and the defaults they move."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

SplitRule = Literal["even", "by_cost", "slowest_least"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Facts about one framework that change bytes or traffic, never a fitted number.

    `prefix` is how the framework's name starts. `gradient_bytes` and `master_bytes` are per
    parameter (master: the fp32 copy and two Adam moments). `gathered_logits`: the loss sees the
    whole vocabulary on every tp rank. `split`: how layers are dealt to pipeline stages (stages.py).
    `softmax_rule`: Megatron's fused softmax runs instead of torch's when micro_batch_size * heads /
    tp is a multiple of 4. `virtual_stages`: model chunks a rank holds (interleaved 1F1B).
    `node_link_gbit_per_s` overrides the cluster's NICs where the source says so.
    `scattered_messages`: stages exchange 1 / tp of the activations and gather them inside the node
    (arXiv 2104.04473, section 4.1). `fused_norms`: norms are one kernel whatever a column says.
    `second_copy`: zero_shard_size adds a copy of ZeRO-3's weights instead of sharding the state
    over fewer ranks (sharding.py).
    `stalls_without_zero`: its pipelines stall over a lossy transport with zero_stage 0 (risk.py).
    `peak_of_first_rank`: published peak memory is that of rank 0, not the largest.
    `reduces_late`: gradients of a pipeline, and without ZeRO, are reduced after the last backward,
    where nothing hides them.
    `defaults` moves a parameter's default; `default_reasons` says why, in the same keys.
    """

    prefix: str
    gradient_bytes: float = 4.0
    master_bytes: float = 12.0
    gathered_logits: bool = False
    split: SplitRule = "even"
    softmax_rule: bool = False
    virtual_stages: int = 1
    node_link_gbit_per_s: float | None = None
    peak_of_first_rank: bool = False
    fused_norms: bool = False
    scattered_messages: bool = False
    stalls_without_zero: bool = False
    second_copy: bool = False
    reduces_late: bool = False
    defaults: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    source: str


# A name that no prefix fits gets the first entry: a plain fp32-gradient, 1F1B, overlapped stack.
STACKS = (
    Stack(prefix="", source="assumed: DeepSpeed or Megatron-Core with fp32 gradient accumulation"),
    Stack(
        prefix="scaling",
        gradient_bytes=2.0,
        split="slowest_least",
        scattered_messages=True,
        second_copy=True,
        reduces_late=True,  # overlap_comm: from ZeRO-1 on, and not in a pipeline
        # beyond the engine's own tensors, which scaling/predict/cost/own_memory.py counts
        defaults=MappingProxyType({"buffers_bytes": 0.3e9}),
        source="scaling/train: DeepSpeed 0.19 with its defaults, pipe_partitioned messages",
    ),
    Stack(
        prefix="Aleph Alpha",
        gradient_bytes=2.0,
        gathered_logits=True,
        source="arXiv 2311.05610: bf16 gradients fit 13B on one GPU (tp1 pp1), fp32 would not",
    ),
    Stack(
        prefix="nanotron",
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
    Stack(
        prefix="Megatron-Core",
        fused_norms=True,
        scattered_messages=True,
        virtual_stages=4,
        defaults=MappingProxyType({"host_layer_s": 1.2e-3, "tp_exposed": 0.5, "dp_exposed": 0.1}),
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
    Stack(
        prefix="NeMo",
        virtual_stages=6,
        fused_norms=True,
        defaults=MappingProxyType({"host_layer_s": 1.2e-3, "tp_exposed": 0.3}),
        source="MLPerf Training v3.1 GPT-3: interleaved schedule (6 chunks), user-buffer overlap",
    ),
    Stack(
        prefix="llm-foundry",
        gradient_bytes=2.0,
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


def stack_of(framework: str) -> Stack:
    """The longest prefix that fits the framework's name; the plain stack if none does."""
    fitting = [stack for stack in STACKS if framework.startswith(stack.prefix)]
    return max(fitting, key=lambda stack: len(stack.prefix))
