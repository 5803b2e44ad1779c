"""Points that must fail, and their lines."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch

from scaling.check.outcomes import outcome_line, outcome_lines
from scaling.check.provoked import FOUND_ROOM, fill
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
        ("oom", "rank 0: DistBackendError: NCCL error: out of memory", "ok", "pass"),
        ("oom", "rank 0: NCCL error: out of memory", "oom", "fail"),  # it was never given back
        ("error", "rank 0: NCCL error: some other words", "ok", "fail"),
        ("oom", "rank 0: OutOfMemoryError: CUDA out of memory", "ok", "fail"),  # torch's own
        ("error", f"rank 0: RuntimeError: {FOUND_ROOM} of 80 blocks", "ok", "not here"),
    ],
)
def test_nccls_out_of_memory_is_one_and_the_next_point_has_its_memory(
    machine: Machine, outcome: Outcome, message: str, after: Outcome, state: str
) -> None:
    line = outcome_line("NCCL out of memory", "oom", "NCCL", row(machine, outcome, message), after)
    assert line.state == state
    right = outcome == "oom" and "NCCL" in message
    assert right or message in line.said
    assert state == "not here" or line.said.endswith(f", and the next point: {after}")


def test_a_card_is_filled_to_the_last_block_that_fits() -> None:
    free = 3 * 2**30 + 5 * 2**26 + 3 * 2**21 + 1000

    def take(size: int) -> int:
        nonlocal free
        if size > free:
            raise torch.OutOfMemoryError
        free -= size
        return size

    assert sum(fill(take, 2**30 + 2**21)) == 2**30 + 2**21
    fill(take)
    assert free == 1000


@pytest.mark.ranks
def test_provoked_failures_of_ranks_leave_their_outcomes(machine: Machine) -> None:
    """A model beyond all memory, a silent rank, a short limit, and a stage without memory."""
    with warm_server(machine):
        lines = [*itertools.islice(outcome_lines(machine), 4)]
    assert [line.state for line in lines] == ["pass"] * 4, lines
    assert "stage" in lines[-1].name
