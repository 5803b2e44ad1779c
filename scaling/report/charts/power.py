"""The chart of measured energy: what a joule buys."""

import altair as alt

from scaling.report.charts.marks import FROM_ZERO, SOFT, chart, finish, over_gpus, points, words
from scaling.report.charts.tooltips import tooltips


def tokens_per_joule() -> alt.LayerChart:
    """Tokens per joule of the best layout at each size, with the mean power of one GPU."""
    y = alt.Y(
        "tokens_per_joule:Q",
        title="Tokens per joule (tokens/s per watt)",
        scale=FROM_ZERO,
        axis=alt.Axis(format=",~r", tickCount=5),
    )
    rows = chart("best").transform_filter("isValid(datum.energy_j)")
    base = rows.transform_calculate(watts="format(datum.power_per_gpu_w, '.3~r') + ' W'").encode(
        x=over_gpus(), y=y
    )
    tips = (
        "world_size", "layout_name", "series", "tokens_per_joule", "power_per_gpu_w",
        "tokens_per_s",
    )  # fmt: skip
    return finish(
        base.mark_line(color=SOFT, strokeWidth=1.75),
        *points(base, tooltips(*tips)),
        *words(base, colour=SOFT, dy=-15)(text=alt.Text("watts:N")),
        height=260,
    )
