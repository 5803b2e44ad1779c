"""What is asked becomes what the formulas need: groups of arrays, reasons where that cannot be."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from scaling.cluster.hardware import Cluster, Generation, Gpu, gpu_named
from scaling.foreign.arrays import Floats, Words
from scaling.foreign.columns import Columns
from scaling.layout.kernels import ATTENTION
from scaling.layout.shapes import ModelShape
from scaling.predict.read.clusters import cluster_named, site_clusters, why_unpredictable
from scaling.predict.read.features import Features, Group, Points
from scaling.predict.read.foreign_points import inputs_of
from scaling.predict.read.inputs import Inputs, usable_rows
from scaling.predict.read.parameters import LOSSY, defaults_for
from scaling.predict.read.stacks import Stack, stack_of

# FLOPs outside the layers' GEMMs (attention, head) run in bf16 where those run in 8 or 4 bits.
_LOW_PRECISIONS = ("fp8", "mxfp8", "nvfp4")


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
        clusters: by name; those of config/clusters.yaml if left out.

    Raises:
        InputError: a cell holds what no layout can have, or a cluster is unknown.
    """
    known = site_clusters() if clusters is None else clusters
    inputs = inputs_of(columns, models=models, clusters=known)
    points = points_from(inputs, known)
    return dataclasses.replace(points, assumptions=(*columns.assumptions, *points.assumptions))


def points_from(inputs: Inputs, clusters: Mapping[str, Cluster]) -> Points:
    """Points of arrays; clusters by name, a GPU's name being its vendor's reference node.

    Raises:
        InputError: a cluster is unknown.
    """
    note = inputs.note.copy()
    groups_of = _by(inputs.framework, inputs.cluster)
    found: dict[str, Cluster] = {}
    per_node = inputs.gpus_per_node.copy()
    for (_, where), rows in groups_of:
        here = rows[usable_rows(note[rows])]
        if here.size:
            found[where] = cluster_named(where, clusters)
            note[here] = why_unpredictable(where, found[where])
            own = np.isnan(per_node[here])
            per_node[here[own]] = found[where].gpus_per_node
    arrays = _arrays(inputs, per_node)
    _note_misfits(arrays, note)
    for where, cluster in found.items():
        _note_precisions(inputs, np.flatnonzero(inputs.cluster == where), cluster, note)
    streams = np.where(inputs.shape["num_encoder_layers"] > 0, 2.0, 1.0)  # shapes.py
    assumptions = list(inputs.assumptions)
    pipelined = int(((streams > 1) & (inputs.pp > 1)).sum())
    if pipelined:
        assumptions.append(
            f"{pipelined} rows pipeline an encoder-decoder: its encoder's layers first, "
            "every stage sent both streams"
        )
    groups = []
    for (framework, where), rows in groups_of:
        usable = rows[usable_rows(note[rows])]
        if usable.size:
            stack, cluster = stack_of(framework), found[where]
            groups.append(
                Group(
                    key=f"{framework}|{where}",
                    framework=framework,
                    stack=stack,
                    cluster_name=where,
                    cluster=cluster,
                    start=_start(stack, cluster),
                    rows=usable,
                    features=_features(inputs, arrays, usable, gpu_named(cluster.gpu), stack),
                )
            )
    batch = inputs.micro_batch_size * inputs.gradient_accumulation_steps * inputs.dp
    return Points(
        groups=tuple(groups),
        note=note,
        assumptions=tuple(assumptions),
        model=inputs.model,
        cluster=inputs.cluster,
        framework=inputs.framework,
        world_size=inputs.world_size,
        seq_length=inputs.seq_length,
        global_batch_size=batch,
        tokens_per_step=batch * inputs.seq_length * streams,
        point_id=inputs.point_id,
    )


def _start(stack: Stack, cluster: Cluster) -> dict[str, float]:
    """Defaults, moved first by the transport's facts and then by the software's."""
    return defaults_for({**(LOSSY if cluster.lossy_transport else {}), **stack.defaults})


def _by(framework: Words, cluster: Words) -> list[tuple[tuple[str, str], npt.NDArray[np.int64]]]:
    """Row numbers by (framework, cluster), in the order they first appear."""
    found: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(zip(framework.tolist(), cluster.tolist(), strict=True)):
        found.setdefault(key, []).append(row)
    return [(key, np.array(rows, dtype=np.int64)) for key, rows in found.items()]


def _arrays(inputs: Inputs, per_node: Floats) -> dict[str, Floats]:
    """The shape as the formulas want it, and the layout, (n,) each."""
    shape = inputs.shape
    encoder, decoder = shape["num_encoder_layers"], shape["num_layers"]
    blocks = encoder + decoder
    # a decoder layer beside an encoder attends twice, to itself and to the encoder
    attentions = np.where(encoder > 0, encoder + 2 * decoder, decoder)
    # only a decoder's own attention is causal
    computed = np.where(encoder > 0, encoder + 1.5 * decoder, 0.5 * decoder)
    shard = np.where(np.isnan(inputs.zero_shard_size), inputs.dp, inputs.zero_shard_size)
    return {
        "num_layers": blocks,
        "hidden_size": shape["hidden_size"],
        "num_heads": shape["num_heads"],
        "query_width": shape["num_heads"] * shape["head_dim"],
        "kv_width": shape["num_kv_heads"] * shape["head_dim"],
        "ffn_hidden_size": shape["ffn_hidden_size"],
        "mlp_inputs": 1.0 + shape["gated_mlp"],
        "vocab_size": shape["vocab_size"],
        "embeddings": 2.0 - shape["tied_embeddings"],
        "attentions": attentions / blocks,
        "causal": computed / attentions,
        "seq_length": inputs.seq_length,
        "gpus_per_node": per_node,
        "world_size": inputs.world_size,
        "tp": inputs.tp,
        "pp": inputs.pp,
        "cp": inputs.cp,
        "dp": inputs.dp,
        "zero_stage": inputs.zero_stage,
        "shard": shard,
        "micro_batch_size": inputs.micro_batch_size,
        "accumulation": inputs.gradient_accumulation_steps,
    }


def _note_misfits(arrays: Mapping[str, Floats], note: Words) -> None:
    """Say why a row cannot be predicted; only what leaves the formulas without meaning."""
    shard, dp, stage = arrays["shard"], arrays["dp"], arrays["zero_stage"]
    reasons = {
        "pp is larger than num_layers": arrays["pp"] > arrays["num_layers"],
        "zero_stage is above 3": stage > 3,
        "zero_shard_size does not divide dp": np.mod(dp, shard) != 0,
        "zero_shard_size shards nothing at zero_stage 0": (
            (stage == 0) & (shard > 1) & (shard != dp)
        ),
    }
    for reason, rows in reasons.items():
        note[rows & usable_rows(note)] = reason


def _note_precisions(
    inputs: Inputs, rows: npt.NDArray[np.int64], cluster: Cluster, note: Words
) -> None:
    """Rows whose precision the GPU publishes no rate for get no prediction; the others do."""
    gpu = gpu_named(cluster.gpu)
    for precision in set(inputs.precision[rows].tolist()):
        if gpu.peak(precision) is None:
            here = rows[(inputs.precision[rows] == precision) & usable_rows(note[rows])]
            note[here] = (
                f"precision={precision} has no published peak on gpu={gpu.name}, "
                f"which has {', '.join(gpu.peaks)}"
            )


def _features(
    inputs: Inputs,
    arrays: Mapping[str, Floats],
    rows: npt.NDArray[np.int64],
    gpu: Gpu,
    stack: Stack,
) -> Features:
    here = {name: values[rows] for name, values in arrays.items()}
    attention, checkpointing = _cost_of(inputs.attention[rows]), inputs.checkpointing[rows]
    precision = inputs.precision[rows]
    peak, gemm_peak = _peaks(precision, gpu)
    math, fused = attention == "math", attention == "fused_softmax"
    if stack.softmax_rule:
        heads = here["micro_batch_size"] * here["num_heads"] / here["tp"]
        multiple = heads % 4 == 0
        math, fused = (math | fused) & ~multiple, (math | fused) & multiple
    # LayerNorm (gpt, no gated mlp) is one kernel in torch too; RMSNorm is a chain of fp32 copies
    layer_norm = here["mlp_inputs"] < 2
    return Features(
        **here,
        sequence_parallel=inputs.sequence_parallel[rows],
        fused_norm=inputs.fused_norm[rows] | layer_norm | stack.fused_norms,
        fused_mlp=inputs.fused_mlp[rows],
        fused_cross_entropy=inputs.fused_cross_entropy[rows],
        offload=inputs.offload[rows],
        short_states=inputs.short_states[rows],
        full=checkpointing == "full",
        selective=checkpointing == "selective",
        math=math.astype(bool),
        fused_softmax=fused.astype(bool),
        flash1=(attention == "flash1").astype(bool),
        flash_gain=flash_gain(attention, gpu),
        element_bytes=np.where(precision == "fp32", 4.0, 2.0),
        peak=peak,
        gemm_peak=gemm_peak,
    )


# Efficiency of flash kernels relative to FlashAttention-2 on an A100: of versions 1 and 2, and of
# 3, 4 and cuDNN's. On Hopper FlashAttention-2 reaches 35 % of peak where it has 50 % on A100,
# version 3 about twice that (arXiv 2407.08608). To other generations nothing is carried over.
_FLASH_GAIN: Mapping[Generation, tuple[float, float]] = {"hopper": (0.7, 1.4)}


def _cost_of(attention: Words) -> Words:
    """The kernel whose costs the prediction takes for each, (n,)."""
    costs = attention.astype(object)
    for name, kernel in ATTENTION.items():
        costs[attention == name] = kernel.cost
    return costs


def flash_gain(attention: Words, gpu: Gpu) -> Floats:
    """Efficiency of a flash kernel relative to FlashAttention-2 on an A100, (n,)."""
    newer = attention == "flash3"
    older_gain, newer_gain = 1.0, 1.0
    if gpu.generation is not None:
        older_gain, newer_gain = _FLASH_GAIN.get(gpu.generation, (1.0, 1.0))
    return np.where(newer, newer_gain, older_gain)


def _peaks(precision: Words, gpu: Gpu) -> tuple[Floats, Floats]:
    """Sustained FLOP/s of the row's precision: outside and inside the layers' GEMMs."""
    inside, outside = np.empty(len(precision)), np.empty(len(precision))
    for name in set(precision.tolist()):
        inside[precision == name] = gpu.peak(name)
        outside[precision == name] = gpu.peak("bf16" if name in _LOW_PRECISIONS else name)
    assert gpu.sustained_of_peak is not None
    return outside * gpu.sustained_of_peak, inside * gpu.sustained_of_peak
