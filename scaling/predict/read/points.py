"""What is asked becomes what the formulas need: groups of arrays, reasons where that cannot be."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling.cluster.hardware import Cluster, Gpu, gpu_named
from scaling.foreign.arrays import Floats, Strings
from scaling.foreign.columns import Columns
from scaling.layout.kernels import ATTENTION
from scaling.layout.shapes import ModelShape
from scaling.predict.read.attention import flash_gain
from scaling.predict.read.clusters import cluster_named, site_clusters, why_unpredictable
from scaling.predict.read.features import Features, Group, Points
from scaling.predict.read.foreign_points import inputs_of
from scaling.predict.read.inputs import Inputs, usable_rows
from scaling.predict.read.parameters import LOSSY, defaults_for
from scaling.predict.read.precisions import low_precision_costs, rates
from scaling.predict.read.stack_facts import Stack
from scaling.predict.read.stacks import stack_of

# What the formulas take as it is stated.
_OF_THE_SHAPE = ("hidden_size", "num_heads", "num_experts", "experts_per_token", "vocab_size")
_OF_THE_LAYOUT = (
    "world_size", "tp", "pp", "cp", "dp", "ep", "etp", "zero_stage", "micro_batch_size",
    "seq_length", "schedule", "imbalance",
)  # fmt: skip
_FLAGS = (
    "ring", "sequence_parallel", "fused_mlp", "fused_cross_entropy", "offload", "short_states",
    "compiled", "recomputes",
)  # fmt: skip


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
            stated, domain = per_node[here], gpu_named(found[where].gpu).link_domain
            stated = np.where(np.isnan(stated), found[where].gpus_per_node, stated)
            per_node[here] = stated if domain is None else np.maximum(stated, domain)
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
            cluster = found[where]
            gpu = gpu_named(cluster.gpu)
            transport = LOSSY if cluster.lossy_transport else {}
            stack = stack_of(framework, gpu, unfused=bool(inputs.unfused[usable[0]]))
            groups.append(
                Group(
                    key=f"{framework}|{where}",
                    framework=framework,
                    stack=stack,
                    cluster_name=where,
                    cluster=cluster,
                    # moved first by the transport's facts and then by the software's
                    start=defaults_for({**transport, **stack.defaults}),
                    rows=usable,
                    features=_features(inputs, arrays, usable, gpu, stack),
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
        setting=inputs.setting,
        point_id=inputs.point_id,
    )


def _by(
    framework: Strings, cluster: Strings
) -> list[tuple[tuple[str, str], npt.NDArray[np.int64]]]:
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
    # windows leave a share of the causal half
    width, weights = _attention_of(shape)
    experts = np.where(shape["num_experts"] > 0, decoder - shape["dense_layers"], 0.0)
    expert_share = experts / blocks
    ffn = shape["ffn_hidden_size"] * (1 - expert_share)
    ffn = ffn + expert_share * shape["shared_experts"] * shape["expert_ffn_hidden_size"]
    shard = np.where(np.isnan(inputs.zero_shard_size), inputs.dp, inputs.zero_shard_size)
    return {
        **{name: shape[name] for name in _OF_THE_SHAPE},
        **{name: getattr(inputs, name) for name in _OF_THE_LAYOUT},
        "num_layers": blocks,
        "query_width": width,
        "kv_width": np.where(
            shape["key_value_rank"] > 0, width, shape["num_kv_heads"] * shape["head_dim"]
        ),
        "attention_weights": weights,
        "head_norms": shape["query_key_norm"],
        "ffn_hidden_size": ffn,
        "expert_ffn": shape["expert_ffn_hidden_size"],
        "expert_share": expert_share,
        "dense_ffn": shape["ffn_hidden_size"],
        "mlp_inputs": 1.0 + shape["gated_mlp"],
        "embeddings": 2.0 - shape["tied_embeddings"],
        "positions": shape["max_positions"],
        "attentions": attentions / blocks,
        "causal": computed / attentions * _seen(shape, inputs.seq_length),
        "gpus_per_node": per_node,
        "shard": shard,
        "virtual": np.where(
            inputs.pp > 1, np.clip(inputs.virtual_stages, 1.0, np.ceil(blocks / inputs.pp)), 1.0
        ),
        "accumulation": inputs.gradient_accumulation_steps,
    }


def _attention_of(shape: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """Width of all heads, and the weights of a block over those of plain attention so wide, (n,).

    Latent attention is taken as one of as many key and value heads as query heads, each as wide as
    the mean of its query's and its value's width; its weights are those of shapes.py.
    """
    h, heads, head = shape["hidden_size"], shape["num_heads"], shape["head_dim"]
    latent, rotary, value = (
        shape[name] for name in ("key_value_rank", "rotary_head_dim", "value_head_dim")
    )
    rank = shape["query_rank"]
    queries = heads * (head + rotary)
    width = np.where(latent > 0, heads * (head + rotary + value) / 2, heads * head)
    low = np.where(rank > 0, rank * (h + queries), h * queries) + h * (latent + rotary)
    low = low + latent * heads * (head + value) + heads * value * h
    return width, np.where(latent > 0, low / (4 * h * width), 1.0)


def _seen(shape: Mapping[str, Floats], seq_length: Floats) -> Floats:
    """Pairs of a query and a key over those of a causal square, (n,): `ModelShape.attended`."""
    seen = np.minimum(shape["window"], seq_length) / seq_length
    windowed = shape["windowed_layers"] / shape["num_layers"]
    return 1 - windowed + windowed * seen * (2 - seen)


def _note_misfits(arrays: Mapping[str, Floats], note: Strings) -> None:
    """Say why a row cannot be predicted; only what leaves the formulas without meaning."""
    shard, dp, stage = arrays["shard"], arrays["dp"], arrays["zero_stage"]
    reasons = {
        "pp is larger than num_layers": arrays["pp"] > arrays["num_layers"],
        "zero_stage is above 3": stage > 3,
        "ep is more than 1, and the model has no experts": (arrays["ep"] > 1)
        & (arrays["num_experts"] == 0),
        "ep does not divide num_experts": np.mod(arrays["num_experts"], arrays["ep"]) != 0,
        "ep x etp does not divide dp x cp x tp": (
            np.mod(arrays["dp"] * arrays["cp"] * arrays["tp"], arrays["ep"] * arrays["etp"]) != 0
        ),
        "zero_shard_size does not divide dp": np.mod(dp, shard) != 0,
        "zero_shard_size shards nothing at zero_stage 0": (
            (stage == 0) & (shard > 1) & (shard != dp)
        ),
    }
    for reason, rows in reasons.items():
        note[rows & usable_rows(note)] = reason


def _note_precisions(
    inputs: Inputs, rows: npt.NDArray[np.int64], cluster: Cluster, note: Strings
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
    here: dict[str, Any] = {name: values[rows] for name, values in arrays.items()}
    here |= {name: getattr(inputs, name)[rows] for name in _FLAGS}
    attention, checkpointing = _cost_of(inputs.attention[rows]), inputs.checkpointing[rows]
    if stack.newest_flash:
        attention = np.where(np.isin(attention, ["flash1", "flash2"]), "flash3", attention)
    precision = inputs.precision[rows]
    here |= {**low_precision_costs(precision, stack), **rates(precision, gpu)}
    math, fused = attention == "math", attention == "fused_softmax"
    if stack.softmax_rule:
        heads = here["micro_batch_size"] * here["num_heads"] / here["tp"]
        multiple = heads % 4 == 0
        math, fused = (math | fused) & ~multiple, (math | fused) & multiple
    # LayerNorm (gpt, no gated mlp) is one kernel in torch too; RMSNorm is a chain of fp32 copies
    layer_norm = here["mlp_inputs"] < 2
    return Features(
        **here,
        fused_norm=inputs.fused_norm[rows] | layer_norm | stack.fused_norms,
        full=checkpointing == "full",
        selective=checkpointing == "selective",
        math=math.astype(bool),
        fused_softmax=fused.astype(bool),
        flash1=(attention == "flash1").astype(bool),
        flash_gain=flash_gain(attention, gpu),
        element_bytes=np.where(precision == "fp32", 4.0, 2.0),
        bf16=(precision != "fp32") & (precision != "fp16"),
    )


def _cost_of(attention: Strings) -> Strings:
    """The kernel whose costs the prediction takes for each, (n,)."""
    costs = attention.astype(object)
    for name, kernel in ATTENTION.items():
        costs[attention == name] = kernel.cost
    return costs
