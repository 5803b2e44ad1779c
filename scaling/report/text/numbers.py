"""Numbers as the report writes them: three significant digits, thin spaces, – for unknown."""

from scaling.cluster.hardware import GIB

UNKNOWN = "–"
THIN = "\u202f"  # narrow, and no line break
MINUS = "\u2212"


def digits(value: float, places: int) -> str:
    """Fixed places, with a real minus sign."""
    return f"{value:.{places}f}".replace("-", MINUS)


def significant(value: float, count: int = 3) -> str:
    """`count` significant digits without an exponent, thousands parted by a thin space."""
    rounded = float(f"{value:.{count}g}")
    if rounded == 0:
        return "0"
    places = max(0, count - 1 - _exponent(rounded))
    return f"{rounded:,.{places}f}".replace(",", THIN).replace("-", MINUS)


def amount(value: float | None, unit: str = "") -> str:
    """A large number with its prefix: `420 k`, `1.75 M`, `6 555`, `5.01 GFLOP/s` with a unit."""
    if value is None:
        return UNKNOWN
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scale = 1e3 if prefix == "k" else size
            return f"{significant(value / scale)}{THIN}{prefix}{unit}"
    return significant(value, 4 if abs(value) >= 1000 else 3) + (f"{THIN}{unit}" if unit else "")


def percent(ratio: float | None, places: int = 0) -> str:
    """A ratio as per cent: `39.5 %`."""
    return UNKNOWN if ratio is None else f"{digits(100 * ratio, places)}{THIN}%"


def times(ratio: float) -> str:
    """A factor: `6.3×`, `8×`, `16×`."""
    return f"{significant(ratio, 2).removesuffix('.0')}×"


def gib(size_bytes: float | None) -> str:
    """Bytes as GiB."""
    return UNKNOWN if size_bytes is None else f"{significant(size_bytes / GIB)}{THIN}GiB"


def interval(middle: float, low: float | None, high: float | None, places: int = 2) -> str:
    """A value and its interval: `0.79 [0.77–0.81]`; `to` where a sign would hide the dash."""
    if low is None or high is None:
        return digits(middle, places)
    between = "–" if low >= 0 else " to "
    return f"{digits(middle, places)} [{digits(low, places)}{between}{digits(high, places)}]"


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _exponent(value: float) -> int:
    return int(f"{value:e}".split("e")[1])
