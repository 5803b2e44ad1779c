"""Layouts of a table of our columns: what a row leaves open is derived, assumed or noted.

The columns follow from the tables `AXES` and `ModelShape`, so a new axis is read with no line here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from scaling.arrays import Column, Flags, Floats, Strings
from scaling.cluster.hardware import Cluster, Gpu, gpu_named
from scaling.errors import InputError, did_you_mean, shortened
from scaling.layout.axes import AXES, DEFAULTS
from scaling.layout.optional_parts import PART_SIZES, parts_of_kind
from scaling.layout.shapes import ModelShape
from scaling.predict.read.clusters import cluster_named, cluster_names
from scaling.predict.read.features import AS_MEMORY_ASKS
from scaling.predict.read.stacks import (
    OWN_STACKS,
    UNNAMED_FRAMEWORK,
    own_framework,
    stack_of,
)

if TYPE_CHECKING:
    from scaling.importing.reader import Table  # it loads duckdb

# Sizes of a layout that are no axes.
SIZES = ("world_size", "dp", "gradient_accumulation_steps", "seq_length")
SHAPE = tuple(each.name for each in fields(ModelShape) if each.type in (int, bool))
# A shape's sizes that a row need not state.
_ABSENT = {
    each.name: float(each.default)
    for each in fields(ModelShape)
    if each.name in SHAPE and each.default is not MISSING
}
# Sizes without which a row cannot be predicted.
_NEEDED = ("num_layers", "hidden_size", "num_heads", "vocab_size", "seq_length")
_OURS = ("point_id", "engine", "stack_fingerprint")  # columns that only rows of this project have
_MEASURED = ("outcome", "step_time_s", "peak_memory_bytes")


class Cells:
    """The columns of a checked table by name, (n,) each; a column that it lacks is empty."""

    def __init__(self, table: "Table") -> None:
        self.table = table
        self.assumptions: list[str] = []

    def __len__(self) -> int:
        return int(self.table.rows.num_rows)

    def __contains__(self, name: str) -> bool:
        return name in self.table.rows.column_names

    def numbers(self, name: str, default: Floats | float = np.nan) -> Floats:
        """A column of numbers or flags; NaN, or the default, for empty cells."""
        if name not in self:
            return np.broadcast_to(np.asarray(default, np.float64), (len(self),)).copy()
        column = self.table.rows[name]
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return np.where(np.isnan(values), default, values)

    def words(self, name: str, default: Strings | str = "") -> Strings:
        """A column of words; the default for empty cells."""
        if name not in self:
            return np.broadcast_to(np.asarray(default, object), (len(self),)).copy()
        column = self.table.rows[name]
        values = np.array(column.to_pylist(), dtype=object)
        return np.where(column.is_null().to_numpy(), default, values)

    def choices(self, name: str, kind: type, default: Any) -> Column:
        """A column of an axis with values of this kind; the default for empty cells."""
        if kind is bool:
            return self.numbers(name, np.asarray(default, np.float64)) > 0
        if kind is int:
            return self.numbers(name, np.nan if default is None else default)
        return self.words(name, default)

    def assume(self, name: str, rows: Flags, taken_as: str) -> None:
        """Say what was assumed where rows leave a column empty."""
        if rows.any():
            self.assumptions.append(
                f"{name} is not given in {int(rows.sum())} rows: taken as {taken_as}"
            )


def predictable_rows(note: Strings) -> Flags:
    """Mask of rows without a note against them, (n,)."""
    return np.array([reason is None for reason in note.tolist()], dtype=bool)


def columns_of_table(
    table: "Table", *, models: Mapping[str, ModelShape] | None, clusters: Mapping[str, Cluster]
) -> tuple[dict[str, Column], dict[str, Strings], Strings, list[str]]:
    """A table's columns, completed; its names; why rows cannot be predicted; what was assumed.

    Columns are those of AXES, SIZES and SHAPE and `gpus_per_node`, numbers NaN where unknown. Names
    are model, cluster, framework and point_id, which only some tables have.

    Raises:
        InputError: no row's cluster is known.
    """
    cells = Cells(table)
    note = np.full(len(cells), None, dtype=object)
    model, cluster = cells.words("model", "unnamed"), _clusters(cells, clusters, note)
    framework = _frameworks(cells)
    described = cluster_names(clusters)
    gpu_of = {
        name: gpu_named(cluster_named(name, clusters).gpu) if name in described else None
        for name in {*cluster.tolist()}
    }
    gpus = [gpu_of[name] for name in cluster.tolist()]
    shape = _shapes(cells, model, models or {})
    needed = {**shape, "seq_length": cells.numbers("seq_length")}
    for name in _NEEDED:
        note[np.isnan(needed[name]) & predictable_rows(note)] = f"{name} is not given"
    lacks = (shape["experts_per_token"] == 0) | (shape["expert_ffn_hidden_size"] == 0)
    lacks &= (shape["num_experts"] > 0) & predictable_rows(note)
    note[lacks] = "num_experts without experts_per_token and expert_ffn_hidden_size"
    sizes = _layout(cells, note)
    usual = _usual_choices(cells, framework, gpus, sizes["tp"])
    columns: dict[str, Column] = {
        name: cells.choices(name, axis.kind, usual.get(name, axis.default))
        for name, axis in AXES.items()
    }
    fsdp = cells.numbers("fsdp", 1.0)  # of Megatron-Bridge: the ranks that share everything
    shares = (fsdp > 1) & np.isnan(cells.numbers("zero_shard_size"))
    columns |= {
        **shape,
        **sizes,
        "seq_length": needed["seq_length"],
        "gpus_per_node": cells.numbers("gpus_per_node"),
        "zero_stage": np.where(fsdp > 1, 3.0, columns["zero_stage"]),
        "zero_shard_size": np.where(
            shares, np.minimum(fsdp, sizes["dp"]), columns["zero_shard_size"]
        ),
    }
    names = {"model": model, "cluster": cluster, "framework": framework}
    if "point_id" in cells:
        names["point_id"] = cells.words("point_id")
    return columns, names, note, cells.assumptions


def _usual_choices(
    cells: Cells, framework: Strings, gpus: Sequence[Gpu | None], tp: Floats
) -> dict[str, Column]:
    """The choices of software and GPU where a row states none, (n,) each, by axis."""
    stacks = [stack_of(name, gpu) for name, gpu in zip(framework, gpus, strict=True)]

    def usual(fact: str) -> Floats:
        return np.array([getattr(stack, fact) for stack in stacks], dtype=np.float64)

    recomputes, name = usual("recomputes_modules") > 0, "activation_checkpointing"
    cells.assume(name, recomputes & (cells.words(name) == ""), "what their memory asks for")
    cells.assume(name, ~recomputes & (cells.words(name) == ""), "none")
    cells.assume("precision", cells.words("precision") == "", "what their GPUs usually train in")
    cells.assume("attention", cells.words("attention") == "", str(DEFAULTS["attention"]))
    train_in = ["bf16" if gpu is None else gpu.usual_precision for gpu in gpus]
    return {
        name: np.where(recomputes, AS_MEMORY_ASKS, "none").astype(object),
        "precision": np.array(train_in, dtype=object),
        "zero_stage": usual("zero_stage"),
        "cp_style": np.where(usual("ring") > 0, "ring", "all_to_all").astype(object),
        "sequence_parallel": (usual("sequence_parallel") > 0) & (tp > 1),
        # other software of today fuses its norms
        "fused_norm": ~np.isin(framework.astype(str), [*OWN_STACKS]),
    }


def _clusters(cells: Cells, clusters: Mapping[str, Cluster], note: Strings) -> Strings:
    """The cluster of each row, (n,): a described one, or the reference node of the row's GPU.

    Raises:
        InputError: no row's cluster is known; hardware is never guessed.
    """
    cluster, gpu = cells.words("cluster"), cells.words("gpu")
    described = cluster_names(clusters)
    known = np.array([name in described for name in cluster.tolist()], dtype=bool)
    meant = np.where(known, cluster, gpu)
    known = np.array([name in described for name in meant.tolist()], dtype=bool)
    if len(cells) and not known.any():
        first, place = str(cluster[0]), cells.table.place(0)
        if not first:
            raise InputError(f"{place}: cluster is not given: name the hardware of each row")
        hint = did_you_mean(first[:60], described)
        raise InputError(f"{place}: cluster={shortened(first)}: unknown: {hint}")
    for row in np.flatnonzero(~known):
        note[row] = f"cluster={shortened(cluster[row])} is unknown"
    return np.where(known, meant, cluster)


def _frameworks(cells: Cells) -> Strings:
    """Each row's framework, (n,); of rows that name none, this project's engine or `unnamed`.

    Others' rows are those with a `source`, and measured ones without a column of this project.
    """
    engine, stated = cells.words("engine", str(DEFAULTS["engine"])), cells.words("framework")
    ours = np.array([own_framework(name) for name in engine.tolist()], dtype=object)
    measured = any(name in cells for name in _MEASURED)
    others = (cells.words("source") != "") | (measured and not any(n in cells for n in _OURS))
    cells.assume("framework", (stated == "") & others, "software that nobody described")
    return np.where(stated != "", stated, np.where(others, UNNAMED_FRAMEWORK, ours))


def _shapes(cells: Cells, model: Strings, models: Mapping[str, ModelShape]) -> dict[str, Floats]:
    """The shape of each row's model by the names of SHAPE, (n,) each, NaN where unknown.

    Stated sizes count; what is not stated is that of the model of this name, or usual.
    """
    by_name = {name: np.full(len(cells), np.nan) for name in SHAPE}
    for name in {*model.tolist()} & models.keys():
        for part in SHAPE:
            by_name[part][model == name] = float(getattr(models[name], part))

    def size(name: str, default: Floats | float = np.nan) -> Floats:
        known = np.where(np.isnan(by_name[name]), default, by_name[name])
        return cells.numbers(name, known)

    hidden, layers, heads = size("hidden_size"), size("num_layers"), size("num_heads")
    width, gated = size("ffn_hidden_size"), size("gated_mlp")
    unusual = ~np.isnan(width) & (width != 4 * hidden)
    cells.assume("gated_mlp", np.isnan(gated), "true where the width is not four times the model's")
    gated = np.where(np.isnan(gated), unusual, gated)
    cells.assume("num_kv_heads", np.isnan(size("num_kv_heads")), "num_heads")
    parts = {name: size(name, 0.0) for name in PART_SIZES}
    kinds = cells.words("attention_kind")
    unsized = (parts["key_value_rank"] == 0) & (parts["window"] == 0) & ~np.isnan(layers)
    cells.assume("key_value_rank", unsized & (kinds == "mla"), "DeepSeek-V3's, as its other sizes")
    for row in np.flatnonzero(unsized & (kinds != "")):
        for name, value in parts_of_kind(kinds[row], int(layers[row])).items():
            parts[name][row] = value
    return {
        **{name: size(name, _ABSENT.get(name, np.nan)) for name in SHAPE},
        "num_kv_heads": size("num_kv_heads", heads),
        "head_dim": size("head_dim", hidden / heads),
        "ffn_hidden_size": np.where(np.isnan(width), np.where(gated > 0, 8 / 3, 4) * hidden, width),
        "gated_mlp": gated,
        **parts,
    }


def _layout(cells: Cells, note: Strings) -> dict[str, Any]:
    """Degrees and batch; dp and accumulation follow from the others where they are not stated."""
    degrees = {name: cells.numbers(name, 1.0) for name in ("tp", "pp", "cp")}
    for name in ("tp", "pp"):
        cells.assume(name, np.isnan(cells.numbers(name)), "1")
    others = degrees["tp"] * degrees["pp"] * degrees["cp"]
    world, dp = cells.numbers("world_size"), cells.numbers("dp")
    dp = np.where(np.isnan(dp), np.where(np.isnan(world), 1.0, world / others), dp)
    world = np.where(np.isnan(world), others * dp, world)
    batch, name = cells.numbers("global_batch_size"), "gradient_accumulation_steps"
    micro, steps = cells.numbers("micro_batch_size"), cells.numbers(name)
    unstated = np.isnan(micro) & (np.isnan(batch) | np.isnan(steps))
    cells.assume("micro_batch_size", unstated, "1")
    micro = np.where(np.isnan(micro), np.where(unstated, 1.0, batch / dp / steps), micro)
    unstated = np.isnan(steps) & np.isnan(batch)
    cells.assume(name, unstated, "1")
    steps = np.where(np.isnan(steps), np.where(unstated, 1.0, batch / dp / micro), steps)
    wrong = {
        "world_size is not a multiple of tp x pp x cp": dp % 1 != 0,
        "world_size is not tp x pp x cp x dp": world != others * dp,
        "global_batch_size is not a multiple of micro_batch_size x dp": (steps % 1 != 0)
        | (micro % 1 != 0),
    }
    for reason, rows in wrong.items():
        note[rows & predictable_rows(note)] = reason
    return {
        **degrees, "dp": dp, "world_size": world, "micro_batch_size": micro, name: steps,
    }  # fmt: skip
