"""When one rate may be called higher than another."""

from collections.abc import Sequence

from scaling.report.tables import Record, Tables

NOISE_FLOOR = (
    0.02  # ratio: smaller leads come and go between runs, whatever one run's interval says
)
PREDICTED_TIE = 0.04  # ratio: the predictor's mean regret is up to that (docs/prediction.md)


def noise(tables: Tables, series: str) -> float:
    """The lead, a ratio, below which two rates of a series are not told apart.

    Of what ran: as far as two intervals of the median width, or repeats, overlap, and at least
    `NOISE_FLOOR`, which also stands for rows without intervals.
    """
    if series == "predicted":
        return PREDICTED_TIE
    known = [
        2 * float(row[column])
        for row in tables.records.get("noise", [])
        for column in ("interval_half_width", "repeat_half_spread")
        if row["series"] == series and row[column] is not None
    ]
    return max([NOISE_FLOOR, *known])


def leaders(tables: Tables, rows: Sequence[Record], rate: str = "tokens_per_s") -> list[Record]:
    """The row with the highest rate, and after it those that are not told apart from it."""
    ranked = sorted(rows, key=lambda row: -float(row[rate]))
    floor = max(noise(tables, row["series"]) for row in ranked)
    return [row for row in ranked if ranked[0][rate] <= row[rate] * (1 + floor)]
