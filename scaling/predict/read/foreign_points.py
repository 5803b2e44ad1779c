"""Read tables of others as inputs: derive or assume what is missing, note what is unpredictable."""

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
from scaling.predict.read.clusters import cluster_named, cluster_names
from scaling.predict.read.foreign_clusters import clusters_of
from scaling.predict.read.foreign_stacks import (
    frameworks_of,
    has_unfused_norms,
    ranks_per_expert,
    recomputes,
    stacks_of_rows,
)
from scaling.predict.read.inputs import (
    PREDICTED_SCHEDULES,
    SHAPE,
    UNPREDICTED,
    Inputs,
    left_out_sentences,
    predictable_rows,
    schedule_codes,
)
from scaling.predict.read.stack_facts import Stack
from scaling.predict.read.stacks import named_zero_stage

_GPT2_VOCABULARY = 50304.0  # padded to a multiple of 128
_WIDTH_PER_LAYER = 128.0  # hidden_size / num_layers of GPT-3 175B (12288 / 96)
# Sizes without which a row cannot be predicted.
_NEEDED = ("num_layers", "hidden_size", "num_heads", "vocab_size", "ffn_hidden_size")


def inputs_of(
    columns: Columns, *, models: Mapping[str, ModelShape] | None, clusters: Mapping[str, Cluster]
) -> Inputs:
    """Check a table, complete it, and note the rows that cannot be predicted.

    Raises:
        InputError: a cell holds what no layout can have, or a needed column is missing.
    """
    n = len(columns)
    note = np.full(n, None, dtype=object)
    skip_adapter_training(columns)
    columns.strings("outcome", "", OUTCOMES, silent=True)  # sets rows with an unknown outcome aside
    model = columns.strings("model", "unnamed")
    cluster = clusters_of(columns, clusters, note)
    shape = _shapes(columns, model, models or {}, note)
    per_node = columns.counts("gpus_per_node")
    layout: dict[str, Any] = _layout(columns, per_node, cluster, clusters)
    skip_inconsistent_layouts(columns, layout)
    _note_unmodelled(columns, shape, note)
    framework = frameworks_of(columns)
    unfused = has_unfused_norms(columns, framework, cluster)
    stacks = stacks_of_rows(framework, cluster, unfused, clusters)
    words = {
        name: columns.strings(name, default, AXIS_WORDS[name]) for name, default in _CHOICES.items()
    }
    defaults = _SILENT_CHOICES | {name: str(AXES[name].default) for name in SETTING_AXES}
    choices = {
        name: columns.strings(name, default, AXIS_WORDS.get(name), silent=True)
        for name, default in defaults.items()
    }
    inputs = Inputs(
        model=model,
        cluster=cluster,
        framework=framework,
        shape=shape,
        seq_length=columns.counts("seq_length"),
        gpus_per_node=per_node,
        **{name: layout[name] for name in ("world_size", *DEGREES, *BATCH_FACTORS[:2])},
        **_software_choices(columns, framework, stacks, shape["num_layers"], layout),
        # Inductor fuses a norm into one kernel
        fused_norm=columns.flags("fused_norm", False) | columns.flags("compile", False),
        fused_mlp=columns.flags("fused_mlp", False),
        fused_cross_entropy=columns.flags("fused_cross_entropy", False),
        offload=choices["optimizer_offload"] == "cpu",
        short_states=choices["optimizer_precision"] == "bf16",
        compiled=columns.flags("compile", False),
        schedule=schedule_codes(choices["pipeline_schedule"]),
        attention=words["attention"],
        checkpointing=words["activation_checkpointing"],
        recomputes=recomputes(columns, stacks),
        unfused=unfused,
        precision=words["precision"],
        ep=np.maximum(columns.counts("ep", low=0, default=1.0, silent=True), 1.0),  # 0: none
        etp=ranks_per_expert(columns, layout["tp"]),
        imbalance=np.array([ROUTINGS[name] for name in choices["routing"].tolist()], np.float64),
        setting=np.array(
            ["|".join(row) for row in zip(*(choices[n] for n in SETTING_AXES), strict=True)],
            object,
        ),
        note=note,
        assumptions=(),
        point_id=columns.strings("point_id", "") if "point_id" in columns else None,
    )
    columns.assumptions += _left_out_choices(columns)
    for row, sentence in columns.skipped.items():
        note[row] = note[row] or sentence
    return inputs


def _software_choices(
    columns: Columns,
    framework: Strings,
    stacks: Sequence[Stack],
    layers: Floats,
    layout: Mapping[str, Floats],
) -> dict[str, Any]:
    """Choices that depend on the row's software where the table does not state them."""

    def usual(fact: str) -> Floats:
        return np.array([getattr(stack, fact) for stack in stacks], dtype=np.float64)

    # at least two layers per chunk, unless the table states smaller chunks
    most_chunks = np.maximum(np.floor(layers / layout["pp"] / 2), 1.0)
    chunks = np.where(layout["pp"] > 1, np.minimum(usual("virtual_stages"), most_chunks), 1.0)
    unstated = np.isnan(columns.numbers("virtual_stages", whole=True)) & (chunks > 1)
    if unstated.any():
        columns.assume(
            f"virtual_stages is not given in {int(unstated.sum())} rows: taken as the software's"
        )
    stage_of = {name: named_zero_stage(name) for name in {*framework.tolist()}}
    named = np.array([stage_of[name] for name in framework.tolist()], dtype=np.float64)
    usual_stage = np.where(np.isnan(named), usual("zero_stage"), named)
    stage = columns.numbers("zero_stage", usual_stage, whole=True)
    shard = columns.counts("zero_shard_size")
    if "fsdp" in columns:  # of Megatron-Bridge: the ranks over which everything is sharded
        fsdp = fsdp_ranks(columns)
        stage = np.where(fsdp > 1, 3.0, stage)
        shard = np.where((fsdp > 1) & np.isnan(shard), np.minimum(fsdp, layout["dp"]), shard)
    style = columns.strings("cp_style", "", {"all_to_all", "ring", ""}, silent=True)
    return {
        "zero_stage": stage,
        "zero_shard_size": shard,
        "virtual_stages": np.maximum(
            columns.numbers("virtual_stages", chunks, whole=True, silent=True), 1.0
        ),
        "ring": (style == "ring") | (style == "") & (usual("ring") > 0),
        "sequence_parallel": columns.flags(
            "sequence_parallel", (usual("sequence_parallel") > 0) & (layout["tp"] > 1)
        ),
    }


# Defaults taken without telling the user, and defaults that are told as assumptions.
_SILENT_CHOICES = {
    "optimizer_offload": "none",
    "engine": "deepspeed",
    "pipeline_schedule": "1f1b",
    "optimizer_precision": "fp32",
}
_CHOICES = {"attention": "flash2", "activation_checkpointing": "none", "precision": "bf16"}


def _layout(
    columns: Columns, per_node: Floats, cluster: Strings, clusters: Mapping[str, Cluster]
) -> dict[str, Floats]:
    """Degrees and batch; those neither stated nor implied by others are 1."""
    layout = read_layout(columns)
    if "nodes" in columns:
        described = cluster_names(clusters)
        usual = [
            cluster_named(name, clusters).gpus_per_node if name in described else np.nan
            for name in cluster.tolist()
        ]
        gpus = columns.counts("nodes") * np.where(np.isnan(per_node), usual, per_node)
        layout["world_size"] = np.where(np.isnan(layout["world_size"]), gpus, layout["world_size"])
    # cp follows from the world size only where the other degrees are stated
    others = layout["tp"] * layout["pp"] * layout["dp"]
    layout["cp"] = np.where(np.isnan(layout["cp"]) & np.isnan(others), 1.0, layout["cp"])
    layout = complete_layout(layout)
    for name in ("tp", "pp"):
        if alone := int(np.isnan(layout[name]).sum()):
            columns.assume(f"{name} is not given in {alone} rows: taken as 1")
    for names in (("tp", "pp", "cp"), ("dp",)):
        for name in names:
            layout[name] = np.where(np.isnan(layout[name]), 1.0, layout[name])
        layout = complete_layout(layout)
    for name in BATCH_FACTORS[:2]:
        missing = np.isnan(layout[name])
        if missing.any():
            columns.assumptions.append(f"{name} is not given in {missing.sum()} rows: taken as 1")
        layout[name] = np.where(missing, 1.0, layout[name])
        layout = complete_layout(layout)
    return layout


def _note_unmodelled(columns: Columns, shape: Mapping[str, Floats], note: Strings) -> None:
    """Note the rows whose model is incomplete, or has parts that the formulas do not know."""
    together = (shape["num_experts"] > 0) & np.isnan(columns.counts("ep", low=0))
    if together.any():
        columns.assume(
            f"ep is not given in {int(together.sum())} rows of models with experts: taken as 1"
        )
    kind = attention_kinds(columns)
    modelled = np.isin(kind, [*PLAIN_ATTENTION, "mla"]) | (window_tokens(kind) > 0)
    lacks_size = (shape["experts_per_token"] == 0) | (shape["expert_ffn_hidden_size"] == 0)
    needed = {name: shape[name] for name in _NEEDED} | {"seq_length": columns.counts("seq_length")}
    reasons = {
        "attention_kind is none that is modelled (mha, gqa, mqa, mla, windows)": ~modelled,
        "num_experts without experts_per_token and expert_ffn_hidden_size": (
            (shape["num_experts"] > 0) & lacks_size
        ),
        **{f"{name} is not given": np.isnan(values) for name, values in needed.items()},
    }
    for reason, rows in reasons.items():
        note[rows & predictable_rows(note)] = reason


def _left_out_choices(columns: Columns) -> list[str]:
    """A sentence for each choice of the table that predictions leave out."""
    name = "pipeline_schedule"
    schedule = columns.strings(name, "1f1b", AXIS_WORDS[name], silent=True)
    chosen: dict[str, Flags] = {name: ~np.isin(schedule.astype(str), PREDICTED_SCHEDULES)}
    for name in UNPREDICTED:
        chosen[name] = columns.flags(name, False, silent=True)
    return left_out_sentences(chosen)


def _shapes(
    columns: Columns, model: Strings, models: Mapping[str, ModelShape], note: Strings
) -> dict[str, Floats]:
    """The shape of each row's model by the names of SHAPE, (n,) each, NaN where unknown.

    In order of preference: shape columns; the model of `models` that the name means, unless stated
    layers or width contradict it; the shape of a GPT of 128 hidden elements a layer that has
    `total_params`, which is told as an assumption.

    Raises:
        InputError: the table has none of these, or no row's model is known.
    """
    has_shape = "num_layers" in columns and "hidden_size" in columns
    hidden, layers = columns.counts("hidden_size"), columns.counts("num_layers")
    meant = {name: find_model(name, models) for name in dict.fromkeys(model.tolist())}
    by_model = {name: np.full(len(columns), np.nan) for name in SHAPE}
    for name, catalogue_name in meant.items():
        if catalogue_name is not None:
            shape = models[catalogue_name]
            rows = (model == name) & (np.isnan(layers) | (layers == shape.num_layers))
            rows &= np.isnan(hidden) | (hidden == shape.hidden_size)
            for part in SHAPE:
                by_model[part][rows] = float(getattr(shape, part))
            if not has_shape and catalogue_name != name:
                columns.assume_meaning("model", name, catalogue_name)
    if not has_shape and "total_params" not in columns and len(columns):
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
    return _completed_shape(columns, layers, hidden, by_model)


def _completed_shape(
    columns: Columns, layers: Floats, hidden: Floats, by_model: Mapping[str, Floats]
) -> dict[str, Floats]:
    """Shape columns, completed from the catalogue's model (`by_model`) and from usual ratios."""
    layers = np.where(np.isnan(layers), by_model["num_layers"], layers)
    hidden = np.where(np.isnan(hidden), by_model["hidden_size"], hidden)
    implied = np.isnan(layers) | np.isnan(hidden)
    if "total_params" in columns and implied.any():
        # 12 L h^2 parameters with h = 128 L
        params = columns.numbers("total_params", low=1, high=MAX_EXACT_INT)
        depth = np.maximum(np.round(np.cbrt(params / (12 * _WIDTH_PER_LAYER**2))), 1)
        layers = np.where(np.isnan(layers), depth, layers)
        hidden = np.where(np.isnan(hidden), _WIDTH_PER_LAYER * layers, hidden)
        columns.assumptions.append(
            f"num_layers and hidden_size are not given in {int(implied.sum())} rows: total_params "
            "taken as a GPT of 128 hidden elements a layer"
        )

    def usual(name: str, default: Floats | Flags | float) -> Floats:
        return np.where(np.isnan(by_model[name]), default, by_model[name])

    def size(name: str, default: Floats | float, *, low: float = 1, silent: bool = False) -> Floats:
        default = usual(name, default)
        return columns.numbers(name, default, low=low, high=MAX_COUNT, whole=True, silent=silent)

    def flag(name: str, default: Flags | bool) -> Floats:
        return columns.flags(name, usual(name, default) > 0).astype(np.float64)

    heads = size("num_heads", np.maximum(np.round(hidden / 128), 1))
    ungrouped = np.isnan(by_model["num_kv_heads"]) & np.isnan(columns.counts("num_kv_heads"))
    if ungrouped.any():
        columns.assume(
            f"num_kv_heads is not given in {int(ungrouped.sum())} rows: taken as num_heads"
        )
    width = columns.numbers("ffn_hidden_size", low=1, high=MAX_COUNT, silent=True)
    # an mlp whose width is not four times the model's is taken as gated
    unusual = ~np.isnan(width) & (width != 4 * hidden)
    gated = flag("gated_mlp", np.isin(columns.strings("family", ""), ["llama", "t5"]) | unusual)
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": size("num_kv_heads", heads, silent=True),
        "head_dim": size("head_dim", hidden / heads, silent=True),
        "ffn_hidden_size": size("ffn_hidden_size", np.where(gated > 0, 8 / 3, 4.0) * hidden),
        "vocab_size": size("vocab_size", _GPT2_VOCABULARY),
        "num_encoder_layers": size("num_encoder_layers", 0.0, low=0, silent=True),
        "gated_mlp": gated,
        "tied_embeddings": flag("tied_embeddings", False),
        "query_key_norm": flag("query_key_norm", False),
        "max_positions": size("max_positions", 0.0, low=0, silent=True),
        **read_optional_parts(columns, layers, by_model),
    }
