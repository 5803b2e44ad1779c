"""Points as arrays: everything the formulas need that does not depend on calibration."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaling.arrays import Column, Flags, Floats, Strings
from scaling.cluster.hardware import Cluster, Gpu, gpu_named
from scaling.layout.axes import AXES, ROUTINGS
from scaling.predict.read.clusters import USABLE_OF_CAPACITY
from scaling.predict.read.stacks import OWN_FRAMEWORK, UNNAMED_FRAMEWORK, Stack

# Checkpointing of rows that do not state it, of software that recomputes what does not fit.
AS_MEMORY_ASKS = "as memory asks"
SCHEDULES = AXES["pipeline_schedule"].values or ()


class Features:
    """The layouts of one stack, (n,) each. Sizes are elements, ranks or sequences.

    `columns` names the axes and sizes, each an attribute; axes of words are places among the axis's
    values. The others are what `features_of` derives, and what software and GPU add (software.py).
    """

    accumulation: Floats
    schedule: Floats  # an index of SCHEDULES
    positions: Floats  # learned: only of a gpt, whose matrices have biases
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
    offload: Flags  # optimizer state and update are on the host
    short_states: Flags  # master weights and moments in 16 bits
    element_bytes: Floats  # of an activation
    bf16: Flags  # 16-bit tensors are bf16, also where GEMMs run in 8 or 4 bits
    cast_bytes: Floats  # moved to cast one element of a GEMM's input to 8 bits, else 0
    saved_bytes: Floats  # per element saved only for a GEMM's backward, 2 or 0
    peak: Floats  # sustained FLOP/s of attention and head
    gemm_peak: Floats  # sustained FLOP/s of the layers' GEMMs, the only ones in fp8
    stated_peak: Floats  # data-sheet FLOP/s of the row's precision

    def __init__(
        self,
        columns: Iterable[str],
        values: Mapping[str, Column],
        parent: "Features | None" = None,
        index: npt.NDArray[np.int64] | slice = slice(None),
    ) -> None:
        self.columns, self.parent, self.index = tuple(columns), parent, index
        vars(self).update(values)

    def __getattr__(self, name: str) -> Floats:
        parent = vars(self).get("parent")
        if parent is None:
            raise AttributeError(name)
        value: Floats = getattr(parent, name)[self.index]  # only now: formulas use few of all
        vars(self)[name] = value
        return value

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, index: npt.NDArray[np.int64] | slice) -> "Features":
        """These rows only."""
        return Features(self.columns, {}, self, index)

    def but(self, **values: Column) -> "Features":
        """The same layouts with these values added or replaced, and no other changed."""
        return Features(dict.fromkeys((*self.columns, *values)), values, self)

    def places(self) -> Iterator[npt.NDArray[np.int64]]:
        """`places_among` of every column in which rows differ."""
        for name in self.columns:
            values = getattr(self, name)
            if (values != values[:1]).any():
                yield places_among(values)


def features_of(columns: Mapping[str, Column]) -> Features:
    """Features of the columns of AXES, SIZES and SHAPE, `gpus_per_node` and `etp`.

    A column's own name may stand for something derived from it: `num_layers` for layers of decoder
    and encoder, `ffn_hidden_size` for the mean width over layers.
    """
    by_word: dict[str, dict[str, Flags]] = {}
    c = dict(columns)
    for name, axis in AXES.items():
        if axis.kind is str:  # numbers compare a hundred times faster than words
            place = {word: number for number, word in enumerate(axis.values or ())}
            place.setdefault(AS_MEMORY_ASKS, len(place))
            c[name] = np.array([place.get(word, -1) for word in c[name].tolist()], np.float64)
            by_word[name] = {word: c[name] == number for word, number in place.items()}
    with np.errstate(all="ignore"):  # rows that cannot be predicted may hold anything
        derived = _derived(c)
    checkpointing = by_word["activation_checkpointing"]
    derived |= {
        "ring": by_word["cp_style"]["ring"],
        "full": checkpointing["full"],
        "selective": checkpointing["selective"],
        "recomputes": checkpointing[AS_MEMORY_ASKS],
        "offload": ~by_word["optimizer_offload"]["none"],
        "short_states": by_word["optimizer_precision"]["bf16"],
    }
    return Features(columns, c | derived)


def _derived(c: Mapping[str, Column]) -> dict[str, Column]:
    """Sizes that formulas need beside the columns, (n,) each."""
    n = {name: values.astype(np.float64) for name, values in c.items()}
    h, heads, tokens = n["hidden_size"], n["num_heads"], n["seq_length"]
    decoder, encoder = n["num_layers"], n["num_encoder_layers"]
    layers, has_encoder = decoder + encoder, encoder > 0
    # attention blocks a layer: a decoder layer beside an encoder attends to itself and to that
    attentions = (layers + np.where(has_encoder, decoder, 0.0)) / layers
    # Share of the s x s scores that a kernel computes if it skips masked ones. Only a decoder's own
    # attention is causal: half of its scores. Windows cut them as `ModelShape.attended_keys` does.
    squares = np.where(has_encoder, encoder + 1.5 * decoder, 0.5 * decoder)
    window, windowed = np.minimum(n["window"], tokens) / tokens, n["windowed_layers"] / decoder
    kept = 1 - windowed + windowed * window * (2 - window)
    # Widths of all query and key heads. With latent attention queries have the mean of query and
    # value widths, and keys are as many. Else each tp rank has at least one key head.
    latent, rotary, rank = n["key_value_rank"], n["rotary_head_dim"], n["query_rank"]
    head, value_head = n["head_dim"], n["value_head_dim"]
    query_width = heads * np.where(latent > 0, (head + rotary + value_head) / 2, head)
    kv_width = np.where(latent > 0, query_width, np.maximum(n["num_kv_heads"], n["tp"]) * head)
    # weights of an attention block over those of plain attention so wide (shapes.py)
    queries = heads * (head + rotary)
    low = np.where(rank > 0, rank * (h + queries), h * queries) + h * (latent + rotary)
    low = low + latent * heads * (head + value_head) + heads * value_head * h
    expert_share = np.where(n["num_experts"] > 0, decoder - n["dense_layers"], 0.0) / layers
    shared = n["shared_experts"] * n["expert_ffn_hidden_size"]
    chunks = np.clip(n["virtual_stages"], 1.0, np.ceil(layers / n["pp"]))
    shard = n["zero_shard_size"]
    return {
        "accumulation": n["gradient_accumulation_steps"],
        "schedule": n["pipeline_schedule"],
        "positions": n["max_positions"],
        "head_norms": n["query_key_norm"],
        "expert_ffn": n["expert_ffn_hidden_size"],
        "tokens": n["micro_batch_size"] * tokens / n["cp"],  # of a rank and micro-batch
        "shard": np.where(np.isnan(shard), n["dp"], shard),  # dp ranks that share what ZeRO shards
        "virtual": np.where(n["pp"] > 1, chunks, 1.0),  # model chunks of a pipeline rank
        # tokens of the fullest expert over the mean
        "imbalance": np.array([*ROUTINGS.values()])[n["routing"].astype(np.int64)],
        "num_layers": layers,
        "attentions": attentions,
        "causal": squares / (attentions * layers) * kept,
        "query_width": query_width,
        "kv_width": kv_width,
        "attention_weights": np.where(latent > 0, low / (4 * h * query_width), 1.0),
        "mlp_inputs": 1.0 + n["gated_mlp"],  # matrices that read the hidden state
        "embeddings": 2.0 - n["tied_embeddings"],  # vocabulary matrices held
        "expert_share": expert_share,  # of layers
        "dense_ffn": n["ffn_hidden_size"],  # in layers without experts
        # over layers of dense feed-forwards and shared experts
        "ffn_hidden_size": n["ffn_hidden_size"] * (1 - expert_share) + expert_share * shared,
    }


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
