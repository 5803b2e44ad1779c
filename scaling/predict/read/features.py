"""Points as arrays: everything the formulas need that does not depend on calibration."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from scaling.arrays import Column, Flags, Floats, Strings
from scaling.cluster.hardware import Cluster, Gpu, gpu_named
from scaling.layout.axes import AXES, ROUTINGS
from scaling.predict.read.clusters import USABLE_OF_CAPACITY
from scaling.predict.read.stacks import OWN_FRAMEWORK, UNNAMED_FRAMEWORK, Stack

# Checkpointing of rows that do not state it, of software that recomputes what does not fit.
AS_MEMORY_ASKS = "as memory asks"
# Words of axes; Features hold their places, which compare a hundred times faster.
WORDS = {name: (*(axis.values or ()), AS_MEMORY_ASKS) for name, axis in AXES.items()}
SCHEDULES = AXES["pipeline_schedule"].values or ()
# Short names of columns, and whether an axis has a value.
_SHORT = {
    "accumulation": "gradient_accumulation_steps",
    "schedule": "pipeline_schedule",  # an index of SCHEDULES
    "positions": "max_positions",  # learned: only of a gpt, whose matrices have biases
    "head_norms": "query_key_norm",
    "expert_ffn": "expert_ffn_hidden_size",
}
_IS = {
    "ring": ("cp_style", "ring"),
    "full": ("activation_checkpointing", "full"),
    "selective": ("activation_checkpointing", "selective"),
    "recomputes": ("activation_checkpointing", AS_MEMORY_ASKS),
    "short_states": ("optimizer_precision", "bf16"),
}

_Values = TypeVar("_Values", Floats, Flags)


class _derived(Generic[_Values]):
    """A value that is derived once for a whole table; that of some of its rows is a part of it."""

    def __init__(self, derive: Callable[[Any], _Values]) -> None:
        self.derive: Callable[[Any], _Values] = derive
        self.name, self.__doc__ = derive.__name__, derive.__doc__

    def __get__(self, features: Any, owner: type) -> _Values:
        whole = features.parent
        value = (
            self.derive(features) if whole is None else getattr(whole, self.name)[features.index]
        )
        vars(features)[self.name] = value
        return value


class Features:
    """The layouts of one stack, (n,) each. Sizes are elements, ranks or sequences.

    Every column of columns.py is an attribute of its own name, words as places in WORDS. So is what
    software and GPU add (points.py), which is declared here. The rest is derived, and replaces a
    column of its name: a decoder's `num_layers` is that of the whole model.
    """

    etp: Floats  # ranks that share an expert
    math: Flags
    fused_softmax: Flags
    flash1: Flags
    flash_gain: Floats
    fused_norm: Flags  # of the axis, of the software or by Inductor
    fused_mlp: Flags
    fused_cross_entropy: Flags
    sequence_parallel: Flags
    compile: Flags
    ring: Flags  # cp passes keys and values around
    full: Flags  # activation checkpointing
    selective: Flags
    recomputes: Flags  # what does not fit, because checkpointing was not stated
    short_states: Flags  # master weights and moments in 16 bits
    element_bytes: Floats  # of an activation
    bf16: Flags  # 16-bit tensors are bf16, also where GEMMs run in 8 or 4 bits
    cast_bytes: Floats  # moved to cast one element of a GEMM's input to 8 or 4 bits, else 0
    copy_bytes: Floats  # of low-precision copies, per layer weight
    saved_bytes: Floats  # per element saved only for a GEMM's backward, 2 unless in low precision
    peak: Floats  # sustained FLOP/s of attention and head
    gemm_peak: Floats  # sustained FLOP/s of the layers' GEMMs, the only ones in fp8
    stated_peak: Floats  # data-sheet FLOP/s of the row's precision

    def __init__(
        self,
        columns: Mapping[str, Column],
        parent: "Features | None" = None,
        index: npt.NDArray[np.int64] | slice = slice(None),
    ) -> None:
        self.columns, self.parent, self.index = columns, parent, index

    def __getattr__(self, name: str) -> Floats:
        if name not in vars(self).get("columns", {}) and name not in {*_SHORT, *_IS}:
            raise AttributeError(name)
        if self.parent is not None:
            value = getattr(self.parent, name)[self.index]
        elif name in _IS:
            axis, word = _IS[name]
            value = self.of_column(axis) == WORDS[axis].index(word)
        else:
            value = self.of_column(_SHORT.get(name, name))
        vars(self)[name] = value
        return cast(Floats, value)

    def of_column(self, name: str) -> Floats:
        """A column as it was read, (n,); to types a number, unless it is declared above."""
        if self.parent is not None:
            return self.parent.of_column(name)[self.index]
        return cast(Floats, self.columns[name])

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, index: npt.NDArray[np.int64] | slice) -> "Features":
        """These rows only."""
        return Features(self.columns, self, index)

    def but(self, **values: Column) -> "Features":
        """The same layouts with some columns or derived values replaced, and no other changed."""
        other = self.take(slice(None))
        vars(other).update(values)
        return other

    def places(self) -> Iterator[npt.NDArray[np.int64]]:
        """`places_among` of every column in which rows differ."""
        for name in self.columns:
            values = self.of_column(name)
            if (values != values[:1]).any():
                yield places_among(values)

    @_derived
    def tokens(self) -> Floats:
        """Tokens of a micro-batch that a rank holds: cp ranks share a sequence."""
        return self.micro_batch_size * self.seq_length / self.cp

    @_derived
    def shard(self) -> Floats:
        """Dp ranks that share one copy of what ZeRO shards."""
        return np.where(np.isnan(self.zero_shard_size), self.dp, self.zero_shard_size)

    @_derived
    def virtual(self) -> Floats:
        """Model chunks per pipeline rank, 1 without interleaving."""
        most = np.ceil(self.num_layers / self.pp)
        return np.where(self.pp > 1, np.clip(self.virtual_stages, 1.0, most), 1.0)

    @_derived
    def imbalance(self) -> Floats:
        """Tokens of the fullest expert over the mean."""
        return np.array([*ROUTINGS.values()])[self.routing.astype(np.int64)]

    @_derived
    def offload(self) -> Flags:
        """Whether optimizer state and update are on the host."""
        return np.asarray(self.optimizer_offload != WORDS["optimizer_offload"].index("none"))

    @_derived
    def num_layers(self) -> Floats:
        """Layers of decoder and encoder."""
        return self._decoder_layers + self.num_encoder_layers

    @_derived
    def _decoder_layers(self) -> Floats:
        return self.of_column("num_layers")

    @_derived
    def attentions(self) -> Floats:
        """Mean attention blocks per layer, above 1 only for an encoder-decoder.

        A decoder layer beside an encoder attends twice, to itself and to the encoder.
        """
        twice = np.where(self.num_encoder_layers > 0, self._decoder_layers, 0.0)
        return (self.num_layers + twice) / self.num_layers

    @_derived
    def causal(self) -> Floats:
        """Share of the s x s scores that a kernel computes if it skips masked ones.

        Only a decoder's own attention is causal, and computes half of its scores. Windows cut them
        as `ModelShape.attended_keys` has it.
        """
        encoder, decoder = self.num_encoder_layers, self._decoder_layers
        squares = np.where(encoder > 0, encoder + 1.5 * decoder, 0.5 * decoder)
        window = np.minimum(self.window, self.seq_length) / self.seq_length
        windowed = self.windowed_layers / decoder
        kept = 1 - windowed + windowed * window * (2 - window)
        return squares / (self.attentions * self.num_layers) * kept

    @_derived
    def query_width(self) -> Floats:
        """Width of all query heads; with latent attention the mean of query and value widths."""
        latent = self.head_dim + self.rotary_head_dim + self.value_head_dim
        width = np.where(self.key_value_rank > 0, latent / 2, self.head_dim)
        return self.num_heads * width

    @_derived
    def kv_width(self) -> Floats:
        """Width of all key heads, of which each tp rank has one; latent: as many as queries."""
        heads = np.maximum(self.num_kv_heads, self.tp)
        return np.where(self.key_value_rank > 0, self.query_width, heads * self.head_dim)

    @_derived
    def attention_weights(self) -> Floats:
        """Weights of an attention block over those of plain attention so wide (shapes.py)."""
        h, heads = self.hidden_size, self.num_heads
        rank, latent = self.query_rank, self.key_value_rank
        queries = heads * (self.head_dim + self.rotary_head_dim)
        low = np.where(rank > 0, rank * (h + queries), h * queries)
        low = low + h * (latent + self.rotary_head_dim)
        low = low + latent * heads * (self.head_dim + self.value_head_dim)
        low = low + heads * self.value_head_dim * h
        return np.where(latent > 0, low / (4 * h * self.query_width), 1.0)

    @_derived
    def mlp_inputs(self) -> Floats:
        """Matrices of a feed-forward that read the hidden state: 2 if gated."""
        return 1.0 + self.gated_mlp

    @_derived
    def embeddings(self) -> Floats:
        """Vocabulary matrices held: 1 if tied."""
        return 2.0 - self.tied_embeddings

    @_derived
    def expert_share(self) -> Floats:
        """Share of layers with experts."""
        layers = np.where(self.num_experts > 0, self._decoder_layers - self.dense_layers, 0.0)
        return layers / self.num_layers

    @_derived
    def dense_ffn(self) -> Floats:
        """Width of the feed-forward in layers without experts."""
        return self.of_column("ffn_hidden_size")

    @_derived
    def ffn_hidden_size(self) -> Floats:
        """Mean width over layers of dense feed-forwards and shared experts."""
        shared = self.shared_experts * self.expert_ffn
        return self.dense_ffn * (1 - self.expert_share) + self.expert_share * shared


def places_among(values: Column) -> npt.NDArray[np.int64]:
    """The place of each value among the distinct values in order, (n,)."""
    if values.dtype != object:
        return np.unique(values, return_inverse=True)[1]
    places = {text: place for place, text in enumerate(sorted({*values.tolist()}))}  # much faster
    return np.array([places[text] for text in values.tolist()], dtype=np.int64)


BLOCK = 16384  # rows evaluated at once: few calls, and intermediate arrays stay in cache


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
    setting: Strings  # choices on the axes that define the work, which candidates must share
    point_id: Strings | None

    def __len__(self) -> int:
        return len(self.note)
