"""The lines of a check, each with its number, as text and as JSON."""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scaling.errors import InputError, did_you_mean, printable, shortened
from scaling.record.row import Row

SECTIONS = ("facts", "kernels", "meters", "training")  # of a check, in this order
State = Literal["pass", "fail", "not here"]
_WIDTH = 8  # of the longest state


def chosen_sections(only: str) -> list[str]:
    """The sections that a text like `facts,meters` names, in the order of a check; all if empty.

    Raises:
        InputError: it names another one.
    """
    named = [name for name in only.split(",") if name]
    for name in named:
        if name not in SECTIONS:
            why = did_you_mean(name[:60], SECTIONS)
            raise InputError(f"--only {shortened(name)}: {why}")
    return [name for name in SECTIONS if not named or name in named]


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was checked.

    `value` is in `unit`, None where nothing was measured. `said` is a sentence: what the value was
    compared with, or why it is not here. `log` of a failure: a traceback or the ranks' last words.
    `section`: the part of the check that made the line.
    """

    name: str
    state: State
    value: float | None = None
    unit: str | None = None
    said: str = ""
    log: str | None = None
    section: str = ""


def not_here(name: str, why: str) -> Line:
    """A line for something that this machine does not have."""
    return Line(name, "not here", said=why)


def pass_or_fail(
    name: str,
    value: float | None = None,
    unit: str | None = None,
    *,
    passes: bool,
    said: str,
) -> Line:
    """A line for something that was checked, with or without a number."""
    return Line(name, "pass" if passes else "fail", value, unit, said)


def failed_point(name: str, row: Row) -> Line:
    """A line for a point that should have run and did not."""
    return pass_or_fail(name, passes=False, said=ending(row))


def ending(row: Row) -> str:
    """How a point ended, with the beginning of its message."""
    return f"{row.outcome}: {printable(row.error_message or '')}"[:300]


def to_text(lines: Sequence[Line]) -> str:
    """One page of text: the lines by section, and how many have each state."""
    names = max((len(line.name) for line in lines), default=0)
    page, section = [], None
    for line in lines:
        if line.section != section:
            section = line.section
            page += ["", section]
        number = "" if line.value is None else f"{_short(line.value)} {line.unit or ''}".rstrip()
        sentence = "  ".join(filter(None, (number, line.said)))
        page.append(f"  {line.state:<{_WIDTH}}  {line.name:<{names}}  {sentence}".rstrip())
    counts = Counter(line.state for line in lines)
    states: tuple[State, ...] = ("pass", "fail", "not here")
    page += ["", ", ".join(f"{counts[state]} {state}" for state in states)]
    return "\n".join(page).lstrip("\n") + "\n"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"


def to_json(lines: Sequence[Line], about: dict[str, Any]) -> str:
    """The lines as JSON, with the facts `about` the check."""
    return json.dumps(about | {"lines": [dataclasses.asdict(line) for line in lines]}, indent=1)
