"""What of training software changes bytes or traffic: the fields of one entry of STACKS."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from scaling.cluster.hardware import Generation

SplitRule = Literal["even", "by_cost", "slowest_least"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Facts about one framework that change bytes or traffic, never a fitted number.

    `name` is what the framework's name has in it, or one of `also`. `since` is the release from
    which this holds, `generations` are the GPUs on which it does (none named: all).
    `gradient_bytes` and `master_bytes` are per
    parameter (master: the fp32 copy and two Adam moments). `gathered_logits`: the loss sees the
    whole vocabulary on every tp rank. `split`: how layers are dealt to pipeline stages (stages.py).
    `softmax_rule`: Megatron's fused softmax runs instead of torch's when micro_batch_size * heads /
    tp is a multiple of 4. `node_link_gbit_per_s` overrides the cluster's NICs where the source says
    so.
    `scattered_messages`: stages exchange 1 / tp of the activations and gather them inside the node
    (arXiv 2104.04473, section 4.1). `fused_norms`: norms are one kernel whatever a column says.
    `second_copy`: zero_shard_size adds a copy of ZeRO-3's weights instead of sharding the state
    over fewer ranks (sharding.py).
    `stalls_without_zero`: its pipelines stall over a lossy transport with zero_stage 0 (risk.py).
    `peak_of_first_rank`: published peak memory is that of rank 0, not the largest.
    `tokens_once_a_node`: a token goes once to each node that has experts it is wanted by, and is
    forwarded there (DeepEP, HybridEP), not once to each expert.
    `recomputes_modules`: its recipes recompute single modules or layers, as memory asks for.
    `selective_share`: of a layer beside its scores that selective checkpointing recomputes.
    `reduces_late`: gradients of a pipeline, and without ZeRO, are reduced after the last backward,
    where nothing hides them; `hides_without_zero`: those without ZeRO are hidden all the same.
    `layer_messages`: gradients travel a layer at a time, not in buckets.
    `newest_flash`: attention is cuDNN's or FlashAttention 3 where a table says only flash.
    `lean_kernels`: fused kernels keep no copies for backward beside what it reads (memory.py).
    `low_precision_weights`: weights of fp8 and mxfp8 layers are held in 8 bits, not also in 16.
    `casts_as_read`: operands of fp8 are cast for each product, and everything is kept in 16 bits.
    `zero_stage`, `sequence_parallel`, `ring` (cp passes keys and values around) and
    `virtual_stages` are what it does where a table does not say.
    `defaults` moves a parameter's default.
    """

    name: str
    also: tuple[str, ...] = ()
    since: str = ""
    generations: tuple[Generation, ...] = ()
    gradient_bytes: float = 4.0
    master_bytes: float = 12.0
    gathered_logits: bool = False
    split: SplitRule = "even"
    softmax_rule: bool = False
    zero_stage: int = 0
    sequence_parallel: bool = False
    ring: bool = False
    virtual_stages: int = 1
    node_link_gbit_per_s: float | None = None
    peak_of_first_rank: bool = False
    fused_norms: bool = False
    scattered_messages: bool = False
    stalls_without_zero: bool = False
    second_copy: bool = False
    tokens_once_a_node: bool = False
    recomputes_modules: bool = False
    selective_share: float = 0.0
    reduces_late: bool = False
    hides_without_zero: bool = False
    layer_messages: bool = False
    newest_flash: bool = False
    lean_kernels: bool = False
    low_precision_weights: bool = False
    casts_as_read: bool = False
    defaults: Mapping[str, float] = field(default_factory=dict)
    source: str
