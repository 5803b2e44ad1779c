"""Numbers, lists and device names as the report writes them."""

import re
from collections.abc import Mapping
from typing import Any

from scaling.cluster.hardware import GIB

UNKNOWN = "–"
THIN = "\u202f"  # narrow, and no line break
GLUE = "\u00a0"  # no line break
_HYPHEN = "\u2011"  # no line break
MINUS = "\u2212"
HALF_UP = 1 + 1e-12  # rounds halves away from zero, as the scripts of the page do
GPU_WORDS = {"GPU": "GPU", "GPUs": "GPUs"}
SURE = 0.99  # a prediction that is likelier may be wrong all the same
_TIMES = 1.995  # a rate from here on is said as a multiple
# Number formats, shared with the scripts of the page (page.js).
FORMATS: dict[str, Any] = {
    "unknown": UNKNOWN,
    "thin": THIN,
    "minus": MINUS,
    "digits": 3,
    "grouped_digits": 4,  # of thousands without a prefix
    # smallest value, divisor, prefix
    "prefixes": [
        [1e15, 1e15, "P"], [1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"],
    ],
    # below two days: hours from which the unit is used, how many of it an hour has, the unit
    "times": [[48, 1 / 24, "days"], [1, 1, "hours"], [1 / 60, 60, "minutes"], [0, 3600, "seconds"]],
}  # fmt: skip


def device_words(vendor: str | None) -> dict[str, str]:
    """The words for `{GPU}` and `{GPUs}`: ranks where ranks share a CPU, else GPUs."""
    return {"GPU": "rank", "GPUs": "ranks"} if vendor == "cpu" else GPU_WORDS


def gpu_count(number: int, words: Mapping[str, str]) -> str:
    """`1 rank`, `8 GPUs`."""
    return f"{number} {words['GPU'] if number == 1 else words['GPUs']}"


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


def percent(ratio: float | None, places: int = 0, *, predicted: bool = False) -> str:
    """A ratio as per cent: `39.5 %`; a predicted probability of nearly one is `over 99 %`."""
    if predicted and ratio is not None and ratio > SURE:
        return f"over {percent(SURE)}"
    return UNKNOWN if ratio is None else f"{digits(100 * ratio, places)}{THIN}%"


def gib(size_bytes: float | None) -> str:
    """Bytes as GiB."""
    return UNKNOWN if size_bytes is None else f"{significant(size_bytes / GIB)}{THIN}GiB"


def message_size(size_bytes: float) -> str:
    """`64 KiB`, `4 MiB`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g}{THIN}{unit}"
    return f"{size_bytes:.0f}{THIN}B"


def duration(hours: float, beside: float | None = None) -> str:
    """A time in its unit, or in that of the one `beside` it: `35.8 days`; page.js does the same."""
    longer = hours if beside is None else beside
    _, per_hour, unit = next(one for one in FORMATS["times"] if longer >= one[0])
    return f"{amount(hours * per_hour)}{GLUE}{unit}"


def money(hours: float, price: float | None, gpu: str) -> str:
    """The cost of GPU-hours: `$11 400`, or `4 560 GPU-hours` without a price."""
    return f"${amount(hours * price)}" if price else f"{amount(hours)} {gpu}-hours"


def at_level(low: float, high: float, level: float) -> str:
    """An interval of ratios and what it holds: `(45–70 %, 95 % interval)`."""
    dash = "–" if low >= 0 else " to "
    return f"({digits(100 * low, 0)}{dash}{percent(high)}, {percent(level)} interval)"


def faster(ratio: float, low: float, high: float, level: float) -> str:
    """How a rate changes: `64 % faster (45–70 %, 95 % interval)`, `40 % slower`, `as fast`."""
    if low <= 1 <= high and abs(ratio - 1) < 0.005:
        return f"as fast {at_level(low - 1, high - 1, level)}"
    if ratio >= _TIMES:
        ends = f"{digits(low, 1)}–{digits(high, 1)}, {percent(level)} interval"
        return f"{digits(ratio, 2)} times as fast ({ends})"
    if ratio < 1:
        return f"{percent(1 - ratio)} slower {at_level(1 - high, 1 - low, level)}"
    return f"{percent(ratio - 1)} faster {at_level(low - 1, high - 1, level)}"


def step_words(step: Mapping[str, Any]) -> str:
    """The gain of a step between two sizes: `64 % faster (45–70 %, 95 % interval)`."""
    return faster(step["faster"], step["faster_low"], step["faster_high"], step["level"])


def glued(words: str) -> str:
    """Words in which no line ends inside `micro-batch 2`, `8 GPUs` or `ZeRO-3`."""
    return re.sub(r" (?=\d)|(?<=[\dkMG]) (?=GPU|rank)", GLUE, words).replace("-", _HYPHEN)


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
