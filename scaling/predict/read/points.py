"""Points from a table or from layouts: arrays for the formulas, in groups of one stack each."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scaling.arrays import Flags, Floats, Strings
from scaling.cluster.hardware import Cluster, Gpu, gpu_named
from scaling.layout.axes import V_SCHEDULES
from scaling.layout.shapes import ModelShape
from scaling.predict.read.attention import attention_kernels
from scaling.predict.read.clusters import cluster_named, site_clusters, why_unpredictable
from scaling.predict.read.features import Features, Group, Points
from scaling.predict.read.given import inputs_of
from scaling.predict.read.inputs import SCHEDULES, Inputs, predictable_rows
from scaling.predict.read.parameters import LOSSY_TRANSPORT, defaults_for
from scaling.predict.read.precisions import low_precision_costs, rates
from scaling.predict.read.stack_facts import Stack
from scaling.predict.read.stacks import OWN_STACKS, stack_of

if TYPE_CHECKING:
    from scaling.importing.reader import Table  # it loads duckdb

# Inputs that become features unchanged.
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
    table: "Table",
    *,
    models: Mapping[str, ModelShape] | None = None,
    clusters: Mapping[str, Cluster] | None = None,
) -> Points:
    """Complete a table of points and derive what the formulas need.

    Args:
        table: in the project's names and units.
        models: shapes for rows that name a model without its shape columns.
        clusters: by name; those of config/clusters.yaml if left out.

    Raises:
        InputError: no row's cluster is known.
    """
    if clusters is None:
        clusters = site_clusters()
    return points_from(inputs_of(table, models=models, clusters=clusters), clusters)


def points_from(inputs: Inputs, clusters: Mapping[str, Cluster]) -> Points:
    """Group checked inputs by software and cluster, and derive what the formulas need.

    `clusters` by name; the name of a GPU means its vendor's reference node.

    Raises:
        InputError: a cluster is unknown.
    """
    note = inputs.note.copy()
    rows_by_stack = _rows_by_stack(inputs.framework, inputs.cluster)
    cluster_by_name: dict[str, Cluster] = {}
    gpus_per_node = inputs.gpus_per_node.copy()
    for (_, name), rows in rows_by_stack:
        usable = rows[predictable_rows(note[rows])]
        if usable.size:
            cluster = cluster_by_name[name] = cluster_named(name, clusters)
            note[usable] = why_unpredictable(name, cluster)
            per_node, domain = gpus_per_node[usable], gpu_named(cluster.gpu).link_domain
            per_node = np.where(np.isnan(per_node), cluster.gpus_per_node, per_node)
            gpus_per_node[usable] = per_node if domain is None else np.maximum(per_node, domain)
    arrays = _arrays(inputs, gpus_per_node)
    _note_misfits(arrays, note, np.isin(inputs.framework.astype(str), [*OWN_STACKS]))
    for name, cluster in cluster_by_name.items():
        _note_precisions(inputs, np.flatnonzero(inputs.cluster == name), cluster, note)
    groups = []
    for (framework, name), rows in rows_by_stack:
        usable = rows[predictable_rows(note[rows])]
        if usable.size:
            cluster = cluster_by_name[name]
            gpu = gpu_named(cluster.gpu)
            transport = LOSSY_TRANSPORT if cluster.lossy_transport else {}
            stack = stack_of(framework, gpu)
            groups.append(
                Group(
                    key=f"{framework}|{name}",
                    framework=framework,
                    stack=stack,
                    cluster_name=name,
                    cluster=cluster,
                    # what is known of the software overrides what is known of the transport
                    start=defaults_for({**transport, **stack.defaults}),
                    rows=usable,
                    features=_features(inputs, arrays, usable, gpu, stack),
                )
            )
    assumptions = list(inputs.assumptions)
    streams = np.where(inputs.shape["num_encoder_layers"] > 0, 2.0, 1.0)  # shapes.py
    pipelined = int(((streams > 1) & (inputs.pp > 1)).sum())
    if pipelined:
        assumptions.append(
            f"{pipelined} rows pipeline an encoder-decoder: its encoder's layers first, "
            "every stage sent both streams"
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


def _rows_by_stack(
    framework: Strings, cluster: Strings
) -> list[tuple[tuple[str, str], npt.NDArray[np.int64]]]:
    """Row numbers by (framework, cluster), in the order they first appear."""
    rows_by_key: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(zip(framework.tolist(), cluster.tolist(), strict=True)):
        rows_by_key.setdefault(key, []).append(row)
    return [(key, np.array(rows, dtype=np.int64)) for key, rows in rows_by_key.items()]


def _arrays(inputs: Inputs, gpus_per_node: Floats) -> dict[str, Floats]:
    """Features of the model's shape and of the layout, (n,) each, by name."""
    shape = inputs.shape
    encoder, decoder = shape["num_encoder_layers"], shape["num_layers"]
    blocks = encoder + decoder
    # a decoder layer beside an encoder attends twice, to itself and to the encoder
    attentions = np.where(encoder > 0, encoder + 2 * decoder, decoder)
    # only a decoder's own attention is causal, and computes half of its scores
    squares = np.where(encoder > 0, encoder + 1.5 * decoder, 0.5 * decoder)
    width, weights = _query_width_and_weights(shape)
    expert_layers = np.where(shape["num_experts"] > 0, decoder - shape["dense_layers"], 0.0)
    expert_share = expert_layers / blocks
    ffn = shape["ffn_hidden_size"] * (1 - expert_share)
    ffn = ffn + expert_share * shape["shared_experts"] * shape["expert_ffn_hidden_size"]
    shard = np.where(np.isnan(inputs.zero_shard_size), inputs.dp, inputs.zero_shard_size)
    return {
        **{name: shape[name] for name in _OF_THE_SHAPE},
        **{name: getattr(inputs, name) for name in _OF_THE_LAYOUT},
        "num_layers": blocks,
        "query_width": width,
        "kv_width": np.where(
            shape["key_value_rank"] > 0,
            width,
            # where tp ranks outnumber key heads, each has one
            np.maximum(shape["num_kv_heads"], inputs.tp) * shape["head_dim"],
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
        "causal": squares / attentions * _window_share(shape, inputs.seq_length),
        "gpus_per_node": gpus_per_node,
        "shard": shard,
        "virtual": np.where(
            inputs.pp > 1, np.clip(inputs.virtual_stages, 1.0, np.ceil(blocks / inputs.pp)), 1.0
        ),
        "accumulation": inputs.gradient_accumulation_steps,
    }


def _query_width_and_weights(shape: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """Width of all query heads; weights of a block over plain attention so wide; (n,) each.

    Latent attention is taken as having as many key and value heads as query heads. Each is as wide
    as the mean of its query and value widths. Its weights are counted as in shapes.py.
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


def _window_share(shape: Mapping[str, Floats], seq_length: Floats) -> Floats:
    """Share of causal query-key pairs inside the windows, (n,), as `ModelShape.attended` has it."""
    window = np.minimum(shape["window"], seq_length) / seq_length
    windowed = shape["windowed_layers"] / shape["num_layers"]
    return 1 - windowed + windowed * window * (2 - window)


def _note_misfits(arrays: Mapping[str, Floats], note: Strings, is_own: Flags) -> None:
    """Note the rows whose layout gives the formulas no meaning, with the reason.

    `is_own`: rows of this project's engines, which deal whole layers to each chunk of a pipeline.
    """
    shard, dp, stage = arrays["shard"], arrays["dp"], arrays["zero_stage"]
    is_v = np.isin(arrays["schedule"], [SCHEDULES.index(name) for name in V_SCHEDULES])
    chunks = arrays["pp"] * np.where(is_v, 2.0, arrays["virtual"])
    reasons = {
        "pp is larger than num_layers": arrays["pp"] > arrays["num_layers"],
        "a pipeline of more model chunks than num_layers": (
            is_own & (arrays["pp"] > 1) & (chunks > arrays["num_layers"])
        ),
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
        note[rows & predictable_rows(note)] = reason


def _note_precisions(
    inputs: Inputs, rows: npt.NDArray[np.int64], cluster: Cluster, note: Strings
) -> None:
    """Note the rows whose precision has no published rate on the GPU."""
    gpu = gpu_named(cluster.gpu)
    for precision in set(inputs.precision[rows].tolist()):
        if precision not in gpu.peaks:
            unrated = (inputs.precision[rows] == precision) & predictable_rows(note[rows])
            note[rows[unrated]] = (
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
    features: dict[str, Any] = {name: values[rows] for name, values in arrays.items()}
    features |= {name: getattr(inputs, name)[rows] for name in _FLAGS}
    checkpointing, precision = inputs.checkpointing[rows], inputs.precision[rows]
    heads = features["micro_batch_size"] * features["num_heads"] / features["tp"]
    # LayerNorm (of models without a gated mlp) is one kernel in torch; RMSNorm is many, in fp32
    layer_norm = features["mlp_inputs"] < 2
    features |= attention_kernels(inputs.attention[rows], heads, gpu, stack)
    features |= {
        **low_precision_costs(precision, inputs.compiled[rows], stack),
        **rates(precision, gpu),
    }
    return Features(
        **features,
        fused_norm=inputs.fused_norm[rows] | layer_norm | stack.fused_norms,
        full=checkpointing == "full",
        selective=checkpointing == "selective",
        element_bytes=np.where(precision == "fp32", 4.0, 2.0),
        bf16=(precision != "fp32") & (precision != "fp16"),
    )
