"""The series: where a value comes from, in the order in which one speaks for a layout at a size.

What ran here goes before published rows, and these before predictions. SQL reads the order from
the variable `series_order`.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

Series = Literal["measured", "extended", "published", "predicted"]
SERIES: tuple[Series, ...] = get_args(Series)


def firmest(rows: Iterable[Mapping[str, object]]) -> Series:
    """The series of these rows that a report prefers; measured if there are none."""
    present = {row["series"] for row in rows}
    return next((series for series in SERIES if series in present), "measured")
