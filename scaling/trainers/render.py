"""The command line and the files by which a program is told a layout."""

import dataclasses
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.cluster.hardware import GPUS
from scaling.layout.engines import ENGINES, engine_module, engine_refusals
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.study.point import Point
from scaling.trainers.entries import (
    PLACEHOLDER,
    Trainer,
    default_of,
    key_of,
    trainer_named,
    values_of,
)

FOLDER = Path("launch")  # where printed commands look for their files


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of a layout with a program; `refused` says what the program cannot be told."""

    program: str
    command: tuple[str, ...]  # of one rank; it names the folder for the files
    environment: dict[str, str]
    files: dict[str, str]  # name -> content
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    shell: str  # what a person types to start all ranks of one machine, or of one of several


def point_to_start(
    model: str, shape: ModelShape, layout: Layout, *, cluster: str, gpu: str, gpus_per_node: int
) -> Point:
    """The point of a layout that no study has planned: 3 steps of warm-up, 10 measured."""
    peaks = GPUS[gpu].peaks if gpu in GPUS else {}
    return Point(
        study="command", study_kind="strong", point_id=layout.file_name, repeat=0, model=model,
        shape=shape, cluster=cluster, gpu=gpu, gpus_per_node=gpus_per_node,
        peak_flop_per_s=peaks.get(layout.precision), layout=layout, seed=0,
        warmup_steps=3, measured_steps=10, time_limit_s=3600.0,
    )  # fmt: skip


def start_of(point: Point, program: str, folder: Path = FOLDER) -> Start:
    """The start of a point's layout with an engine of ours or an entry of config/trainers.yaml."""
    layout = dataclasses.replace(point.layout, engine=program)
    asked = dataclasses.replace(point, layout=layout)
    refused = tuple(engine_refusals(asked.shape, layout, asked.gradient_clipping))
    if program not in ENGINES:
        entry = trainer_named(program)
        notes = (f"{program}: {entry.untold}",) if entry.untold else ()
        return dataclasses.replace(render(entry, asked, folder), notes=notes, refused=refused)
    words = ("scaling", "measure", str(folder / "point.json"), str(folder / "row.parquet"))
    files, notes = {"point.json": asked.to_json()}, ()
    if program == "deepspeed":
        settings = engine_module(program, "config").deepspeed_config(
            asked.shape, layout, asked.gradient_clipping
        )
        files["ds_config.json"] = json.dumps(settings, indent=1) + "\n"
        notes = ("a script of yours takes ds_config.json: deepspeed.initialize(config=...)",)
    return Start(
        program=program,
        command=words,
        environment={},
        files=files,
        notes=notes,
        refused=refused,
        shell=shlex.join(words),
    )


def render(trainer: Trainer, point: Point, folder: Path) -> Start:
    """The start of a point with another program, whose files lie in `folder`."""
    stated, derived = values_of(point.shape, point.layout), _derived(point)
    values = stated | derived | {"files": str(folder)}
    words = list(trainer.command)
    for name, ways in trainer.flags.items():
        value, default = stated[name], default_of(name)
        if isinstance(ways, dict):
            words += ways.get(key_of(value), ())
        elif value != default:
            words += ways

    def filled(text: str) -> str:
        return PLACEHOLDER.sub(lambda match: _text(values[match[1]]), text)

    environment = {}
    for name, text in trainer.environment.items():
        if isinstance(text, dict):  # an axis -> its values -> the variable's
            ((axis, by_value),) = text.items()
            if (key := key_of(stated[axis])) in by_value:
                environment[name] = filled(by_value[key])
        else:
            environment[name] = filled(text)
    command = started = tuple(filled(word) for word in words)
    if command[:1] == ("python",):
        launcher = ["torchrun", "--nproc-per-node", str(derived["gpus_per_node"])]
        if derived["nodes"] > 1:
            launcher += ["--nnodes", str(derived["nodes"]), "--rdzv-backend", "c10d"]
            launcher += ["--rdzv-endpoint", "FIRST-HOST:29500"]
        started = (*launcher, *command[1:])
    settings = [f"{name}={shlex.quote(text)}" for name, text in environment.items()]
    return Start(
        program=point.layout.engine,
        command=command,
        environment=environment,
        files={name: filled(text) for name, text in trainer.files.items()},
        shell=" ".join([*settings, shlex.join(started)]),
    )


def _derived(point: Point) -> dict[str, Any]:
    layout, shape = point.layout, point.shape
    return {
        "world_size": layout.world_size,
        "global_batch_size": layout.global_batch_size,
        "gpus_per_node": min(point.gpus_per_node, layout.world_size),
        "nodes": -(-layout.world_size // point.gpus_per_node),
        "steps": point.warmup_steps + point.measured_steps,
        "seed": point.seed,
        "tokens_per_micro_batch": layout.micro_batch_size * layout.seq_length,
        "tokens_per_step": layout.global_batch_size * layout.seq_length,
        "expert_layers": shape.expert_layers,
        "shared_ffn_hidden_size": shape.shared_experts * shape.expert_ffn_hidden_size,
    }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
