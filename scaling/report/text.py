"""Numbers, lists and device names as the report writes them."""

import re
from collections.abc import Mapping
from typing import Any

from scaling.cluster.hardware import GIB

UNKNOWN = "–"
THIN = "\u202f"  # narrow, and no line break
MINUS = "\u2212"
HALF_UP = 1 + 1e-12  # rounds halves away from zero, as the charts and scripts of the page do
GPU_WORDS = {"GPU": "GPU", "GPUs": "GPUs"}
# What starts a sentence about a series.
SERIES_LABELS = {
    "extended": "Measured in short steps:",
    "measured": "Measured:",
    "published": "Published:",
    "predicted": "Predicted:",
}
# Number formats, shared with the scripts of the page (data.js).
FORMATS: dict[str, Any] = {
    "unknown": UNKNOWN,
    "thin": THIN,
    "minus": MINUS,
    "digits": 3,
    "grouped_digits": 4,  # of thousands without a prefix
    # what no line ends inside: a name with its number, a number with its unit
    "whole": r"ZeRO[- ]\d|micro-batch \d+|\b[tpce]p \d+|(?:tensor|context) parallel \d+"
    r"|[\d\u202f.]+ (?:GPUs?|ranks?|W)\b",
    # smallest value, divisor, prefix
    "prefixes": [
        [1e15, 1e15, "P"], [1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"],
    ],
}  # fmt: skip


def pieces(sentence: str) -> list[str]:
    """A sentence cut so that every second piece is one that no line may end inside."""
    return re.split(f"({FORMATS['whole']})", sentence)


def device_words(vendor: str | None) -> dict[str, str]:
    """The words for `{GPU}` and `{GPUs}`: ranks where ranks share a CPU, else GPUs."""
    return {"GPU": "rank", "GPUs": "ranks"} if vendor == "cpu" else GPU_WORDS


def gpu_count(number: int, words: Mapping[str, str]) -> str:
    """`1 rank`, `8 GPUs`."""
    return f"{number} {words['GPU'] if number == 1 else words['GPUs']}"


def with_series(title: str, series: str, *, measured_too: bool = False) -> str:
    """`title` behind its series' label, unless it was measured; its first letter becomes small.

    A first word that is a name (`ZeRO`) keeps its capital. A title that has a label keeps it.
    """
    is_plain = series == "measured" and not measured_too
    if not title or is_plain or title.startswith(tuple(SERIES_LABELS.values())):
        return title
    if title.split(" ", 1)[0][1:].islower():
        title = title[0].lower() + title[1:]
    return f"{SERIES_LABELS[series]} {title}"


def digits(value: float, places: int) -> str:
    """A number with fixed decimal places and a real minus sign; never `−0`."""
    return f"{HALF_UP * value:z.{places}f}".replace("-", MINUS)


def significant(value: float, count: int | None = None) -> str:
    """`count` significant digits without an exponent; a thin space groups thousands."""
    count = FORMATS["digits"] if count is None else count
    rounded = float(f"{HALF_UP * value:.{count}g}")
    if rounded == 0:
        return "0"
    exponent = int(f"{rounded:e}".split("e")[1])
    places = max(0, count - 1 - exponent)
    return f"{rounded:,.{places}f}".replace(",", THIN).replace("-", MINUS)


def amount(value: float | None, unit: str = "") -> str:
    """A large number with its prefix: `420 k`, `1.75 M`, `6 555`, `5.01 GFLOP/s` with a unit."""
    if value is None:
        return UNKNOWN
    for least, scale, prefix in FORMATS["prefixes"]:
        if abs(value) >= least:
            return f"{significant(value / scale)}{THIN}{prefix}{unit}"
    count = FORMATS["grouped_digits" if abs(value) >= 1000 else "digits"]
    return significant(value, count) + (f"{THIN}{unit}" if unit else "")


def percent(ratio: float | None, places: int = 0) -> str:
    """A ratio as per cent: `39.5 %`."""
    return UNKNOWN if ratio is None else f"{digits(100 * ratio, places)}{THIN}%"


def times(ratio: float) -> str:
    """A factor: `6.3×`, `8×`, `256×`, `1.04×`; whole numbers keep all digits."""
    near_one = abs(ratio - 1) < 0.05  # with two digits it would read as no change
    words = significant(ratio, 3 if near_one else max(2, len(str(round(ratio)))))
    return f"{words.rstrip('0').rstrip('.') if '.' in words else words}×"


def gib(size_bytes: float | None) -> str:
    """Bytes as GiB."""
    return UNKNOWN if size_bytes is None else f"{significant(size_bytes / GIB)}{THIN}GiB"


def interval(middle: float, low: float | None, high: float | None, places: int = 2) -> str:
    """A value with its interval: `0.79 [0.77–0.81]`, or `[−0.02 to 0.03]` with a minus sign."""
    if low is None or high is None:
        return digits(middle, places)
    between = "–" if low >= 0 else " to "
    return f"{digits(middle, places)} [{digits(low, places)}{between}{digits(high, places)}]"


def ratio(middle: float, low: float | None, high: float | None, places: int = 2) -> str:
    """A ratio with its interval: `×1.31 [1.30–1.32]`."""
    return f"×{interval(middle, low, high, places)}"


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
