"""What a user can get wrong, said in one sentence."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A mistake in what the user gave us; its text is the whole message, exit code 2."""


def printable(text: str) -> str:
    """Text from outside on one line of a terminal: what would steer it is spelt out."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def did_you_mean(value: object, allowed: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest name, or all of them."""
    names = sorted(allowed)
    by_small = {name.lower(): name for name in names}
    # a name is short; comparing takes time that grows with its square
    typed = str(value)[:100].lower()
    close = difflib.get_close_matches(typed, by_small, n=1)
    starting = [name for name in by_small if value and name.startswith(typed)]
    close = [by_small[name] for name in close or sorted(starting, key=len)]
    return f"did you mean {close[0]!r}?" if close else f"allowed: {', '.join(names)}"


def shortened(text: object, length: int = 60) -> str:
    """What somebody gave us, as a sentence can repeat it: on one line, and not all of a novel."""
    line = " ".join(str(text).split())
    return line if len(line) <= length else f"{line[:length]}..."
