"""Charts across settings: the same study point on other clusters, at other contexts."""

import altair as alt

from scaling.report.charts.categories import category, category_points, points_plain, style_lines
from scaling.report.charts.marks import (
    FROM_ZERO,
    SOFT,
    amount_axis,
    chart,
    finish,
    over_gpus,
    words,
)
from scaling.report.charts.tooltips import tooltips

_TIPS = (
    "model", "cluster", "world_size", "layout_name", "series", "mfu", "tokens_per_s_per_gpu",
)  # fmt: skip


def _mfu() -> alt.Y:
    return alt.Y(
        "mfu:Q",
        title="Model FLOPs utilisation (MFU)",
        scale=FROM_ZERO,
        axis=alt.Axis(format=".0%", tickCount=5),
    )


def _peers(dimension: str) -> alt.Chart:
    rows: alt.Chart = chart("peers").transform_filter(f"datum.dimension === '{dimension}'")
    return rows


def generations() -> alt.LayerChart:
    """Tokens per second per GPU of one layout on every cluster that ran it; its MFU beside it."""
    y = alt.Y(
        "tokens_per_s_per_gpu:Q",
        title="Tokens per second per {GPU}",
        scale=FROM_ZERO,
        axis=amount_axis(),
    )
    base = _peers("cluster").encode(x=over_gpus(), y=y)
    cluster = category("cluster:N")
    return finish(
        *style_lines(base, encode={"color": cluster}),
        *category_points(base, cluster, tooltips(*_TIPS)),
        *words(base.transform_filter("isValid(datum.mfu)"), colour=SOFT, dy=-14)(
            text=alt.Text("mfu:Q", format=".0%")
        ),
        height=280,
    )


def context_length() -> alt.LayerChart:
    """MFU of the fastest layout at one size, against the sequence length."""
    x = alt.X(
        "seq_length:Q",
        title="Tokens per sequence (log scale)",
        scale=alt.Scale(type="log", base=2, nice=False, padding=30),
        axis=alt.Axis(
            values=[2**power for power in range(7, 24)], format="d", grid=False,
            labelOverlap="greedy",
        ),
    )  # fmt: skip
    base = _peers("context").encode(x=x, y=_mfu())
    return finish(
        *style_lines(base, color=SOFT),
        *points_plain(base, tooltips(*_TIPS)),
        height=280,
    )
