"""A layout as a run to start: with this project, DeepSpeed or another program."""

import json
import math
from typing import Any

from scaling.layout.axes import AXES
from scaling.layout.layout import Layout
from scaling.layout.optional_parts import PART_DEFAULTS
from scaling.layout.shapes import ModelShape
from scaling.predict.read.clusters import site_models
from scaling.report.tables import SHAPE, Record
from scaling.trainers.entries import all_trainers
from scaling.trainers.render import Start, point_to_start, start_of

Run = dict[str, Any]  # `command`, `file`, `lines`: axes that the program cannot be told, notes

_NAMES = {
    "megatron": "Megatron-LM", "torchtitan": "torchtitan", "nemo": "NeMo",
    "hf": "Hugging Face Trainer",
}  # fmt: skip


def runs(group: Record, row: Record, *, programs: bool) -> dict[str, Run]:
    """By program the run of a layout; without `programs` only that of this project.

    Other programs need the whole shape of the model, which published rows may lack.
    """
    command = "scaling run one_layout  # reads config/studies/one_layout.yaml"
    model, shape = group["model"], shape_of(group)
    known = site_models().get(model)
    lines = [f"config/models.yaml has no {model} of this shape: name its config.json instead."]
    lines = [] if known and shape in (None, known) else lines
    told = {"This project": Run(command=command, file=study_yaml(group, row), lines=lines)}
    if not programs or shape is None:
        return told
    point = point_to_start(
        model, shape, layout_of(group, row), cluster=group["cluster"],
        gpu=group["gpu"] or "", gpus_per_node=group["gpus_per_node"] or row["world_size"],
    )  # fmt: skip
    if row["engine"] == "deepspeed":
        per_node = min(point.world_size, point.gpus_per_node)
        where = f"--num_nodes {math.ceil(point.world_size / per_node)} --num_gpus {per_node}"
        told["DeepSpeed"] = Run(
            command=f"deepspeed {where} train.py --deepspeed_config ds_config.json",
            file=start_of(point, "deepspeed").files["ds_config.json"],
            lines=(),
        )
    for program, entry in all_trainers().items():
        if entry.command:
            told[_NAMES.get(program, program)] = _run_of(start_of(point, program))
    return told


def _run_of(start: Start) -> Run:
    """The shell line and the files of a program, and what of the layout they do not say."""
    files = "\n".join(f"# {name}\n{text}" for name, text in start.files.items())
    return Run(command="", file=f"{start.shell}\n{files}", lines=(*start.refused, *start.notes))


def shape_of(group: Record) -> ModelShape | None:
    """The model's shape; None if a size of it is unknown. Parts that came later may be unstated."""
    sizes = {name: group[name] for name in SHAPE}
    sizes |= {name: PART_DEFAULTS[name] for name in PART_DEFAULTS if sizes[name] is None}
    return None if None in sizes.values() else ModelShape(**sizes)


def layout_of(group: Record, row: Record) -> Layout:
    """The layout of a row; axes that it does not state are at their default."""
    stated = {name: row[name] for name in AXES if row[name] is not None}
    return Layout(
        **stated,
        dp=row["dp"],
        gradient_accumulation_steps=row["gradient_accumulation_steps"],
        seq_length=group["seq_length"],
    )


def study_yaml(group: Record, row: Record) -> str:
    """A study file that measures this layout at this size; axes at their default are left out."""
    kind = group["study_kind"]
    batch = "global_batch_size" if kind == "strong" else "batch_size_per_gpu"
    axes: dict[str, Any] = {
        "model": group["model"],
        "cluster": group["cluster"],
        "world_size": row["world_size"],
        batch: group["kept_batch_size"],
        "seq_length": group["seq_length"],
    }
    axes |= {
        name: row[name]
        for name, axis in AXES.items()
        if row[name] is not None and row[name] != axis.default
    }
    lines = [f"  {name}: {_scalar(value)}" for name, value in axes.items()]
    return "\n".join([f"title: {_scalar('One layout')}", f"kind: {kind}", "axes:", *lines, ""])


def _scalar(value: Any) -> str:
    """A YAML scalar: JSON is YAML, and quotes whatever a name may hold."""
    return json.dumps(value, ensure_ascii=False)
