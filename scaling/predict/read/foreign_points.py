"""Tables of others as inputs of the predictor: what is derived, assumed, or cannot be predicted."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scaling.cluster.hardware import Cluster
from scaling.errors import InputError, did_you_mean, shortened
from scaling.foreign.arrays import Flags, Floats, Strings
from scaling.foreign.columns import MAX_COUNT, MAX_EXACT_INT, Columns
from scaling.foreign.decoder_parts import (
    PLAIN_ATTENTION,
    attention_kinds,
    read_optional_parts,
    window_tokens,
)
from scaling.foreign.layouts import (
    AXIS_WORDS,
    BATCH_FACTORS,
    DEGREES,
    complete_layout,
    fsdp_ranks,
    read_layout,
    skip_inconsistent_layouts,
)
from scaling.foreign.measured import OUTCOMES, skip_adapter_training
from scaling.foreign.spellings import find_model
from scaling.layout.axes import AXES, ROUTINGS, SETTING_AXES
from scaling.layout.shapes import ModelShape
from scaling.predict.read.clusters import cluster_named, names_of
from scaling.predict.read.foreign_clusters import clusters_of
from scaling.predict.read.foreign_stacks import (
    expert_slices,
    frameworks_of,
    recomputes,
    stacks_of,
    unfused_software,
)
from scaling.predict.read.inputs import (
    SHAPE,
    UNPREDICTED,
    Inputs,
    schedule_codes,
    usable_rows,
    without,
)
from scaling.predict.read.stack_facts import Stack

_GPT2_VOCABULARY = 50304.0  # padded to a multiple of 128
_LAYERS_TO_WIDTH = 128.0  # hidden_size / num_layers of GPT-3 175B (12288 / 96)


def inputs_of(
    columns: Columns, *, models: Mapping[str, ModelShape] | None, clusters: Mapping[str, Cluster]
) -> Inputs:
    """Check a table and complete it.

    Raises:
        InputError: a cell holds what no layout can have, or a needed column is missing.
    """
    n = len(columns)
    note = np.full(n, None, dtype=object)
    skip_adapter_training(columns)
    columns.strings("outcome", "", OUTCOMES, silent=True)  # a wrong one leaves its row out
    model = columns.strings("model", "unnamed")
    cluster = clusters_of(columns, clusters, note)
    shape = _shapes(columns, model, models or {}, note)
    per_node = columns.counts("gpus_per_node")
    layout: dict[str, Any] = _layout(columns, per_node, cluster, clusters)
    skip_inconsistent_layouts(columns, layout)
    _note_unmodelled(columns, shape, note)
    framework = frameworks_of(columns)
    unfused = unfused_software(columns, framework, cluster)
    stacks = stacks_of(framework, cluster, unfused, clusters)
    words = {
        name: columns.strings(name, default, AXIS_WORDS[name]) for name, default in _CHOICES.items()
    }
    plain = {  # a wrong one is refused
        name: columns.strings(name, default, AXIS_WORDS.get(name), silent=True)
        for name, default in (
            _PLAIN_CHOICES | {n: str(AXES[n].default) for n in SETTING_AXES}
        ).items()
    }
    inputs = Inputs(
        model=model,
        cluster=cluster,
        framework=framework,
        shape=shape,
        seq_length=columns.counts("seq_length"),
        gpus_per_node=per_node,
        **{name: layout[name] for name in ("world_size", *DEGREES, *BATCH_FACTORS[:2])},
        **_of_the_software(columns, stacks, shape["num_layers"], layout),
        # Inductor makes one kernel of a norm's chain
        fused_norm=columns.flags("fused_norm", False) | columns.flags("compile", False),
        fused_mlp=columns.flags("fused_mlp", False),
        fused_cross_entropy=columns.flags("fused_cross_entropy", False),
        offload=plain["optimizer_offload"] == "cpu",
        short_states=plain["optimizer_precision"] == "bf16",
        compiled=columns.flags("compile", False),
        schedule=schedule_codes(plain["pipeline_schedule"]),
        attention=words["attention"],
        checkpointing=words["activation_checkpointing"],
        recomputes=recomputes(columns, stacks),
        unfused=unfused,
        precision=words["precision"],
        ep=np.maximum(columns.counts("ep", low=0, default=1.0, silent=True), 1.0),  # 0: none
        etp=expert_slices(columns, layout["tp"]),
        imbalance=np.array([ROUTINGS[name] for name in plain["routing"].tolist()], np.float64),
        setting=np.array(
            ["|".join(row) for row in zip(*(plain[n] for n in SETTING_AXES), strict=True)], object
        ),
        note=note,
        assumptions=(),
        point_id=columns.strings("point_id", "") if "point_id" in columns else None,
    )
    columns.assumptions += _left_out(columns)
    for row, sentence in columns.skipped.items():
        note[row] = note[row] or sentence
    return inputs


def _of_the_software(
    columns: Columns, stacks: Sequence[Stack], layers: Floats, layout: Mapping[str, Floats]
) -> dict[str, Any]:
    """What every software decides for itself where a table does not say: see stacks.py."""

    def usual(fact: str) -> Floats:
        return np.array([getattr(stack, fact) for stack in stacks], dtype=np.float64)

    # chunks of two layers at least, unless a table asks for smaller ones
    most = np.maximum(np.floor(layers / layout["pp"] / 2), 1.0)
    pipelined = np.where(layout["pp"] > 1, np.minimum(usual("virtual_stages"), most), 1.0)
    stage = columns.numbers("zero_stage", usual("zero_stage"), whole=True)
    shard = columns.counts("zero_shard_size")
    if "fsdp" in columns:  # Megatron-Bridge's word: the ranks over which everything is sharded
        fsdp = fsdp_ranks(columns)
        stage = np.where(fsdp > 1, 3.0, stage)
        shard = np.where((fsdp > 1) & np.isnan(shard), np.minimum(fsdp, layout["dp"]), shard)
    style = columns.strings("cp_style", "", {"all_to_all", "ring", ""}, silent=True)
    return {
        "zero_stage": stage,
        "zero_shard_size": shard,
        "virtual_stages": np.maximum(
            columns.numbers("virtual_stages", pipelined, whole=True, silent=True), 1.0
        ),
        "ring": (style == "ring") | (style == "") & (usual("ring") > 0),
        "sequence_parallel": columns.flags(
            "sequence_parallel", (usual("sequence_parallel") > 0) & (layout["tp"] > 1)
        ),
    }


_PLAIN_CHOICES = {
    "optimizer_offload": "none",
    "engine": "deepspeed",
    "pipeline_schedule": "1f1b",
    "optimizer_precision": "fp32",
}
_CHOICES = {"attention": "flash2", "activation_checkpointing": "none", "precision": "bf16"}


def _layout(
    columns: Columns, per_node: Floats, cluster: Strings, clusters: Mapping[str, Cluster]
) -> dict[str, Floats]:
    """Degrees and batch; what neither is stated nor follows is 1."""
    known = read_layout(columns)
    if "nodes" in columns:
        there = names_of(clusters)
        usual = [
            cluster_named(name, clusters).gpus_per_node if name in there else np.nan
            for name in cluster.tolist()
        ]
        in_all = columns.counts("nodes") * np.where(np.isnan(per_node), usual, per_node)
        known["world_size"] = np.where(np.isnan(known["world_size"]), in_all, known["world_size"])
    others = known["tp"] * known["pp"] * known["dp"]
    known["cp"] = np.where(np.isnan(known["cp"]) & np.isnan(others), 1.0, known["cp"])
    known = complete_layout(known)
    for name in ("tp", "pp", "cp"):
        known[name] = np.where(np.isnan(known[name]), 1.0, known[name])
    known = complete_layout(known)
    known["dp"] = np.where(np.isnan(known["dp"]), 1.0, known["dp"])
    known = complete_layout(known)
    for name in BATCH_FACTORS[:2]:
        missing = np.isnan(known[name])
        if missing.any():
            columns.assumptions.append(f"{name} is not given in {missing.sum()} rows: taken as 1")
        known[name] = np.where(missing, 1.0, known[name])
        known = complete_layout(known)
    return known


def _note_unmodelled(columns: Columns, shape: Mapping[str, Floats], note: Strings) -> None:
    """Say of which rows the model's shape leaves the formulas without meaning."""
    kind = attention_kinds(columns)
    modelled = np.isin(kind, [*PLAIN_ATTENTION, "mla"]) | (window_tokens(kind) > 0)
    reasons = {"attention_kind is none that is modelled (mha, gqa, mqa, mla, windows)": ~modelled}
    of_experts = ("experts_per_token", "expert_ffn_hidden_size")
    half = np.any([shape[name] == 0 for name in of_experts], axis=0)
    reasons["num_experts without experts_per_token and expert_ffn_hidden_size"] = (
        shape["num_experts"] > 0
    ) & half
    needed = {n: shape[n] for n in ("num_layers", "hidden_size", "num_heads", "vocab_size")}
    needed |= {"ffn_hidden_size": shape["ffn_hidden_size"]}
    needed |= {"seq_length": columns.counts("seq_length")}
    reasons |= {f"{name} is not given": np.isnan(values) for name, values in needed.items()}
    for reason, rows in reasons.items():
        note[rows & usable_rows(note)] = reason


def _left_out(columns: Columns) -> list[str]:
    """A sentence for every choice that a prediction leaves out of account."""
    name = "pipeline_schedule"
    schedule = columns.strings(name, "1f1b", AXIS_WORDS[name], silent=True)
    chosen: dict[str, Flags] = {name: ~np.isin(schedule.astype(str), ("1f1b", "interleaved"))}
    for name in UNPREDICTED:
        chosen[name] = columns.flags(name, False, silent=True)
    return without(chosen)


def _shapes(
    columns: Columns, model: Strings, models: Mapping[str, ModelShape], note: Strings
) -> dict[str, Floats]:
    """The shape of every row's model, NaN where nothing tells.

    Shape columns win; what they leave open is that of the model of `models` that the name means,
    where the layers and the width that are stated are its own. Without either `total_params`
    implies a GPT shape of 128 hidden elements a layer, which is said.

    Raises:
        InputError: the table has neither, or no row's model is known.
    """
    stated = "num_layers" in columns and "hidden_size" in columns
    hidden, layers = columns.counts("hidden_size"), columns.counts("num_layers")
    meant = {name: find_model(name, models) for name in dict.fromkeys(model.tolist())}
    by_name = {name: np.full(len(columns), np.nan) for name in SHAPE}
    for name, known in meant.items():
        if known is not None:
            shape = models[known]
            rows = (model == name) & (np.isnan(layers) | (layers == shape.num_layers))
            rows &= np.isnan(hidden) | (hidden == shape.hidden_size)
            for part in SHAPE:
                by_name[part][rows] = float(getattr(shape, part))
            if not stated and known != name:
                columns.assume_meaning("model", name, known)
    if not stated and "total_params" not in columns and len(columns):
        unknown = np.array([meant[name] is None for name in model.tolist()])
        if "model" not in columns:
            raise InputError(
                f"{columns.source}: columns num_layers and hidden_size are missing: give the "
                "model's shape, or total_params, or a model of config/models.yaml"
            )
        if unknown.all():
            hint = did_you_mean(model[0][:60], models)
            raise columns.cell_error(
                "model", 0, f"has no shape columns and is not in config/models.yaml: {hint}"
            )
        for row in np.flatnonzero(unknown):
            note[row] = f"model={shortened(model[row])} has no shape columns and is not known"
    return _from_columns(columns, layers, hidden, by_name)


def _from_columns(
    columns: Columns, layers: Floats, hidden: Floats, by_name: Mapping[str, Floats]
) -> dict[str, Floats]:
    layers = np.where(np.isnan(layers), by_name["num_layers"], layers)
    hidden = np.where(np.isnan(hidden), by_name["hidden_size"], hidden)
    implied = np.isnan(layers) | np.isnan(hidden)
    if "total_params" in columns and implied.any():
        # 12 L h^2 parameters with h = 128 L
        params = columns.numbers("total_params", low=1, high=MAX_EXACT_INT)
        deep = np.maximum(np.round(np.cbrt(params / (12 * _LAYERS_TO_WIDTH**2))), 1)
        layers = np.where(np.isnan(layers), deep, layers)
        hidden = np.where(np.isnan(hidden), _LAYERS_TO_WIDTH * layers, hidden)
        columns.assumptions.append(
            f"num_layers and hidden_size are not given in {int(implied.sum())} rows: total_params "
            "taken as a GPT of 128 hidden elements a layer"
        )

    def usual(name: str, default: Floats | Flags | float) -> Floats:
        return np.where(np.isnan(by_name[name]), default, by_name[name])

    def size(name: str, default: Floats | float, *, silent: bool = False) -> Floats:
        default = usual(name, default)
        return columns.numbers(name, default, low=1, high=MAX_COUNT, whole=True, silent=silent)

    def flag(name: str, default: Flags | bool) -> Floats:
        return columns.flags(name, usual(name, default) > 0).astype(np.float64)

    heads = size("num_heads", np.maximum(np.round(hidden / 128), 1))
    width = columns.numbers("ffn_hidden_size", low=1, high=MAX_COUNT, silent=True)
    # a plain mlp is four times as wide as the model; any other width is that of a gated one
    odd = ~np.isnan(width) & (width != 4 * hidden)
    gated = flag("gated_mlp", np.isin(columns.strings("family", ""), ["llama", "t5"]) | odd)
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": size("num_kv_heads", heads, silent=True),
        "head_dim": size("head_dim", hidden / heads, silent=True),
        "ffn_hidden_size": size("ffn_hidden_size", np.where(gated > 0, 8 / 3, 4.0) * hidden),
        "vocab_size": size("vocab_size", _GPT2_VOCABULARY),
        "num_encoder_layers": columns.numbers(
            "num_encoder_layers",
            usual("num_encoder_layers", 0.0),
            high=MAX_COUNT,
            whole=True,
            silent=True,
        ),
        "gated_mlp": gated,
        "tied_embeddings": flag("tied_embeddings", False),
        "query_key_norm": flag("query_key_norm", False),
        "max_positions": columns.numbers(
            "max_positions", usual("max_positions", 0.0), high=MAX_COUNT, whole=True, silent=True
        ),
        **read_optional_parts(columns, layers, by_name),
    }
