"""Points that must fail: check that each leaves the right outcome and the next point is ok."""

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from scaling.check.lines import Line, not_here, pass_or_fail
from scaling.check.training import SHAPE, Machine
from scaling.errors import printable
from scaling.record.row import Outcome, Row
from scaling.study.point import Point

_SECTION = "outcomes"
_STAGE_FULL = "a pipeline's stage out of memory"
_SILENT_S = 30.0  # longer than imports take


def outcome_lines(machine: Machine) -> Iterator[Line]:
    """A line for each point that must fail, followed by a point that must be ok."""
    huge = dataclasses.replace(
        SHAPE, hidden_size=10**6, num_heads=10, num_kv_heads=10, head_dim=10**5
    )
    replicas = {"dp": min(2, machine.ranks)}
    silent = {"rank_command": _provoking("silent"), "hang_after_s": _SILENT_S}
    cases: list[tuple[str, Outcome, str, Point, dict[str, Any]]] = [
        ("a model beyond all memory", "oom", "", machine.point({}, shape=huge), {}),
        ("a rank that falls silent", "hang", ": step ", machine.point(replicas), silent),
    ]
    if machine.ranks > 1:
        stages = machine.point({"pp": 2, "engine": "torch", "gradient_accumulation_steps": 4})
        cases.append((_STAGE_FULL, "oom", "", stages, {"rank_command": _provoking("full_stage")}))
    else:
        yield not_here(_SECTION, _STAGE_FULL, "2 ranks, and here is 1")
    for number, (name, expected, words, point, options) in enumerate(cases):
        row = machine.measure(f"fails{number}", point, **options)
        after = machine.measure(f"after{number}", machine.point({}))
        yield outcome_line(name, expected, words, row, after.outcome)


def outcome_line(name: str, expected: Outcome, words: str, row: Row, after: Outcome) -> Line:
    """Whether a point failed with this outcome and these words, and the next was ok."""
    message = printable(row.error_message or "")
    right = row.outcome == expected and words in message
    outcome = row.outcome if right else f"{row.outcome}: {message}"[:300]
    sentence = f"{outcome}, and the next point: {after}"
    return pass_or_fail(_SECTION, name, passes=right and after == "ok", said=sentence)


def _provoking(how: str) -> list[str]:
    return [sys.executable, "-m", "scaling.check.provoked", how]
