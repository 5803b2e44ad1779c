"""The chart across settings: the same study point on other clusters."""

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.categories import category, category_points
from scaling.report.charts.tooltips import tooltips

_TIPS = (
    "model", "cluster", "world_size", "layout_name", "series", "mfu", "tokens_per_s_per_gpu",
)  # fmt: skip


def generations() -> alt.LayerChart:
    """Tokens per second per GPU of one layout on every cluster that ran it; its MFU beside it."""
    y = marks.amounts("tokens_per_s_per_gpu", "Tokens per second per {GPU}")
    base = (
        marks.chart("peers")
        .transform_filter("datum.dimension === 'cluster'")
        .encode(x=marks.over_gpus(), y=y)
    )
    cluster = category("cluster:N")
    return marks.finish(
        *marks.lines(base.encode(color=cluster)),
        *category_points(base, cluster, tooltips(*_TIPS)),
        *marks.words(base.transform_filter("isValid(datum.mfu)"), colour=marks.SOFT, dy=-14)(
            text=alt.Text("mfu:Q", format=".0%")
        ),
        height=280,
    )
