"""Facts about training software that change its bytes, traffic or kernels: one entry of STACKS."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from scaling.cluster.hardware import Generation

SplitRule = Literal["even", "even_or_ends", "by_cost", "slowest_least"]


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
    low_precision_weights: bool = False  # fp8 and mxfp8 weights are held in 8 bits, not also in 16
    casts_as_read: bool = False  # fp8 operands are cast for each product, all is saved in 16 bits
    deals_bf16_pipelines: bool = False  # optimizer state over all replicas, also without ZeRO
    second_copy: bool = False  # zero_shard_size adds a copy of ZeRO-3's weights (sharding.py)
    # its pipelines keep ZeRO-3's weights whole from a step's first micro-batch to its last
    keeps_weights_in_pipelines: bool = False
    lean_kernels: bool = False  # fused kernels save only what backward reads (memory.py)
    recomputes_modules: bool = False  # its recipes recompute single modules or layers to fit memory
    selective_share: float = 0.0  # of a layer beside its scores that selective mode recomputes
    peak_of_first_rank: bool = False  # published peak memory is of rank 0, not of the largest rank

    # kernels
    fused_norms: bool = False  # norms are one kernel whatever a column says
    newest_flash: bool = False  # "flash" means cuDNN's attention or FlashAttention 3
    # Megatron's fused softmax replaces torch's if micro_batch_size * heads / tp is a multiple of 4
    softmax_rule: bool = False

    # pipelines and communication
    split: SplitRule = "even"  # of layers over pipeline stages (stages.py)
    gathered_logits: bool = False  # the loss sees the whole vocabulary on every tp rank
    # sequence_parallel gathers what a matrix reads once, and keeps it whole for backward
    keeps_gathered: bool = False
    # of schedules that can: weights' gradients are computed after those of activations
    splits_backward: bool = True
    # stages exchange 1 / tp of activations and gather in the node (arXiv 2104.04473, section 4.1)
    scattered_messages: bool = False
    # a token goes once to each node with experts it needs and is forwarded there (DeepEP, HybridEP)
    tokens_once_a_node: bool = False
    # the host asks how many tokens each expert gets, also where a rank has all experts
    waits_without_ep: bool = True
    # gradients of a pipeline, or without ZeRO, are reduced after the last backward, in the open
    reduces_late: bool = False
    all_reduces_gradients: bool = False  # at zero_stage 1 and 2, where a scatter would do
    # except that without ZeRO and pipelines they are reduced during the last backward (DDP)
    hides_without_zero: bool = False
    # the host's work on a layer's hooks under ZeRO-3, over that to launch the layer's kernels
    zero_3_hooks: float = 0.0
    zero_3_gradient_bytes: float = 2.0  # of a weight's gradient that ZeRO-3 scatters
    node_link_gbit_per_s: float | None = None  # overrides the cluster's NICs, by the source

    # choices where a table does not state them
    zero_stage: int = 0
    sequence_parallel: bool = False
    ring: bool = False  # cp passes keys and values around
    defaults: Mapping[str, float] = field(default_factory=dict)  # of parameters (parameters.py)
