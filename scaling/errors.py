"""What a user can get wrong, said in one sentence."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A mistake in what the user gave us; its text is the whole message, exit code 2."""


def plain(text: str) -> str:
    """Text from outside on one line of a terminal: what would steer it is spelt out."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def did_you_mean(value: object, allowed: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest name, or all of them."""
    names = sorted(allowed)
    asked = str(value)[:100]  # a name is short; comparing takes time that grows with its square
    close = difflib.get_close_matches(asked, names, n=1)
    starting = [name for name in names if value and name.startswith(asked)]
    close = close or sorted(starting, key=len)
    return f"did you mean {close[0]!r}?" if close else f"allowed: {', '.join(names)}"
