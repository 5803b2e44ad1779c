"""The error that reports a user's mistake in one sentence, and helpers to write sentences."""

import difflib
import re
from collections import Counter
from collections.abc import Iterable

_NUMBER = re.compile(r"\d[\d.,]*")
_MOST_REASONS, _MOST_LINES = 6, 8


class InputError(ValueError):
    """A mistake in the user's input. Its text is the whole message; the program exits with 2.

    Any function that reads what a user gave may raise it; few docstrings repeat that.
    """


class CannotWrite(InputError, OSError):
    """A file could not be written (disk full, no permission); the message names it and says why."""


def printable(text: str) -> str:
    """Untrusted text, safe to print on one terminal line: control characters are escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def counted(number: int, what: str) -> str:
    """`1 point`, `5 points`, for a noun whose plural ends in s."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def did_you_mean(value: object, allowed: Iterable[str]) -> str:
    """The hint that ends a sentence about an unknown name: the closest allowed name, or all."""
    names = sorted(allowed)
    by_lowercase = {name.lower(): name for name in names}
    # names are short, and the time of the comparison grows with the square of the length
    typed = str(value)[:100].lower()
    matches = difflib.get_close_matches(typed, by_lowercase, n=1)
    if not matches and value:
        matches = sorted((name for name in by_lowercase if name.startswith(typed)), key=len)
    if matches:
        return f"did you mean {by_lowercase[matches[0]]!r}?"
    return f"allowed: {', '.join(names)}"


def shortened(text: object, length: int = 60) -> str:
    """User input as an error sentence quotes it: on one line, at most `length` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= length else f"{line[:length]}..."


def first_few(lines: list[str]) -> list[str]:
    """The first eight lines, and how many more there are."""
    more = len(lines) - _MOST_LINES
    return lines if more < 1 else [*lines[:_MOST_LINES], f"    and {more} more"]


def grouped_reasons(reasons: Iterable[str]) -> list[tuple[int, str]]:
    """How many there are of each reason, the most frequent first; beyond six, of all others.

    Reasons that differ in numbers only count as one, of which an example is told.
    """
    groups: dict[str, Counter[str]] = {}
    for reason, count in Counter(reasons).items():
        groups.setdefault(_NUMBER.sub("#", reason), Counter())[reason] += count
    told = []
    for group in groups.values():
        example = min(group, key=lambda reason: (-group[reason], reason))
        told.append((group.total(), f"such as {example}" if len(group) > 1 else example))
    told.sort(key=lambda one: (-one[0], one[1]))
    if others := told[_MOST_REASONS:]:
        told[_MOST_REASONS:] = [(sum(n for n, _ in others), f"for {len(others)} other reasons")]
    return told
