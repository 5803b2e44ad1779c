"""Points that must fail, and their lines."""

import dataclasses
from pathlib import Path

import pytest

from scaling.check.outcomes import outcome_line, outcome_lines
from scaling.check.training import Machine, warm_server
from scaling.record.row import Outcome, Row
from tests.rows import row_of


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(gpu="cpu", cluster="cpu", ranks=2, folder=tmp_path)


def row(machine: Machine, outcome: Outcome, message: str) -> Row:
    return dataclasses.replace(
        row_of(machine.point({})), outcome=outcome, error_message=message, losses=None
    )


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
    line = outcome_line("a silent rank", "hang", ": step ", row(machine, outcome, message), after)
    assert line.state == state
    right = outcome == "hang" and ": step " in message
    assert right or message in line.said
    assert line.said.endswith(f", and the next point: {after}")


@pytest.mark.ranks
def test_provoked_failures_of_ranks_leave_their_outcomes(machine: Machine) -> None:
    """A model beyond all memory, a silent rank, and a stage without memory."""
    with warm_server(machine):
        lines = [*outcome_lines(machine)]
    assert [line.state for line in lines] == ["pass"] * 3, lines
    assert "stage" in lines[-1].name
