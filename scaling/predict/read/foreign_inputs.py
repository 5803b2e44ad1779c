"""Read tables of others as inputs: derive or assume what is missing, note what is unpredictable."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scaling.cluster.hardware import Cluster, gpu_named
from scaling.foreign.arrays import Floats, Strings
from scaling.foreign.columns import Columns
from scaling.foreign.decoder_parts import PLAIN_ATTENTION, attention_kinds, window_tokens
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
from scaling.layout.axes import AXES, ROUTINGS, SETTING_AXES
from scaling.layout.shapes import ModelShape
from scaling.predict.read.clusters import cluster_named, cluster_names
from scaling.predict.read.foreign_clusters import clusters_of
from scaling.predict.read.foreign_shapes import shapes_of_rows
from scaling.predict.read.foreign_stacks import (
    frameworks_of,
    recomputes,
    stacks_of_rows,
)
from scaling.predict.read.inputs import (
    UNPREDICTED,
    Inputs,
    left_out_sentences,
    predictable_rows,
    ranks_per_expert,
    schedule_codes,
)
from scaling.predict.read.stack_facts import Stack

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
    shape = shapes_of_rows(columns, model, models or {}, note)
    per_node = columns.counts("gpus_per_node")
    layout: dict[str, Any] = _layout(columns, per_node, cluster, clusters)
    skip_inconsistent_layouts(columns, layout)
    _note_unmodelled(columns, shape, note)
    framework = frameworks_of(columns)
    stacks = stacks_of_rows(framework, cluster, clusters)
    defaults = _SILENT_CHOICES | {name: str(AXES[name].default) for name in SETTING_AXES}
    choices = {
        name: columns.strings(name, default, AXIS_WORDS.get(name), silent=True)
        for name, default in defaults.items()
    }
    per_module = recomputes(columns, stacks)
    ep = np.maximum(columns.counts("ep", low=0, default=1.0, silent=True), 1.0)  # 0: none
    etp = columns.counts("etp")
    inputs = Inputs(
        model=model,
        cluster=cluster,
        framework=framework,
        shape=shape,
        seq_length=columns.counts("seq_length"),
        gpus_per_node=per_node,
        **{name: layout[name] for name in ("world_size", *DEGREES, *BATCH_FACTORS[:2])},
        **_software_choices(columns, stacks, layout),
        # Inductor fuses a norm into one kernel
        fused_norm=columns.flags("fused_norm", False) | columns.flags("compile", False),
        fused_mlp=columns.flags("fused_mlp", False),
        fused_cross_entropy=columns.flags("fused_cross_entropy", False),
        offload=choices["optimizer_offload"] == "cpu",
        short_states=choices["optimizer_precision"] == "bf16",
        compiled=columns.flags("compile", False),
        schedule=schedule_codes(choices["pipeline_schedule"]),
        attention=columns.strings("attention", "flash2", AXIS_WORDS["attention"]),
        checkpointing=np.where(per_module, "none", choices["activation_checkpointing"]),
        recomputes=per_module,
        precision=_precisions(columns, cluster, clusters),
        ep=ep,
        etp=np.where(np.isnan(etp), ranks_per_expert(framework, layout["tp"], ep), etp),
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
    stacks: Sequence[Stack],
    layout: Mapping[str, Floats],
) -> dict[str, Any]:
    """Choices that depend on the row's software where the table does not state them."""

    def usual(fact: str) -> Floats:
        return np.array([getattr(stack, fact) for stack in stacks], dtype=np.float64)

    stage = columns.numbers("zero_stage", usual("zero_stage"), whole=True)
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
            columns.numbers("virtual_stages", 1.0, whole=True, silent=True), 1.0
        ),
        "ring": (style == "ring") | (style == "") & (usual("ring") > 0),
        "sequence_parallel": columns.flags(
            "sequence_parallel", (usual("sequence_parallel") > 0) & (layout["tp"] > 1)
        ),
    }


# Defaults taken without telling the user.
_SILENT_CHOICES = {
    "optimizer_offload": "none",
    "engine": "deepspeed",
    "pipeline_schedule": "1f1b",
    "optimizer_precision": "fp32",
    "activation_checkpointing": "none",  # which `recomputes` tells
}


def _precisions(columns: Columns, cluster: Strings, clusters: Mapping[str, Cluster]) -> Strings:
    """Each row's precision, (n,); where it states none, what its GPU usually trains in."""
    name, described = "precision", cluster_names(clusters)
    gpus = {each: gpu_named(cluster_named(each, clusters).gpu) for each in described & {*cluster}}
    usual = [gpus[each].usual_precision if each in gpus else "bf16" for each in cluster.tolist()]
    stated = columns.strings(name, "", AXIS_WORDS[name], silent=True)
    unstated = stated == ""
    for assumed, rows in Counter(np.array(usual, object)[unstated].tolist()).items():
        columns.assume(f"{name} is not given in {rows} rows: taken as {assumed}")
    return np.where(unstated, np.array(usual, object), stated)


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
        nodes = columns.counts("nodes")
        gpus = nodes * np.where(np.isnan(per_node), usual, per_node)
        # part of one node may be used, but hardly part of several
        odd = (layout["world_size"] > gpus) | (layout["world_size"] < gpus) & (nodes > 1)
        if odd.any():
            columns.assume(f"world_size of {int(odd.sum())} rows is not nodes x GPUs of a node")
        layout["world_size"] = np.where(np.isnan(layout["world_size"]), gpus, layout["world_size"])
    # cp follows from the world size only where the other degrees are stated
    others = layout["tp"] * layout["pp"] * layout["dp"]
    layout["cp"] = np.where(np.isnan(layout["cp"]) & np.isnan(others), 1.0, layout["cp"])
    layout = complete_layout(layout)
    for names in (("tp", "pp", "cp"), ("dp",)):
        for name in names:
            if name != "cp" and (alone := int(np.isnan(layout[name]).sum())):
                columns.assume(f"{name} is not given in {alone} rows: taken as 1")
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
    return left_out_sentences({n: columns.flags(n, False, silent=True) for n in UNPREDICTED})
