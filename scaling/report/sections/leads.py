"""When one rate of a size may be called higher than another: by the margins the tables carry."""

from collections.abc import Sequence

from scaling.analyse.ties import UNSTATED_FLOOR, margin_of, told_apart
from scaling.report.tables import Record

_UNKNOWN = margin_of(UNSTATED_FLOOR)  # of a row that says nothing of its noise


def margin(row: Record) -> float:
    """Half the interval of ln(rate): of the table `ranking`, else that of an unstated noise."""
    tabled = row.get("margin")
    return _UNKNOWN if tabled is None else float(tabled)


def ahead(faster: Record, slower: Record, rate: str = "tokens_per_s") -> bool:
    """Whether the lead of one row over another is above their noise."""
    return told_apart(float(faster[rate]), float(slower[rate]), (margin(faster), margin(slower)))


def leaders(rows: Sequence[Record], rate: str = "tokens_per_s") -> list[Record]:
    """The row with the highest rate, and after it those that are not told apart from it."""
    ranked = sorted(rows, key=lambda row: -float(row[rate]))
    return [row for row in ranked if row is ranked[0] or not ahead(ranked[0], row, rate)]
