"""The series: where a value comes from. The order says which one a report prefers for a setting.

Extended steps go first, because full steps then ran at a few points only, as a check. Rows measured
here go before published ones, and these before predictions. SQL reads the order from the variable
`series_order`.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

Series = Literal["extended", "measured", "published", "predicted"]
SERIES: tuple[Series, ...] = get_args(Series)


def firmest(rows: Iterable[Mapping[str, object]]) -> Series:
    """The series of these rows that a report prefers; measured if there are none."""
    present = {row["series"] for row in rows}
    return next((series for series in SERIES if series in present), "measured")
