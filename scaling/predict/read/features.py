"""Points as arrays: everything the formulas need that does not depend on calibration."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaling.arrays import Column, Flags, Floats, Strings
from scaling.cluster.hardware import Cluster, Generation, Gpu, gpu_named
from scaling.layout.axes import AXES, ROUTINGS
from scaling.layout.kernels import ATTENTION
from scaling.predict.read.clusters import USABLE_OF_CAPACITY
from scaling.predict.read.stacks import OWN_FRAMEWORK, UNNAMED_FRAMEWORK, Stack

# Checkpointing of rows that do not state it, of software that recomputes what does not fit.
AS_MEMORY_ASKS = "as memory asks"
SCHEDULES = AXES["pipeline_schedule"].values or ()


class Features:
    """The layouts of one stack, (n,) each. Sizes are elements, ranks or sequences.

    `columns` names the axes and sizes, each an attribute; axes of words are places among the axis's
    values. The others are what `features_of` derives of them, the software and the GPU.
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


# Efficiency of flash kernels relative to FlashAttention-2 on an A100: (versions 1 and 2; versions 3
# and 4 and cuDNN). On Hopper FlashAttention-2 reaches 35 % of peak, against 50 % on A100, and
# version 3 about twice that (arXiv 2407.08608). Generations not listed are taken as an A100.
_FLASH_GAIN: Mapping[Generation | None, tuple[float, float]] = {
    "hopper": (0.7, 1.4),
    "blackwell": (0.5, 1.3),
}

# Precisions of the layers' GEMMs only; attention and head then run in bf16.
_LOW_PRECISIONS = ("fp8", "mxfp8", "nvfp4")

# Bytes this project's engines move per element (scaling/train/kernels/fp8.py), eager: 2 read for
# the scale, 2 read and 2 written to apply it, 2 read and 1 written to cast. Backward does the same
# again and transposes (2). Compiled: 2 read for the scale, 2 read and 1 written, both ways. Other
# software's casts change no published step by more than chance.
_OWN_CAST_BYTES, _OWN_CAST_BYTES_COMPILED = 9.0 + 9.0 + 2.0, 5.0 + 5.0


def flash_gain(kernel: str | None, gpu: Gpu) -> float:
    """Efficiency of a flash kernel relative to FlashAttention-2 on an A100."""
    return _FLASH_GAIN.get(gpu.generation, (1.0, 1.0))[kernel == "flash3"]


def features_of(columns: Mapping[str, Column], gpu: Gpu, stack: Stack) -> Features:
    """Features of the columns of AXES, SIZES and SHAPE, `gpus_per_node` and `etp`.

    A column's own name may stand for something derived from it: `num_layers` for layers of decoder
    and encoder, `ffn_hidden_size` for the mean width over layers.
    """
    c, words = dict(columns), dict[str, list[str]]()
    for name, axis in AXES.items():
        if axis.kind is str:  # numbers compare a hundred times faster than words
            found = c[name].tolist()
            words[name] = [
                *dict.fromkeys((*(axis.values or ()), AS_MEMORY_ASKS, *sorted({*found})))
            ]
            place = {word: number for number, word in enumerate(words[name])}
            c[name] = np.array([place[word] for word in found], np.float64)

    def of_word(axis: str, value: Callable[[str], float | None]) -> Floats:
        """The value that each row's word on an axis has, (n,)."""
        values = np.array([*map(value, words[axis])], dtype=np.float64)
        return np.asarray(values[c[axis].astype(np.int64)])

    def chosen(axis: str, *chosen: str) -> Flags:
        """Rows with one of these words on an axis, (n,)."""
        return of_word(axis, lambda word: word in chosen) > 0

    def costs(*kernels: str) -> Flags:
        """Rows whose attention costs as one of these kernels, (n,)."""
        return of_word("attention", lambda word: kernel_of(word, stack) in kernels) > 0

    compiled, fused = c["compile"] > 0, c["fused_norm"] > 0
    cast = chosen("precision", *_LOW_PRECISIONS) & stack.casts_as_read
    with np.errstate(all="ignore"):  # rows that cannot be predicted may hold anything
        derived = _derived(c)
    derived |= {
        # tokens of the fullest expert over the mean
        "imbalance": of_word("routing", ROUTINGS.get),
        "ring": chosen("cp_style", "ring"),
        "full": chosen("activation_checkpointing", "full"),
        "selective": chosen("activation_checkpointing", "selective"),
        "recomputes": chosen("activation_checkpointing", AS_MEMORY_ASKS),
        "offload": ~chosen("optimizer_offload", "none"),
        "short_states": chosen("optimizer_precision", "bf16"),
        "math": costs("math"),
        "fused_softmax": costs("fused_softmax"),
        "flash1": costs("flash1"),
        "flash_gain": of_word("attention", lambda word: flash_gain(kernel_of(word, stack), gpu)),
        # torch has LayerNorm (of models without a gated mlp) as one kernel, Inductor makes any one
        "fused_norm": fused | compiled | (c["gated_mlp"] < 1) | stack.fused_norms,
        "element_bytes": np.where(chosen("precision", "fp32"), 4.0, 2.0),
        "bf16": ~chosen("precision", "fp32", "fp16"),
        # Compiled nothing is kept that is cast: Inductor computes norms and gates' products again.
        "cast_bytes": cast * np.where(compiled, _OWN_CAST_BYTES_COMPILED, _OWN_CAST_BYTES),
        "saved_bytes": np.where(cast & compiled, 0.0, 2.0),
        "peak": of_word("precision", lambda word: gpu.sustained(_outside_gemms(word))),
        "gemm_peak": of_word("precision", gpu.sustained),
        "stated_peak": of_word("precision", gpu.peaks.get),
    }
    return Features(columns, c | derived)


def kernel_of(attention: str, stack: Stack) -> str | None:
    """The kernel whose costs stand for an attention's, which software may choose itself."""
    kernel = ATTENTION[attention].cost if attention in ATTENTION else None
    return "flash3" if stack.newest_flash and kernel in ("flash1", "flash2") else kernel


def _outside_gemms(precision: str) -> str:
    """The precision of attention and head."""
    return "bf16" if precision in _LOW_PRECISIONS else precision


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
