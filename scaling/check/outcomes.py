"""Points that must fail: check that each leaves the right outcome and the next point is ok."""

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from scaling.check.lines import Line, not_here, pass_or_fail
from scaling.check.provoked import FOUND_ROOM
from scaling.check.training import SHAPE, Machine
from scaling.errors import printable
from scaling.record.row import Outcome, Row
from scaling.study.point import Point

_SECTION = "outcomes"
_STAGE_FULL = "a pipeline's stage out of memory"
_NCCL_FULL, _TAKEN = "NCCL out of memory", "a card that others have taken"
_SILENT_S = 30.0  # longer than imports take
_LEFT_TO_A_POINT = 2 * 2**30  # bytes; contexts fit, the point's weights do not


def outcome_lines(machine: Machine) -> Iterator[Line]:
    """A line for each point that must fail, followed by a point that must be ok."""
    huge = dataclasses.replace(
        SHAPE, hidden_size=10**6, num_heads=10, num_kv_heads=10, head_dim=10**5
    )
    replicas = {"dp": min(2, machine.ranks)}
    cases: list[tuple[str, Outcome, str, Point, dict[str, Any]]] = [
        ("a model beyond all memory", "oom", "", machine.point({}, shape=huge), {}),
        (
            "a rank that falls silent", "hang", ": step ", machine.point(replicas),
            {"rank_command": _provoking("silent"), "hang_after_s": _SILENT_S},
        ),
        (
            "a limit that is too short", "timeout", "",
            machine.point({}, measured_steps=10**6, time_limit_s=8.0), {},
        ),
    ]  # fmt: skip
    full = {"rank_command": _provoking("full_card")}
    stages = {"pp": 2, "engine": "torch", "gradient_accumulation_steps": 4}
    if machine.ranks > 1:
        options = {"rank_command": _provoking("full_stage")}
        cases.append((_STAGE_FULL, "oom", "", machine.point(stages), options))
    if machine.gpu != "cpu":
        every = machine.point({"dp": machine.ranks, "micro_batch_size": 1})
        cases.append((_NCCL_FULL, "oom", "NCCL", every, full))
    for number, (name, expected, words, point, options) in enumerate(cases):
        row = machine.measure(f"fails{number}", point, **options)
        yield outcome_line(name, expected, words, row, _after(machine, f"after{number}"))
    if machine.ranks < 2:
        yield not_here(_SECTION, _STAGE_FULL, "2 ranks, and here is 1")
    if machine.gpu == "cpu":
        yield not_here(_SECTION, _NCCL_FULL, "no GPU, so no NCCL")
        yield not_here(_SECTION, _TAKEN, "this machine has no GPU")
        return
    wide = dataclasses.replace(SHAPE, hidden_size=4096, ffn_hidden_size=16384, vocab_size=32000)
    with _taken_card():
        row = machine.measure("taken", machine.point({}, shape=wide))
    yield outcome_line(
        _TAKEN, "oom", "taken by other processes", row, _after(machine, "after-taken")
    )


def outcome_line(name: str, expected: Outcome, words: str, row: Row, after: Outcome) -> Line:
    """Whether a point failed with this outcome and these words, and the next was ok."""
    message = printable(row.error_message or "")
    if FOUND_ROOM in message:
        return not_here(_SECTION, name, message)
    right = row.outcome == expected and words in message
    outcome = row.outcome if right else f"{row.outcome}: {message}"[:300]
    sentence = f"{outcome}, and the next point: {after}"
    return pass_or_fail(_SECTION, name, passes=right and after == "ok", said=sentence)


def _provoking(how: str) -> list[str]:
    return [sys.executable, "-m", "scaling.check.provoked", how]


def _after(machine: Machine, folder: str) -> Outcome:
    return machine.measure(folder, machine.point({})).outcome


@contextlib.contextmanager
def _taken_card() -> Iterator[None]:
    """While active, another process holds all of the first GPU except `_LEFT_TO_A_POINT`."""
    with subprocess.Popen(
        [*_provoking("hold"), str(_LEFT_TO_A_POINT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield  # afterwards its standard input is closed, which ends it
