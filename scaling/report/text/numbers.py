"""Numbers as the report writes them: three significant digits, thin spaces, – for unknown."""

from typing import Any

from scaling.cluster.hardware import GIB

UNKNOWN = "–"
THIN = "\u202f"  # narrow, and no line break
MINUS = "\u2212"
# The formats, for sentences made here and for what the page writes when it is read (page.js).
FORMATS: dict[str, Any] = {
    "unknown": UNKNOWN,
    "thin": THIN,
    "minus": MINUS,
    "digits": 3,
    "grouped_digits": 4,  # of thousands without a prefix
    # from which amount on, divided by what, and the prefix
    "prefixes": [
        [1e15, 1e15, "P"], [1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"],
    ],
}  # fmt: skip


def digits(value: float, places: int) -> str:
    """Fixed places, with a real minus sign; nothing is no less than zero."""
    return f"{value:z.{places}f}".replace("-", MINUS)


def significant(value: float, count: int | None = None) -> str:
    """`count` significant digits without an exponent, thousands parted by a thin space."""
    count = FORMATS["digits"] if count is None else count
    rounded = float(f"{value:.{count}g}")
    if rounded == 0:
        return "0"
    places = max(0, count - 1 - _exponent(rounded))
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
    """A factor: `6.3×`, `8×`, `16×`, `256×`: whole numbers are not rounded."""
    return f"{significant(ratio, max(2, len(str(round(ratio))))).removesuffix('.0')}×"


def gib(size_bytes: float | None) -> str:
    """Bytes as GiB."""
    return UNKNOWN if size_bytes is None else f"{significant(size_bytes / GIB)}{THIN}GiB"


def interval(middle: float, low: float | None, high: float | None, places: int = 2) -> str:
    """A value and its interval: `0.79 [0.77–0.81]`; `to` where a sign would hide the dash."""
    if low is None or high is None:
        return digits(middle, places)
    between = "–" if low >= 0 else " to "
    return f"{digits(middle, places)} [{digits(low, places)}{between}{digits(high, places)}]"


def ratio(middle: float, low: float | None, high: float | None, places: int = 2) -> str:
    """A ratio and its interval: `×1.31 [1.30–1.32]`."""
    return f"×{interval(middle, low, high, places)}"


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _exponent(value: float) -> int:
    return int(f"{value:e}".split("e")[1])
