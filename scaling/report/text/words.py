"""What a device is called: GPUs on a GPU cluster, ranks where ranks share a CPU."""

import unicodedata
from collections.abc import Mapping

# controls, formats (direction of writing), halves of characters, unknown ones, line separators
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def words_for(vendor: str | None) -> dict[str, str]:
    """The words for `{GPU}` and `{GPUs}`; a cluster nobody could plan on keeps GPUs."""
    return {"GPU": "rank", "GPUs": "ranks"} if vendor == "cpu" else {"GPU": "GPU", "GPUs": "GPUs"}


def filled(text: str, words: Mapping[str, str]) -> str:
    """`text` with `{GPU}` and `{GPUs}` replaced, other braces left alone."""
    for name, word in words.items():
        text = text.replace("{" + name + "}", word)
    return text


def counted(number: int, words: Mapping[str, str]) -> str:
    """`1 rank`, `8 GPUs`."""
    return f"{number} {words['GPU'] if number == 1 else words['GPUs']}"


def opening(series: str) -> str:
    """How a sentence says what its values are: `Predicted:`, `Published:`."""
    return "Measured in short steps:" if series == "extended" else f"{series.capitalize()}:"


def called(title: str, series: str) -> str:
    """A title of values that no full step measured says so; its first word, no name, is small."""
    if not title or series == "measured":
        return title
    if title.split(" ", 1)[0][1:].islower():
        title = title[0].lower() + title[1:]
    return f"{opening(series)} {title}"


def shown(text: str) -> str:
    """Text of others as it may be printed: what has no look, or turns the line, as its number.

    Line ends and tabs become spaces.
    """
    if text.isprintable():
        return text
    text = " ".join(text.split("\n")).replace("\t", " ").replace("\r", " ")
    return "".join(
        one if unicodedata.category(one) not in _UNSEEN else f"\\u{ord(one):04x}" for one in text
    )
