"""Lines of the check that come from points which train."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from scaling.check.training import (
    ALONE,
    SHAPE,
    TOGETHER,
    Curve,
    Machine,
    memory_line,
    memory_lines,
    outcome_line,
    outcome_lines,
    reference_curve,
    trace_line,
    training_line,
    training_lines,
    warm_server,
)
from scaling.layout.engines import engine_refusals
from scaling.layout.layout import refusals
from scaling.record.row import Outcome, Row
from tests.rows import row_of

CPU = torch.device("cpu")
EXACT = Curve([5.5, 5.4, 5.3, 5.2], [1.0, 1.1, 1.2, 1.3])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(gpu="cpu", cluster="cpu", ranks=2, folder=tmp_path)


def row(machine: Machine, **facts: object) -> Row:
    split = dict.fromkeys(
        ("compute_s", "comm_s", "exposed_comm_s", "idle_s", "optimizer_s", "tp_comm_s"), 0.1
    )
    made = row_of(machine.point({"tp": 2}))
    ran = {"outcome": "ok", "losses": EXACT.losses, "grad_norms": EXACT.grad_norms}
    return dataclasses.replace(made, **(ran | split | facts))


def test_every_layout_of_the_check_can_run(machine: Machine) -> None:
    for layout in (*ALONE, *TOGETHER):
        asked = machine.point(layout).layout
        assert not [*refusals(SHAPE, asked), *engine_refusals(SHAPE, asked)], layout
        assert machine.point(layout).layout.global_batch_size == 8


def test_the_reference_starts_from_the_loss_of_a_model_that_knows_nothing(
    machine: Machine,
) -> None:
    curve = reference_curve(machine.point({}), CPU)
    assert curve.losses[0] == pytest.approx(math.log(256), abs=0.1)
    assert min(curve.grad_norms) > 0.1


@pytest.mark.parametrize(
    ("facts", "state", "said"),
    [
        ({"losses": [5.5, 5.4, 5.3, 5.1]}, "fail", "from the losses"),
        ({"grad_norms": [2.0, 2.2, 2.4, 2.6]}, "fail", "gradient norms 1 apart, at most 0.001"),
        ({"grad_norms": None}, "pass", "no gradient norm is kept"),
        ({"tp_comm_s": None}, "fail", "null: tp_comm_s"),
        ({"outcome": "hang", "error_message": "silent"}, "fail", "hang: silent"),
        ({"outcome": "kernel_unavailable", "error_message": "no fp16"}, "not here", "no fp16"),
    ],
)
def test_what_is_wrong_with_a_layout_is_said(
    machine: Machine, facts: dict[str, object], state: str, said: str
) -> None:
    line = training_line("tp2", row(machine, **facts), EXACT)
    assert (line.state, said in line.said) == (state, True)


@pytest.mark.parametrize(("peak", "state"), [(1_010, "pass"), (1_030, "fail"), (None, "fail")])
def test_allocated_memory_is_within_two_per_cent_of_what_was_told(
    machine: Machine, peak: int | None, state: str
) -> None:
    assert memory_line("zero1", row(machine, peak_memory_bytes=peak), 1_000).state == state


def test_a_cpu_says_what_only_a_gpu_can_show(machine: Machine) -> None:
    assert {line.state for line in memory_lines(machine)} == {"not here"}


@pytest.mark.ranks
def test_this_machine_trains_and_names_what_fails(machine: Machine) -> None:
    """The short form: one rank, two ranks, and a trace."""
    with warm_server(machine):
        lines = [
            *training_lines(machine, ALONE[:1], CPU),
            *training_lines(machine, (TOGETHER[1], TOGETHER[-1]), CPU),
            trace_line(machine),
        ]
    states = [line.state for line in lines]
    assert states == ["pass", "pass", "not here", "pass"], lines


@pytest.mark.parametrize(
    ("outcome", "message", "after", "state"),
    [
        ("hang", "no rank got further: step 3", "ok", "pass"),
        ("hang", "no rank got further: step 3", "oom", "fail"),  # memory was never given back
        ("error", "rank 0: some other words", "ok", "fail"),
        ("hang", "no rank got further: importing", "ok", "fail"),
    ],
)
def test_a_point_fails_as_it_should_and_the_next_one_runs(
    machine: Machine, outcome: Outcome, message: str, after: Outcome, state: str
) -> None:
    failed = row(machine, outcome=outcome, error_message=message, losses=None)
    line = outcome_line("a silent rank", "hang", ": step ", failed, after)
    assert line.state == state
    assert (": step " in message) != (message in line.said)
    assert line.said.endswith(f", and the next point: {after}")


@pytest.mark.ranks
def test_provoked_failures_of_ranks_leave_their_outcomes(machine: Machine) -> None:
    """A model beyond all memory, a silent rank, and a stage without memory."""
    with warm_server(machine):
        lines = [*outcome_lines(machine)]
    assert [line.state for line in lines] == ["pass"] * 3, lines
    assert "stage" in lines[-1].name
