"""Charts over the number of GPUs: what ran, the same on other clusters, and predicted over it."""

from typing import Any

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.categories import category, category_points
from scaling.report.charts.tooltips import tooltips

_BEST = (
    "world_size", "layout_name", "advised_layout_name", "series", "tokens_per_s",
    "tokens_per_s_low", "tokens_per_s_high", "tokens_per_s_per_gpu", "efficiency", "mfu",
)  # fmt: skip
_TIPS = (
    "model", "cluster", "world_size", "layout_name", "series", "mfu", "tokens_per_s_per_gpu",
)  # fmt: skip
NEAR = 1.1  # the band around a right prediction, as a factor
_NUMBER = 34  # px that a number above a point takes
# On the right half there is room to the left of a mark only.
_BESIDE: dict[str, dict[str, Any]] = {
    "!datum.right": {"align": "left", "baseline": "top", "dx": 7, "dy": 7},
    "datum.right": {"align": "right", "baseline": "bottom", "dx": -7, "dy": -7},
}


def throughput() -> alt.LayerChart:
    """Tokens per second of the best layout at each size, with the ideal line."""
    y = alt.Y(
        "tokens_per_s:Q",
        title="Tokens per second (log scale)",
        scale=marks.log(34),
        axis=marks.log_amount_axis(),
    )
    base = marks.chart("best").encode(x=marks.over_gpus())
    ideal = marks.firmest(base).encode(y=alt.Y("ideal_tokens_per_s:Q"))
    named = base.transform_filter("isValid(datum.label)").transform_calculate(
        right="datum.world_size * datum.world_size > sizes_[0] * sizes_[sizes_.length - 1]",
        name="replace(datum.label, regexp('[|]', 'g'), ' ')",
    )
    apart = "datum.world_size === sizes_[sizes_.length - 1] && datum.efficiency < 0.9"
    return marks.finish(
        ideal.mark_line(color=marks.FAINT, strokeWidth=1),
        ideal.transform_filter(apart)
        .mark_text(align="right", dx=-7, dy=-5, color=marks.SOFT)
        .encode(text=marks.value("Text", "ideal")),
        *marks.intervals(base, y=alt.Y("tokens_per_s_low:Q"), y2=alt.Y2("tokens_per_s_high:Q")),
        *marks.stretches(base.encode(y=y)),
        *marks.points(base.encode(y=y), tooltips(*_BEST, "runner_up_layout_name")),
        *(
            layer
            for side, look in _BESIDE.items()
            for layer in marks.words(
                named.transform_filter(side), colour=marks.layout_colour(), **look
            )(y=y, text=alt.Text("name:N"))
        ),
        height=280,
    )  # fmt: skip


def throughput_per_gpu() -> alt.LayerChart:
    """The same per GPU: MFU above each point, below it the share of the smallest size's rate.

    For one model and batch the three are one curve. Grey: every other layout; grey squares: keeping
    the layout that is best at the smallest size.
    """
    y = marks.amounts("tokens_per_s_per_gpu", "Tokens per second per {GPU}")
    base = (
        marks.chart("best")
        .transform_calculate(
            low="datum.tokens_per_s_low / datum.world_size",
            high="datum.tokens_per_s_high / datum.world_size",
            yardstick="datum.ideal_tokens_per_s / datum.world_size",
            used="isValid(datum.mfu) ? format(datum.mfu, '.0%') : "
            "isValid(datum.model_flop_per_s_per_gpu) ? "
            "format(datum.model_flop_per_s_per_gpu, '.3~s') : ''",
        )
        .encode(x=marks.over_gpus())
    )
    others = marks.chart("contenders").transform_filter(
        "datum.position > 1 && isValid(datum.tokens_per_s_per_gpu)"
    )
    kept = marks.chart("fixed_layout").encode(x=marks.over_gpus(), y=y)
    last = "datum.world_size === sizes_[sizes_.length - 1] && datum.share_of_best < 0.97"
    # where many sizes stand close together every other one has its numbers, the largest among them
    second = "(sizes_.length - indexof(sizes_, datum.world_size)) % 2 === 1"
    roomy = alt.condition(
        f"width >= {_NUMBER} * sizes_.length + 60 || {second}", alt.value(1), alt.value(0)
    )
    return marks.finish(
        others.mark_circle(size=16, color=marks.OTHER, opacity=0.45).encode(
            x=marks.over_gpus(), y=y,
            tooltip=tooltips("world_size", "layout_name", "series", "tokens_per_s_per_gpu", "mfu"),
        ),
        marks.firmest(base)
        .mark_rule(color=marks.FAINT, strokeWidth=1)
        .encode(y=alt.Y("yardstick:Q"), **marks.ACROSS),
        kept.mark_line(color=marks.OTHER, strokeWidth=1.25, strokeDash=[1, 3]).encode(
            detail=[alt.Detail("series:N"), alt.Detail("layout_name:N")]
        ),
        kept.mark_square(size=24, color=marks.OTHER, opacity=1).encode(
            tooltip=tooltips("world_size", "layout_name", "series", "efficiency", "share_of_best")
        ),
        *marks.words(
            kept.transform_filter(last).transform_calculate(name="'one layout'"),
            colour=marks.SOFT, align="right", dx=8, dy=14,
        )(text=alt.Text("name:N")),
        *marks.intervals(base, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        *marks.stretches(base.encode(y=y)),
        *marks.points(base.encode(y=y), tooltips(*_BEST)),
        *marks.words(base, colour=marks.SOFT, dy=-15)(
            y=y, text=alt.Text("used:N"), opacity=roomy
        ),
        *marks.words(base, colour=marks.SOFT, dy=16)(
            y=y, text=alt.Text("efficiency:Q", format=".0%"), opacity=roomy
        ),
        height=280,
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


def prediction_error() -> alt.LayerChart:
    """Predicted over measured throughput of every point that ran, against the number of GPUs."""
    rows = (
        marks.chart("statistics")
        .transform_filter("isValid(datum.predicted_tokens_per_s) && isValid(datum.tokens_per_s)")
        .transform_calculate(ratio="datum.predicted_tokens_per_s / datum.tokens_per_s")
        .encode(x=marks.over_gpus())
    )
    y = alt.Y(
        "ratio:Q",
        title="Predicted over measured tokens per second (log scale)",
        scale=marks.log(16),
        axis=alt.Axis(
            values=[0.1, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.7, 2, 3, 5, 10],
            format="~g",
            labelOverlap="greedy",
            labelSeparation=4,
        ),
    )
    one = rows.transform_aggregate(count="count()")
    middle = rows.transform_aggregate(
        middle="median(ratio)", lower="q1(ratio)", upper="q3(ratio)", points="count()",
        groupby=["world_size"],
    )  # fmt: skip
    off = alt.condition(
        f"datum.ratio > {NEAR} || datum.ratio < {1 / NEAR:.4f}",
        alt.value(marks.WARN),
        alt.value(marks.ACCENT),
    )
    return marks.finish(
        one.mark_rect(color=marks.ACCENT, opacity=0.1).encode(
            x=marks.ACROSS["x"],
            x2=marks.ACROSS["x2"],
            y=marks.datum("Y", 1 / NEAR),
            y2=marks.datum("Y2", NEAR),
        ),
        one.mark_rule(color=marks.INK, strokeWidth=1).encode(y=marks.datum("Y", 1), **marks.ACROSS),
        rows.mark_point(
            shape="diamond", size=34, strokeWidth=1.25, fill=marks.SURFACE, opacity=0.8
        ).encode(
            y=y,
            stroke=off,
            tooltip=[
                *tooltips("world_size", "layout_name"),
                alt.Tooltip("tokens_per_s:Q", title="measured tokens/s", format=",.4~s"),
                alt.Tooltip("predicted_tokens_per_s:Q", title="predicted tokens/s", format=",.4~s"),
                alt.Tooltip("ratio:Q", title="predicted over measured", format=".3f"),
            ],
        ),
        middle.mark_rule(color=marks.INK, strokeWidth=5, opacity=0.3).encode(
            y=alt.Y("lower:Q"), y2=alt.Y2("upper:Q")
        ),
        middle.mark_tick(color=marks.INK, thickness=2.5, width=22, orient="horizontal").encode(
            y=alt.Y("middle:Q"),
            tooltip=[
                *tooltips("world_size"),
                alt.Tooltip("points:Q", title="points"),
                alt.Tooltip("middle:Q", title="median", format=".3f"),
                alt.Tooltip("lower:Q", title="lower quartile", format=".3f"),
                alt.Tooltip("upper:Q", title="upper quartile", format=".3f"),
            ],
        ),
        *marks.words(middle, colour=marks.INK, align="left", dx=15)(
            y=alt.Y("middle:Q"), text=alt.Text("middle:Q", format=".2f")
        ),
        height=260,
    )
