"""What a check finds: lines, each with its number, and the two forms in which they are sentence."""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scaling.errors import printable
from scaling.record.row import Row

State = Literal["pass", "fail", "not here"]
_WIDTH = 8  # of the longest state


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that was looked at.

    `value` is the number in `unit`, null where there was nothing to measure; `said` is a sentence:
    what it was held against, or why it is not here.
    """

    section: str
    name: str
    state: State
    value: float | None = None
    unit: str | None = None
    said: str = ""


def not_here(section: str, name: str, why: str) -> Line:
    """What this machine does not have."""
    return Line(section=section, name=name, state="not here", said=why)


def pass_or_fail(
    section: str,
    name: str,
    value: float | None = None,
    unit: str | None = None,
    *,
    passes: bool,
    said: str,
) -> Line:
    """What was measured, or has no number, and whether that is as it should be."""
    state: State = "pass" if passes else "fail"
    return Line(section=section, name=name, state=state, value=value, unit=unit, said=said)


def failed_point(section: str, name: str, row: Row) -> Line:
    """A point that had to run and did not."""
    sentence = f"{row.outcome}: {printable(row.error_message or '')}"
    return pass_or_fail(section, name, passes=False, said=sentence[:300])


def to_text(lines: Sequence[Line]) -> str:
    """One page of text: sections, their lines, and how many are of each state."""
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
    """The same for a machine, with what else is known of this one."""
    return json.dumps(about | {"lines": [dataclasses.asdict(line) for line in lines]}, indent=1)
