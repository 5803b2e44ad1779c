"""Read the number in a cell, however tables write it."""

import math
import re
from collections.abc import Iterable

from scaling.errors import shortened
from scaling.foreign.spellings import MEASURED, failure_of, unit_factor

# Cells of a numeric column without a number.
_NO_NUMBER = re.compile(r"(?i)([-–—/]|n/a|none|null|nan)?")
_THOUSANDS_SEPARATOR = re.compile("(?<=\\d)[,_'’ \xa0\u202f](?=\\d\\d\\d(?!\\d))")
# A number with a unit, a ZeRO stage, "±" and a deviation, brackets or the mark of a note around it.
_DECORATED = re.compile(
    r"(?i)(?:(?:zero[-_ ]?)?stage[-_ ]?|zero[-_ ]?|[~≈]\s*)?([-+.\deE]+)"
    r"\s*(?:([a-z\u00b5\u03bc]+?)|\(([a-z\u00b5\u03bc]+)\))??\s*(?:tokens|gpus)?\s*"
    r"(?:(?:±|\+/-).*|[(\[].*\d.*[)\]]|[*†‡§]+)?"
)
_ONE_COMMA = re.compile(r"\d{1,3},\d{3}")  # of thousands, or a decimal one?


def parse_numbers(
    cells: Iterable[str | None], column: str, factor: float = 1.0
) -> tuple[list[float | None], list[str]]:
    """`parse_number` of each cell, None for what is none; a sentence on the first doubtful one."""
    numbers: list[float | None] = []
    doubts = []
    for cell in cells:
        try:
            numbers.append(parse_number((cell or "").strip(), column, factor))
        except ValueError:
            numbers.append(None)
            continue
        if cell and (_ONE_COMMA.fullmatch(cell) or re.search(r"\d.*[(\[].*\d", cell)):
            doubts.append(f"{column}: {shortened(cell)} is read as {numbers[-1]:.12g}")
    return numbers, doubts[:1]


def is_word(text: str, column: str) -> bool:
    """Whether a cell says, in place of a measurement, why there is none."""
    if column not in MEASURED or _NO_NUMBER.fullmatch(text) or text.lower() in ("inf", "-inf"):
        return False
    return not re.search(r"\d", text) or failure_of(text) is not None


def parse_number(text: str, column: str, factor: float = 1.0) -> float:
    """The number in a cell in the unit of our column, NaN if it says that there is none.

    Of `31508 (29789)` the first counts.

    Args:
        text: the cell.
        column: our name of its column.
        factor: from the unit of the header to ours; a unit in the cell goes before it.

    Raises:
        ValueError: the cell is something else.
    """
    if _NO_NUMBER.fullmatch(text) or is_word(text, column):
        return math.nan
    number = _THOUSANDS_SEPARATOR.sub("", text)
    if decorated := _DECORATED.fullmatch(number):
        number, unit = decorated[1], decorated[2] or decorated[3]
        if column == "seq_length" and (unit or "").lower() == "k":  # 8k is 8192
            factor = 1024.0
        elif unit:
            factor = unit_factor(column, unit)
    if "_" in number:  # which Python would accept
        raise ValueError(text)
    return float(number) * factor
