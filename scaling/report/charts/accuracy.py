"""How far predictions lie from what ran."""

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.tooltips import tooltips

NEAR = 1.1  # the band around a right prediction, as a factor


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
