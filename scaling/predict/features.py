"""Points as arrays: everything of a layout that does not depend on a calibrated number."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from scaling.axes import ActivationCheckpointing, Attention, Precision
from scaling.errors import InputError
from scaling.hardware import Cluster, Gpu, gpu_named
from scaling.predict.columns import Columns, Flags, Floats, Words
from scaling.predict.fabric import (
    SUSTAINED_OF_PEAK,
    UNNAMED_CLUSTER,
    USABLE_OF_CAPACITY,
    Fabric,
    fabric_named,
    predictable,
)
from scaling.predict.layout_columns import (
    OWN_FRAMEWORK,
    layout_arrays,
    named_clusters,
    note_misfits,
    say_of_pipelines,
    say_what_is_not_modelled,
    unsaid,
)
from scaling.predict.parameters import LOSSY, defaults_for
from scaling.predict.shapes_of import shapes_of
from scaling.predict.stacks import Stack, stack_of
from scaling.shapes import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The layouts of one stack, one value per layout; float64 (n,) unless said otherwise.

    Sizes are elements, ranks or sequences. `query_width` is num_heads * head_dim, `mlp_inputs` the
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
    attentions: Floats
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
    micro_batch_size: Floats
    accumulation: Floats
    sequence_parallel: Flags
    full: Flags
    selective: Flags
    math: Flags
    fused_softmax: Flags
    flash1: Flags
    flash_gain: Floats
    fused_norm: Flags
    offload: Flags  # optimizer state and update on the host
    element_bytes: Floats
    peak: Floats
    gemm_peak: Floats

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, index: npt.NDArray[np.int64] | slice) -> "Features":
        """These rows only."""
        return Features(**{name: getattr(self, name)[index] for name in _FIELDS})

    def blocks(self, size: int = 4096) -> Iterator[slice]:
        """Consecutive rows that stay in the processor's cache while they are evaluated."""
        for start in range(0, len(self), size):
            yield slice(start, min(start + size, len(self)))


_FIELDS = tuple(field.name for field in dataclasses.fields(Features))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rows of one table that share software and cluster, and so one set of parameters."""

    key: str  # framework|cluster
    framework: str
    stack: Stack
    fabric: Fabric
    start: dict[str, float]  # every parameter, before any row is seen
    rows: npt.NDArray[np.int64]
    features: Features

    @property
    def unnamed_software(self) -> bool:
        """Whether the table said nothing of a framework."""
        return self.framework == OWN_FRAMEWORK

    @property
    def capacity_bytes(self) -> float:
        """Bytes tensors can take on one GPU."""
        memory = gpu_named(self.fabric.gpu).memory_bytes
        assert memory is not None
        return memory * USABLE_OF_CAPACITY


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A checked table of points, in groups of one stack each.

    `note` says why a row cannot be predicted, None if it can; rows with a note are in no group.
    """

    groups: tuple[Group, ...]
    note: Words
    assumptions: tuple[str, ...]
    model: Words
    cluster: Words
    framework: Words
    world_size: Floats
    seq_length: Floats
    global_batch_size: Floats
    tokens_per_step: Floats
    point_id: Words | None

    def __len__(self) -> int:
        return len(self.note)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The choices that are words, object (n,)."""

    attention: Words
    checkpointing: Words
    precision: Words

    def take(self, rows: npt.NDArray[np.int64]) -> "Kernels":
        """These rows only."""
        return Kernels(self.attention[rows], self.checkpointing[rows], self.precision[rows])


def points_of(
    columns: Columns,
    *,
    models: Mapping[str, ModelShape] | None = None,
    clusters: Mapping[str, Cluster] | None = None,
) -> Points:
    """Check a table of points and derive what the formulas need.

    Args:
        columns: the table, in the project's names; unknown columns are ignored.
        models: shapes for rows that name a model without its shape columns.
        clusters: the study's own clusters, looked up before the built-in ones.

    Raises:
        InputError: a cell holds what no layout can have, or a cluster is unknown.
    """
    n = len(columns)
    if "cluster" not in columns and n:
        raise InputError(
            f"{columns.source}: column cluster is missing: the hardware is never guessed"
        )
    model = columns.words("model", "unnamed")
    cluster = named_clusters(columns, clusters)
    framework = columns.words("framework", OWN_FRAMEWORK)
    note = np.full(n, None, dtype=object)
    fabrics: dict[tuple[str, str], Fabric] = {}
    per_node = np.ones(n)
    for (soft, where), rows in _by(framework, cluster):
        if where == UNNAMED_CLUSTER:
            note[rows] = f"cluster={where} says no hardware, and its source is not known"
            continue
        try:
            fabric = fabric_named(where, clusters=clusters)
        except InputError as error:
            raise InputError(f"{columns.source}: {error}") from None
        fabrics[soft, where] = fabric
        per_node[rows] = fabric.gpus_per_node
        note[rows] = predictable(fabric)
    arrays = shapes_of(columns, model, models) | layout_arrays(columns, per_node)
    note_misfits(arrays, note)
    kernels = Kernels(
        attention=columns.words("attention", "flash2", get_args(Attention)),
        checkpointing=columns.words(
            "activation_checkpointing", "none", get_args(ActivationCheckpointing)
        ),
        precision=columns.words("precision", "bf16", get_args(Precision)),
    )
    batch = arrays["micro_batch_size"] * arrays["accumulation"] * arrays["dp"]
    streams = arrays.pop("streams")
    say_what_is_not_modelled(columns)
    say_of_pipelines(columns, (streams > 1) & (arrays["pp"] > 1))
    groups = []
    for (soft, where), rows in _by(framework, cluster):
        usable = rows[unsaid(note[rows])]
        if usable.size:
            fabric, stack = fabrics[soft, where], stack_of(soft)
            here = {name: values[usable] for name, values in arrays.items()}
            groups.append(
                Group(
                    key=f"{soft}|{where}",
                    framework=soft,
                    stack=stack,
                    fabric=fabric,
                    start=_start(stack, fabric),
                    rows=usable,
                    features=_features(here, kernels.take(usable), fabric, stack, columns.source),
                )
            )
    return Points(
        groups=tuple(groups),
        note=note,
        assumptions=tuple(columns.assumptions),
        model=model,
        cluster=cluster,
        framework=framework,
        world_size=arrays["world_size"],
        seq_length=arrays["seq_length"],
        global_batch_size=batch,
        tokens_per_step=batch * arrays["seq_length"] * streams,
        point_id=columns.words("point_id", "") if "point_id" in columns else None,
    )


def _start(stack: Stack, fabric: Fabric) -> dict[str, float]:
    """Defaults, moved first by the transport's facts and then by the software's."""
    return defaults_for({**(LOSSY if fabric.lossy_transport else {}), **stack.defaults})


def _by(framework: Words, cluster: Words) -> list[tuple[tuple[str, str], npt.NDArray[np.int64]]]:
    """Row numbers by (framework, cluster), in the order they first appear."""
    found: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(zip(framework.tolist(), cluster.tolist(), strict=True)):
        found.setdefault(key, []).append(row)
    return [(key, np.array(rows, dtype=np.int64)) for key, rows in found.items()]


def _features(
    arrays: dict[str, Any],
    kernels: Kernels,
    fabric: Fabric,
    stack: Stack,
    source: str,
) -> Features:
    attention, checkpointing = kernels.attention, kernels.checkpointing
    peak, gemm_peak = _peaks(kernels.precision, fabric, source)
    math, fused = attention == "math", attention == "fused_softmax"
    if stack.softmax_rule:
        heads = arrays["micro_batch_size"] * arrays["num_heads"] / arrays["tp"]
        multiple = heads % 4 == 0
        math, fused = (math | fused) & ~multiple, (math | fused) & multiple
    # LayerNorm (gpt, no gated mlp) is one kernel in torch too; RMSNorm is a chain of fp32 copies
    layer_norm = arrays["mlp_inputs"] < 2
    arrays["fused_norm"] = arrays["fused_norm"] | layer_norm | stack.fused_norms
    return Features(
        **arrays,
        full=checkpointing == "full",
        selective=checkpointing == "selective",
        math=math.astype(bool),
        fused_softmax=fused.astype(bool),
        flash1=(attention == "flash1").astype(bool),
        flash_gain=flash_gain(attention, gpu_named(fabric.gpu)),
        element_bytes=np.where(kernels.precision == "fp32", 4.0, 2.0),
        peak=peak,
        gemm_peak=gemm_peak,
    )


def flash_gain(attention: Words, gpu: Gpu) -> Floats:
    """Efficiency of a flash kernel relative to FlashAttention-2 on an A100, (n,).

    On Hopper FlashAttention-2 reaches 35 % of peak where it has 50 % on A100, FlashAttention-3
    about twice that (arXiv 2407.08608); later kernels are taken to be as good.
    """
    newer = np.isin(attention, ["flash3", "flash4", "cudnn"])
    hopper = gpu.peak_flop_per_s.get("fp8") is not None
    return np.where(newer, 1.4, 0.7) if hopper else np.ones(len(attention))


def _peaks(precision: Words, fabric: Fabric, source: str) -> tuple[Floats, Floats]:
    """Sustained FLOP/s of the row's precision: outside and inside the layers' GEMMs."""
    gpu = gpu_named(fabric.gpu)
    inside, outside = np.empty(len(precision)), np.empty(len(precision))
    for name in set(precision.tolist()):
        rate = gpu.peak(name)
        if rate is None:
            raise InputError(
                f"{source}: precision={name} has no published peak on gpu={gpu.name}, "
                f"which has {', '.join(gpu.peak_flop_per_s)}"
            )
        inside[precision == name] = rate
        outside[precision == name] = gpu.peak("bf16") if name == "fp8" else rate
    share = SUSTAINED_OF_PEAK[gpu.name]
    return outside * share, inside * share
