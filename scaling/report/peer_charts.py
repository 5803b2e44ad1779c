"""Charts across settings: the same study point on other clusters, other models, other contexts."""

import altair as alt

from scaling.report.categories import at_end, category, category_points, points_plain, style_lines
from scaling.report.level_charts import doubling
from scaling.report.marks import (
    SOFT,
    amount_axis,
    chart,
    finish,
    over_gpus,
    words,
)
from scaling.report.tooltips import tooltips

_TIPS = (
    "model", "cluster", "world_size", "layout_name", "series", "mfu", "tokens_per_s_per_gpu",
)  # fmt: skip


def _mfu() -> alt.Y:
    return alt.Y(
        "mfu:Q",
        title="Model FLOPs utilisation (MFU)",
        scale=alt.Scale(domainMin=0, nice=True),
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
            scale=alt.Scale(domainMin=0, nice=True),
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
    """MFU of each model's fastest layout against its parameters, one line a GPU count."""
    x = alt.X(
        "total_params:Q",
        title="Parameters of the model (log scale)",
        scale=alt.Scale(type="log", nice=False, padding=30),
        axis=alt.Axis(
            values=[d * 10**e for e in range(6, 13) for d in (1, 2, 5)],
            labelExpr="replace(format(datum.value, '~s'), 'G', 'B')",
            labelOverlap="greedy",
            grid=False,
        ),
    )
    return _by_size("model", x, "total_params")


def context_length() -> alt.LayerChart:
    """MFU of the fastest layout at each sequence length, one line a GPU count."""
    return _by_size("context", doubling("seq_length:Q", "Tokens per sequence"), "seq_length")


def _by_size(dimension: str, x: alt.X, along: str) -> alt.LayerChart:
    base = _peers(dimension).encode(x=x, y=_mfu())
    last = at_end(base, along, "world_size")
    return finish(
        *style_lines(base, color=SOFT, detail=alt.Detail("world_size:N")),
        *points_plain(base, tooltips(*_TIPS)),
        *words(
            last.transform_calculate(words="'on ' + datum.world_size"),
            colour=SOFT, align="left", dx=9,
        )(text=alt.Text("words:N")),
        height=280,
    )  # fmt: skip
