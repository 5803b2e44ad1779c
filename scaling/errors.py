"""The error that reports a user's mistake in one sentence, and helpers to write that sentence."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A mistake in the user's input. Its text is the whole message; the program exits with 2."""


def printable(text: str) -> str:
    """Untrusted text, safe to print on one terminal line: control characters are escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


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
