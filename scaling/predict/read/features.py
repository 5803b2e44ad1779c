"""Points as arrays: everything the formulas need that does not depend on calibration."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaling.arrays import Flags, Floats, Strings
from scaling.cluster.hardware import Cluster, Gpu, gpu_named
from scaling.predict.read.clusters import USABLE_OF_CAPACITY
from scaling.predict.read.inputs import OWN_FRAMEWORK, UNNAMED_FRAMEWORK
from scaling.predict.read.stack_facts import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The layouts of one stack, (n,) each. Sizes are elements, ranks or sequences."""

    num_layers: Floats
    hidden_size: Floats
    num_heads: Floats
    query_width: Floats  # num_heads * head_dim; latent attention: mean of query and value widths
    kv_width: Floats
    ffn_hidden_size: Floats  # mean over layers of dense feed-forwards and shared experts
    mlp_inputs: Floats  # matrices that read the hidden state, 2 if gated
    vocab_size: Floats
    embeddings: Floats  # vocabulary matrices held, 1 if tied
    positions: Floats  # learned position vectors: only of a gpt, whose matrices have biases
    attentions: Floats  # mean attention blocks per layer, above 1 only for an encoder-decoder
    attention_weights: Floats  # weights of an attention block over those of plain attention so wide
    head_norms: Floats  # 1 where each head's query and key are normalised
    num_experts: Floats
    experts_per_token: Floats
    expert_ffn: Floats
    expert_share: Floats  # share of layers with experts
    dense_ffn: Floats  # feed-forward width of the first layers, without experts
    imbalance: Floats  # tokens of the fullest expert over the mean
    ep: Floats
    etp: Floats  # ranks that share an expert
    causal: Floats  # share of the s x s scores that a kernel computes if it skips masked ones
    seq_length: Floats
    gpus_per_node: Floats
    world_size: Floats
    tp: Floats
    pp: Floats
    cp: Floats
    dp: Floats
    zero_stage: Floats
    shard: Floats  # dp ranks that share one copy of what ZeRO shards
    schedule: Floats  # of the pipeline, as an index of SCHEDULES (inputs.py)
    virtual: Floats  # model chunks per pipeline rank, 1 without interleaving
    micro_batch_size: Floats
    accumulation: Floats
    ring: Flags  # cp passes keys and values around
    sequence_parallel: Flags
    recomputes: Flags  # recomputes what does not fit, because checkpointing was not stated
    full: Flags
    selective: Flags
    math: Flags
    fused_softmax: Flags
    flash1: Flags
    flash_gain: Floats
    fused_norm: Flags
    fused_mlp: Flags
    fused_cross_entropy: Flags
    offload: Flags  # optimizer state and update are on the host
    short_states: Flags  # master weights and moments are in 16 bits
    compiled: Flags
    element_bytes: Floats
    bf16: Flags  # 16-bit tensors are bf16, also where GEMMs run in 8 or 4 bits
    cast_bytes: Floats  # moved to cast one element of a GEMM's input to 8 or 4 bits, else 0
    copy_bytes: Floats  # of low-precision copies, per layer weight
    saved_bytes: Floats  # per element saved only for a GEMM's backward, 2 unless in low precision
    peak: Floats  # sustained FLOP/s of attention and head
    gemm_peak: Floats  # sustained FLOP/s of the layers' GEMMs, the only ones in fp8
    stated_peak: Floats  # data-sheet FLOP/s of the row's precision

    @property
    def tokens(self) -> Floats:
        """Tokens of a micro-batch that a rank holds, (n,): cp ranks share a sequence."""
        return self.micro_batch_size * self.seq_length / self.cp

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, index: npt.NDArray[np.int64] | slice) -> "Features":
        """These rows only."""
        return Features(**{name: getattr(self, name)[index] for name in FEATURES})


BLOCK = 16384  # rows evaluated at once: few calls, and intermediate arrays stay in cache
FEATURES = tuple(field.name for field in dataclasses.fields(Features))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rows of a table that share software and cluster, and so one set of parameters."""

    key: str  # framework|cluster
    framework: str
    stack: Stack
    cluster_name: str
    cluster: Cluster
    start: dict[str, float]  # every parameter before calibration
    rows: npt.NDArray[np.int64]
    features: Features

    @property
    def has_unnamed_software(self) -> bool:
        """Whether the table names no framework."""
        return self.framework in (OWN_FRAMEWORK, UNNAMED_FRAMEWORK)

    @property
    def gpu(self) -> Gpu:
        """The GPU's entry in the catalogue."""
        return gpu_named(self.cluster.gpu)

    @property
    def capacity_bytes(self) -> float:
        """Bytes available to tensors on one GPU."""
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
    setting: Strings  # choices on the axes that define the work, which rivals must share
    point_id: Strings | None

    def __len__(self) -> int:
        return len(self.note)
