"""The bytes of tensors without numbers are those of real ones."""

import dataclasses
from typing import Any

import pytest
import torch

from scaling.study.point import Point
from scaling.train.rehearsal.memory_record import MemoryRecord
from tests.points import TINY, WALKED_STEPS, tiny_point
from tests.train.conftest import Ask
from tests.train.test_rehearsal import rehearse

Memory = dict[str, Any]

SHAPE = dataclasses.replace(
    TINY, num_layers=2, hidden_size=256, ffn_hidden_size=512, vocab_size=2048
)
LAYOUTS: list[dict[str, Any]] = [
    {"zero_stage": 1, "gradient_accumulation_steps": 2},
    {"zero_stage": 2, "activation_checkpointing": "full"},
    {"zero_stage": 3, "gradient_accumulation_steps": 2},
    {"tp": 2, "zero_stage": 2, "sequence_parallel": True},
    {"pp": 2, "tp": 2, "zero_stage": 1, "gradient_accumulation_steps": 4},
    {"engine": "torch", "dp": 2, "zero_stage": 3, "activation_checkpointing": "full"},
    {"engine": "torch", "pp": 2, "zero_stage": 1, "gradient_accumulation_steps": 4},
]
MIXTURE = dataclasses.replace(
    SHAPE, num_experts=6, experts_per_token=2, expert_ffn_hidden_size=128, shared_experts=1
)
OF_EXPERTS: list[dict[str, Any]] = [
    # 64 tokens of two experts each, dealt to six
    {"engine": "torch", "dp": 2, "ep": 2, "zero_stage": 1, "routing": "skewed:2"},
    {"cp": 2, "dp": 2, "ep": 2, "zero_stage": 3},
]
CASES = [*((SHAPE, layout) for layout in LAYOUTS), *((MIXTURE, layout) for layout in OF_EXPERTS)]
POINTS = [
    tiny_point(shape=shape, **({"precision": "bf16", "attention": "flash2"} | layout))
    for shape, layout in CASES
]


def ends(point: Point) -> list[int]:
    """The first rank and the last one."""
    return sorted({0, point.layout.world_size - 1})


@pytest.fixture(scope="module")
def told() -> list[list[Memory]]:
    """The predicted bytes at the ends of each point."""
    asked = [(point, rank) for point in POINTS for rank in ends(point)]
    answers = iter(rehearse(asked, steps=WALKED_STEPS))
    return [[next(answers)["memory"] for _ in ends(point)] for point in POINTS]


@pytest.mark.ranks
@pytest.mark.parametrize("case", range(len(POINTS)), ids=[str(layout) for _, layout in CASES])
def test_a_rank_takes_the_bytes_that_were_told(
    told: list[list[Memory]], ask: Ask, case: int
) -> None:
    """To the byte, but for what only a CPU's ranks hold: gloo's copies, as long as its threads do.

    Under ZeRO-3 gloo copies what it reduces and scatters on one rank too. DeepSpeed compares
    numbers between ranks while it builds, which is left out without any. How many copies are alive
    together hangs on how busy the machine is: 10.3 % were seen.
    """
    layout = POINTS[case].layout
    (taken,) = ask(points=[POINTS[case].to_json()], act="hold")
    of_ends = [taken[rank] for rank in ends(POINTS[case])]
    for one, other in zip(told[case], of_ends, strict=True):
        assert one["phases"].keys() == other["phases"].keys()
        for phase in one["phases"]:
            expected, found = one["phases"][phase], other["phases"][phase]
            gloos = layout.world_size > 1 or layout.zero_stage == 3
            for bytes_ in ("live_bytes", "peak_bytes"):
                most = expected[bytes_] * (1.2 if gloos else 1.0)
                assert expected[bytes_] <= found[bytes_] <= most


@pytest.mark.ranks  # where the others of this file have them told
def test_the_owners_at_the_peak_are_weights_gradients_and_states(told: list[list[Memory]]) -> None:
    """bf16 on one rank, ZeRO-1: 22 bytes a weight, gradients where backward has left them."""
    memory = told[LAYOUTS.index({"zero_stage": 1, "gradient_accumulation_steps": 2})][0]
    held = POINTS[0].shape.total_params
    assert memory["peak_bytes"] / held == pytest.approx(22, rel=0.01)
    by_phase = {
        phase: sum(owner["bytes"] for owner in memory["owners"] if owner["phase"] == phase) / held
        for phase in ("build", "backward", "optimizer")
    }
    assert by_phase == pytest.approx({"build": 6, "backward": 2, "optimizer": 14}, rel=0.01)


MADE = "def make(torch):\n    return torch.ones(4)\n"


def called_by(module: str, file: str) -> Any:
    """A function of this module, in a file of this name, which makes a tensor."""
    scope: dict[str, Any] = {"__name__": module}
    exec(compile(MADE, file, "exec"), scope)
    return scope["make"]


@pytest.mark.parametrize(
    ("module", "file", "explains"),
    [
        ("torch.nn.functional", "/home/me/scaling/.venv/torch/nn/functional.py", False),
        ("torch.optim.adamw", "/opt/torch/optim/adamw.py", True),
        ("scaling.train.data", "/home/me/a b/src/data.py", True),
        ("deepspeed.runtime.engine", "/opt/ds/engine.py", True),
        ("other.tool", "/home/me/fsdp/deepspeed/tool.py", False),
    ],
)
def test_an_owner_is_told_by_its_module_wherever_its_file_lies(
    module: str, file: str, explains: bool
) -> None:
    record = MemoryRecord()
    make = called_by(module, file)
    with record.watching():
        kept = make(torch)
    (owner,) = record.memory()["owners"]
    assert kept.numel() == 4
    name = "/".join(file.split("/")[-2:])
    assert owner["made_by"].startswith(f"{name}:2 ") == explains
