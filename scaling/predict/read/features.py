"""Points as arrays: everything of a layout that does not depend on a calibrated number."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaling.cluster.hardware import Cluster, Gpu, gpu_named
from scaling.foreign.arrays import Flags, Floats, Strings
from scaling.predict.read.clusters import USABLE_OF_CAPACITY
from scaling.predict.read.inputs import OWN_FRAMEWORK, UNNAMED
from scaling.predict.read.stack_facts import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The layouts of one stack, one value per layout; float64 (n,) unless said otherwise.

    Sizes are elements, ranks or sequences. `query_width` is num_heads * head_dim (of latent
    attention the mean of query's and value's), `ffn_hidden_size` what every token of the average
    layer goes through (its dense layers and shared experts), `mlp_inputs` the
    matrices that read the hidden state (2 if gated), `attentions` the attention blocks a layer has
    on average (above 1 only for an encoder-decoder). `peak` is the sustained FLOP/s of attention
    and head, `gemm_peak` that of the layers' GEMMs (fp8 runs only those in fp8).
    """

    num_layers: Floats
    hidden_size: Floats
    num_heads: Floats
    query_width: Floats
    kv_width: Floats
    ffn_hidden_size: Floats
    mlp_inputs: Floats
    vocab_size: Floats
    embeddings: Floats  # vocabulary matrices held, 1 if tied
    positions: Floats  # that have a learned vector: those of a gpt, whose matrices have biases
    attentions: Floats
    attention_weights: Floats  # of an attention block over those of plain attention so wide
    head_norms: Floats  # 1 where each head's query and key are normalised
    num_experts: Floats
    experts_per_token: Floats
    expert_ffn: Floats
    expert_share: Floats  # of the layers that have experts
    dense_ffn: Floats  # of the layers that have none, the first ones
    imbalance: Floats  # tokens of the fullest expert over the mean
    ep: Floats
    etp: Floats  # ranks that share an expert
    causal: Floats  # share of the s x s scores that is computed by a kernel that skips
    seq_length: Floats
    gpus_per_node: Floats
    world_size: Floats
    tp: Floats
    pp: Floats
    cp: Floats
    dp: Floats
    zero_stage: Floats
    shard: Floats  # dp ranks that share one copy of what ZeRO shards
    schedule: Floats  # of the pipeline: its place in SCHEDULES (inputs.py)
    virtual: Floats  # model chunks a pipeline rank holds, 1 without interleaving
    micro_batch_size: Floats
    accumulation: Floats
    ring: Flags  # cp passes keys and values around
    sequence_parallel: Flags
    recomputes: Flags  # what does not fit: nobody said what, and the software can
    full: Flags
    selective: Flags
    math: Flags
    fused_softmax: Flags
    flash1: Flags
    flash_gain: Floats
    fused_norm: Flags
    fused_mlp: Flags
    fused_cross_entropy: Flags
    offload: Flags  # optimizer state and update on the host
    short_states: Flags  # master weights and moments in 16 bits
    compiled: Flags
    element_bytes: Floats
    bf16: Flags  # what an fp8 study keeps in 16 bits too
    cast_bytes: Floats  # moved to bring one element of a GEMM's input to 8 or 4 bits, 0 without
    copy_bytes: Floats  # a layer's weight takes for its copies of low precision
    saved_bytes: Floats  # of an element kept only for a GEMM's backward, 2 unless of low precision
    peak: Floats
    gemm_peak: Floats
    stated_peak: Floats  # FLOP/s of the row's precision, as the data sheet states it

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def tokens(self) -> Floats:
        """Tokens of a micro-batch that a rank holds, (n,): cp ranks share a sequence."""
        return self.micro_batch_size * self.seq_length / self.cp

    def take(self, index: npt.NDArray[np.int64] | slice) -> "Features":
        """These rows only."""
        return Features(**{name: getattr(self, name)[index] for name in _FIELDS})


BLOCK = 16384  # rows evaluated at once: few calls, and what they make stays near the processor
_FIELDS = tuple(field.name for field in dataclasses.fields(Features))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rows of one table that share software and cluster, and so one set of parameters."""

    key: str  # framework|cluster
    framework: str
    stack: Stack
    cluster_name: str
    cluster: Cluster
    start: dict[str, float]  # every parameter, before any row is seen
    rows: npt.NDArray[np.int64]
    features: Features

    @property
    def unnamed_software(self) -> bool:
        """Whether the table said nothing of a framework."""
        return self.framework in (OWN_FRAMEWORK, UNNAMED)

    @property
    def gpu(self) -> Gpu:
        """The catalogue's entry."""
        return gpu_named(self.cluster.gpu)

    @property
    def capacity_bytes(self) -> float:
        """Bytes tensors can take on one GPU."""
        memory = self.gpu.memory_bytes
        assert memory is not None
        return memory * USABLE_OF_CAPACITY


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A checked table of points, in groups of one stack each.

    `note` says why a row cannot be predicted, None if it can; rows with a note are in no group.
    """

    groups: tuple[Group, ...]
    note: Strings
    assumptions: tuple[str, ...]
    model: Strings
    cluster: Strings
    framework: Strings
    world_size: Floats
    seq_length: Floats
    global_batch_size: Floats
    tokens_per_step: Floats
    setting: Strings  # choices on the axes that belong to the work
    point_id: Strings | None

    def __len__(self) -> int:
        return len(self.note)
