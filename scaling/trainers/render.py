"""The command line and the files by which a program is told a layout: lists, never shell text."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.study.point import Point
from scaling.trainers.entries import (
    PLACEHOLDER,
    Trainer,
    default_of,
    key_of,
    values_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """What starts one rank; `files` go into the folder that the command names."""

    command: tuple[str, ...]
    environment: dict[str, str]
    files: dict[str, str]  # name -> content


def render(trainer: Trainer, point: Point, folder: Path) -> Rendered:
    """The command, environment and files for a point, whose files lie in `folder`."""
    stated = values_of(point.shape, point.layout)
    values = stated | _derived(point) | {"files": str(folder)}
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
    return Rendered(
        command=tuple(filled(word) for word in words),
        environment=environment,
        files={name: filled(text) for name, text in trainer.files.items()},
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


def own_interpreter(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command with this process's Python for `python`, which may be none or another."""
    return (sys.executable, *command[1:]) if command[:1] == ("python",) else command


def shell_text(rendered: Rendered, point: Point) -> str:
    """What a person types to start all ranks of one machine, or of one of several."""
    values = _derived(point)
    started = list(rendered.command)
    if started[:1] == ["python"]:
        launcher = ["torchrun", "--nproc-per-node", str(values["gpus_per_node"])]
        if values["nodes"] > 1:
            launcher += ["--nnodes", str(values["nodes"]), "--rdzv-backend", "c10d"]
            launcher += ["--rdzv-endpoint", "FIRST-HOST:29500"]
        started = launcher + started[1:]
    settings = [f"{name}={shlex.quote(text)}" for name, text in rendered.environment.items()]
    return " ".join([*settings, shlex.join(started)])
