"""Charts of one thing against another: choices, and predictions."""

from typing import Any

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.marks import tooltips

NEAR = (0.9, 1.1)  # predictions that count as near, as in accuracy.sql
_RATIO: dict[str, Any] = {
    "title": "Throughput ratio (log scale)",
    "scale": marks.log(24),
    # fewer over a wide range, or their greedy thinning drops the 1; finer over a narrow one
    "axis": alt.Axis(
        values={
            "expr": "domain('x')[1] / domain('x')[0] > 5 ? [0.01, 0.1, 0.3, 1, 3, 10, 100] : "
            "domain('x')[1] / domain('x')[0] < 1.1 ? "
            "[0.92, 0.94, 0.96, 0.98, 0.99, 1, 1.01, 1.02, 1.04, 1.06, 1.08] : "
            "[0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.5, 2, 3]"
        },
        format="~g", labelOverlap="greedy", labelSeparation=8,
    ),
}  # fmt: skip


def factor_effects() -> alt.LayerChart:
    """Throughput ratios of matched pairs near the fastest layouts, and the range of all pairs."""
    largest_first = alt.EncodingSortField("worth", op="max", order="descending")
    by_worth = alt.Y("name:N", axis=None, sort=largest_first)
    rows = (
        marks.chart("effects")
        .transform_filter("datum.shown")
        .transform_calculate(
            worth="isValid(datum.near_ratio) ? datum.near_ratio : datum.mean_ratio",
            counted="isValid(datum.near_ratio) ? datum.near_pairs : datum.pairs",
        )
        .transform_calculate(
            numbers="'×' + format(datum.worth, '.2f') + (isValid(datum.near_low) ? ' [' + "
            "format(datum.near_low, '.2f') + '–' + format(datum.near_high, '.2f') + ']' : '') + "
            "' · ' + datum.counted + (datum.counted === 1 ? ' pair' : ' pairs')",
            brief="'×' + format(datum.worth, '.2f') + ' · ' + datum.counted + "
            "(datum.counted === 1 ? ' pair' : ' pairs')",
        )
        .encode(y=by_worth)
    )
    x = alt.X("worth:Q", **_RATIO)
    tips = tooltips(
        "name series near_pairs near_ratio near_low near_high pairs mean_ratio lowest highest "
        "ratio_at_smallest ratio_at_largest"
    )
    one = rows.transform_aggregate(count="count()")
    narrow = "width < 460"
    return marks.finish(
        one.mark_rule(color=marks.OTHER, strokeWidth=1).encode(
            x=marks.fixed("XDatum", 1), **marks.UPRIGHT
        ),
        rows.mark_rule(strokeWidth=1.25, color=marks.ACCENT, yOffset=6).encode(
            x=alt.X("lowest:Q"), x2=alt.X2("highest:Q")
        ),
        rows.mark_rule(strokeWidth=6, color=marks.ACCENT, opacity=0.45, yOffset=6).encode(
            x=alt.X("near_low:Q"), x2=alt.X2("near_high:Q")
        ),
        rows.mark_point(
            shape="circle", filled=True, size=64, opacity=1, color=marks.ACCENT, yOffset=6
        ).encode(x=x, tooltip=tips),
        *marks.halo_text(
            rows.encode(x=marks.LEFT, text=alt.Text("name:N")),
            colour=marks.INK, align="left", dy=-11,
        ),
        *marks.halo_text(
            rows.encode(x=marks.RIGHT, text=alt.Text("numbers:N")),
            colour=marks.SOFT, align="right", dy=-11, opacity={"expr": f"{narrow} ? 0 : 1"},
        ),
        *marks.halo_text(
            rows.encode(x=marks.RIGHT, text=alt.Text("brief:N")),
            colour=marks.SOFT, align="right", dy=-11, opacity={"expr": f"{narrow} ? 1 : 0"},
        ),
        height=alt.Step(38),
    )  # fmt: skip


def prediction_error() -> alt.LayerChart:
    """Predicted over actual throughput of every point that ran, against the number of GPUs."""
    rows = (
        marks.chart("statistics")
        .transform_filter("isValid(datum.predicted_tokens_per_s) && isValid(datum.tokens_per_s)")
        .transform_calculate(ratio="datum.predicted_tokens_per_s / datum.tokens_per_s")
        .encode(x=marks.over_gpus())
    )
    y = alt.Y(
        "ratio:Q",
        title="Predicted over actual tokens per second (log scale)",
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
        f"datum.ratio < {NEAR[0]} || datum.ratio > {NEAR[1]}",
        alt.value(marks.WARN),
        alt.value(marks.ACCENT),
    )
    return marks.finish(
        one.mark_rect(color=marks.ACCENT, opacity=0.1).encode(
            x=marks.ACROSS["x"],
            x2=marks.ACROSS["x2"],
            y=marks.fixed("YDatum", NEAR[0]),
            y2=marks.fixed("Y2Datum", NEAR[1]),
        ),
        one.mark_rule(color=marks.INK, strokeWidth=1).encode(
            y=marks.fixed("YDatum", 1), **marks.ACROSS
        ),
        rows.mark_point(
            shape="diamond", size=34, strokeWidth=1.25, fill=marks.SURFACE, opacity=0.8
        ).encode(
            y=y,
            stroke=off,
            tooltip=tooltips(
                "world_size layout_name series tokens_per_s predicted_tokens_per_s ratio"
            ),
        ),
        middle.mark_rule(color=marks.INK, strokeWidth=5, opacity=0.3).encode(
            y=alt.Y("lower:Q"), y2=alt.Y2("upper:Q")
        ),
        middle.mark_tick(color=marks.INK, thickness=2.5, width=22, orient="horizontal").encode(
            y=alt.Y("middle:Q"),
            tooltip=tooltips("world_size points middle lower upper"),
        ),
        *marks.halo_text(
            middle.encode(y=alt.Y("middle:Q"), text=alt.Text("middle:Q", format=".2f")),
            colour=marks.INK,
            align="left",
            dx=15,
        ),
        height=260,
    )
