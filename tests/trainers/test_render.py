"""The command of a layout with each program, as golden texts."""

import dataclasses
from pathlib import Path

import pytest

from scaling.layout.layout import Layout
from scaling.study.point import Point
from scaling.trainers.entries import axis_refusals, load_trainers
from scaling.trainers.render import render
from tests.conftest import PROJECT
from tests.shipped import MODELS

TRAINERS = load_trainers(PROJECT / "config" / "trainers.yaml")
LAYOUTS = {
    "megatron": ("mixtral_8x7b", {"tp": 2, "ep": 4, "dp": 8, "zero_stage": 1,
                                  "sequence_parallel": True, "activation_checkpointing": "full"}),
    "torchtitan": ("llama3_8b", {"tp": 2, "dp": 8, "zero_stage": 3,
                                 "activation_checkpointing": "selective"}),
    "nemo": ("llama3_8b", {"tp": 2, "pp": 2, "dp": 4, "zero_stage": 1, "precision": "fp8"}),
    "hf": ("llama3_8b", {"dp": 8, "zero_stage": 3, "activation_checkpointing": "full"}),
}  # fmt: skip


def point_of(model, **layout):
    layout = Layout(seq_length=4096, micro_batch_size=2, gradient_accumulation_steps=4, **layout)
    return Point(
        study="s", study_kind="strong", point_id="p", repeat=0, model=model, shape=MODELS[model],
        cluster="c", gpu="h100-80gb", gpus_per_node=8, peak_flop_per_s=None, layout=layout, seed=1,
        warmup_steps=3, measured_steps=10, time_limit_s=60.0,
    )  # fmt: skip


@pytest.mark.parametrize("trainer", LAYOUTS)
def test_the_command_of_a_program(trainer, golden):
    model, layout = LAYOUTS[trainer]
    point = point_of(model, **layout)
    assert list(axis_refusals(trainer, point.shape, point.layout)) == []
    rendered = render(TRAINERS[trainer], point, Path("launch"))
    lines = [f"{name}={text}" for name, text in rendered.environment.items()]
    files = [f"{name}:\n{text}" for name, text in rendered.files.items()]
    golden(f"command_{trainer}.txt", "\n".join([*lines, *rendered.command, *files]) + "\n")


def test_a_value_with_spaces_or_shell_signs_stays_one_argument():
    command = ("python", "my train.py", "$(touch x)", "{tp}")
    entry = TRAINERS["hf"].model_copy(update={"command": command, "flags": {}})
    rendered = render(entry, point_of("llama3_8b", dp=2), Path("launch"))
    assert rendered.command == ("python", "my train.py", "$(touch x)", "1")
    assert "'my train.py' '$(touch x)' 1" in rendered.shell


def test_a_variable_may_depend_on_an_axis():
    plain, sharded = (
        render(TRAINERS["megatron"], point_of("llama3_8b", dp=2, zero_stage=stage), Path())
        for stage in (1, 3)
    )
    assert plain.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert sharded.environment == {}


def test_a_file_is_filled_in_as_the_command_is():
    entry = TRAINERS["hf"].model_copy(update={"files": {"ds.json": '{"stage": {zero_stage}}'}})
    rendered = render(entry, point_of("llama3_8b", dp=2, zero_stage=3), Path("launch"))
    assert rendered.files == {"ds.json": '{"stage": 3}'}


def test_several_nodes_meet_at_the_first():
    point = point_of("llama3_8b", dp=16)
    assert render(TRAINERS["hf"], point, Path()).shell.startswith(
        "torchrun --nproc-per-node 8 --nnodes 2 --rdzv-backend c10d"
    )
    one = dataclasses.replace(point, layout=dataclasses.replace(point.layout, dp=4))
    assert render(TRAINERS["hf"], one, Path()).shell.startswith(
        "torchrun --nproc-per-node 4 -m scaling.train.hf_trainer"
    )
