"""Charts across settings: the same study point on other clusters, other models, other contexts."""

import altair as alt

from scaling.report.charts.categories import category, category_points, points_plain, style_lines
from scaling.report.charts.levels import doubling
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


def generations_mfu() -> alt.LayerChart:
    """MFU of one layout on every cluster that ran it, against the number of GPUs."""
    return _clusters(_mfu())


def generations_rate() -> alt.LayerChart:
    """Tokens per second per GPU of the same."""
    return _clusters(
        alt.Y(
            "tokens_per_s_per_gpu:Q",
            title="Tokens per second per {GPU}",
            scale=FROM_ZERO,
            axis=amount_axis(),
        )
    )


def _clusters(y: alt.Y) -> alt.LayerChart:
    base = _peers("cluster").encode(x=over_gpus(), y=y)
    cluster = category("cluster:N")
    return finish(
        *style_lines(base, encode={"color": cluster}),
        *category_points(base, cluster, tooltips(*_TIPS)),
        height=280,
    )


def model_sizes() -> alt.LayerChart:
    """MFU of each model's fastest layout at one size, against its parameters."""
    x = alt.X(
        "total_params:Q",
        title="Parameters of the model (log scale)",
        scale=alt.Scale(type="log", nice=False, padding=40),
        axis=alt.Axis(
            values=[digit * 10**power for power in range(6, 13) for digit in range(1, 10)],
            labelExpr="replace(format(datum.value, '~s'), 'G', 'B')",
            labelOverlap="greedy", labelSeparation=10, grid=False,
        ),
    )  # fmt: skip
    return _by_size("model", x, "datum.model")


def context_length() -> alt.LayerChart:
    """MFU of the fastest layout at one size, against the sequence length."""
    return _by_size("context", doubling("seq_length:Q", "Tokens per sequence"), "''")


def _by_size(dimension: str, x: alt.X, name: str) -> alt.LayerChart:
    base = _peers(dimension).transform_calculate(words=name).encode(x=x, y=_mfu())
    return finish(
        *style_lines(base, color=SOFT),
        *points_plain(base, tooltips(*_TIPS)),
        *words(base, colour=SOFT, dy=-14)(text=alt.Text("words:N")),
        height=280,
    )
