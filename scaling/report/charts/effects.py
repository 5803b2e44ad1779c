"""Charts of what each choice is worth, and of choices that change what another is worth."""

from typing import Any

import altair as alt

from scaling.report.charts.marks import (
    ACCENT,
    INK,
    LEFT,
    OTHER,
    RIGHT,
    SOFT,
    UPRIGHT,
    chart,
    datum,
    finish,
    rows_by,
    words,
)

_RATIO: dict[str, Any] = {
    "title": "Throughput ratio (log scale)",
    "scale": alt.Scale(type="log", nice=False, padding=24),
    "axis": alt.Axis(
        values=[0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.5, 2, 4, 10], format="~g",
        labelOverlap="greedy", labelSeparation=8,
    ),
}  # fmt: skip


def factor_effects() -> alt.LayerChart:
    """Throughput ratios of matched pairs: mean, quartiles and range of each choice."""
    rows = (
        chart("effects")
        .transform_filter("datum.shown")
        .transform_calculate(
            numbers="'×' + format(datum.mean_ratio, '.2f') + ' [' + format(datum.lowest, '.2f')"
            " + '–' + format(datum.highest, '.2f') + '] · ' + datum.pairs + "
            "(datum.pairs === 1 ? ' pair' : ' pairs')",
            brief="'×' + format(datum.mean_ratio, '.2f') + ' · ' + datum.pairs",
        )
        .encode(y=rows_by("name", "mean_ratio", falling=True))
    )
    x = alt.X("mean_ratio:Q", **_RATIO)
    tips = [
        alt.Tooltip("name:N", title="choice"),
        alt.Tooltip("series:N", title="value is"),
        alt.Tooltip("pairs:Q", title="matched pairs"),
        alt.Tooltip("mean_ratio:Q", title="mean ratio", format=".3f"),
        alt.Tooltip("lowest:Q", title="lowest", format=".3f"),
        alt.Tooltip("lower_quartile:Q", title="lower quartile", format=".3f"),
        alt.Tooltip("upper_quartile:Q", title="upper quartile", format=".3f"),
        alt.Tooltip("highest:Q", title="highest", format=".3f"),
        alt.Tooltip("smallest_world_size:Q", title="smallest size"),
        alt.Tooltip("ratio_at_smallest:Q", title="ratio there", format=".3f"),
        alt.Tooltip("largest_world_size:Q", title="largest size"),
        alt.Tooltip("ratio_at_largest:Q", title="ratio there", format=".3f"),
    ]
    one = rows.transform_aggregate(count="count()")
    narrow = "width < 460"
    return finish(
        one.mark_rule(color=OTHER, strokeWidth=1).encode(x=datum("X", 1), **UPRIGHT),
        rows.mark_rule(strokeWidth=1.25, color=ACCENT, yOffset=6).encode(
            x=alt.X("lowest:Q"), x2=alt.X2("highest:Q")
        ),
        rows.mark_rule(strokeWidth=6, color=ACCENT, opacity=0.45, yOffset=6).encode(
            x=alt.X("lower_quartile:Q"), x2=alt.X2("upper_quartile:Q")
        ),
        rows.mark_point(
            shape="circle", filled=True, size=64, opacity=1, color=ACCENT, yOffset=6
        ).encode(x=x, tooltip=tips),
        *words(rows, colour=INK, align="left", dy=-11)(x=LEFT, text=alt.Text("name:N")),
        *words(rows, colour=SOFT, align="right", dy=-11, opacity={"expr": f"{narrow} ? 0 : 1"})(
            x=RIGHT, text=alt.Text("numbers:N")
        ),
        *words(rows, colour=SOFT, align="right", dy=-11, opacity={"expr": f"{narrow} ? 1 : 0"})(
            x=RIGHT, text=alt.Text("brief:N")
        ),
        height=alt.Step(46),
    )


def interactions() -> alt.LayerChart:
    """Mean ratio of a choice at each level of another one: where it pays and where not."""
    rows = (
        chart("interactions")
        .transform_filter("datum.shown")
        .transform_calculate(
            said="datum.level + ' ×' + format(datum.mean_ratio, '.2f')",
        )
        .encode(y=rows_by("title", "rank"))
    )
    x = alt.X("mean_ratio:Q", **_RATIO)
    tips = [
        alt.Tooltip("name:N", title="choice"),
        alt.Tooltip("axis:N", title="where"),
        alt.Tooltip("level:N", title="is"),
        alt.Tooltip("series:N", title="value is"),
        alt.Tooltip("mean_ratio:Q", title="mean ratio", format=".3f"),
        alt.Tooltip("pairs:Q", title="matched pairs"),
    ]
    one = rows.transform_aggregate(count="count()")
    ends = rows.transform_joinaggregate(
        low="min(mean_ratio)", high="max(mean_ratio)", groupby=["title"]
    )
    label = {"fontSize": 11, "dy": 19}
    return finish(
        one.mark_rule(color=OTHER, strokeWidth=1).encode(x=datum("X", 1), **UPRIGHT),
        rows.mark_line(color=ACCENT, strokeWidth=1.25, yOffset=4).encode(
            x=x, detail=alt.Detail("title:N")
        ),
        rows.mark_point(
            shape="circle", filled=True, size=50, opacity=1, color=ACCENT, yOffset=4
        ).encode(x=x, tooltip=tips),
        *words(ends.transform_filter("datum.mean_ratio === datum.low"), colour=SOFT,
               align="right", dx=4, **label)(x=x, text=alt.Text("said:N")),
        *words(ends.transform_filter("datum.mean_ratio === datum.high"), colour=SOFT,
               align="left", dx=-4, **label)(x=x, text=alt.Text("said:N")),
        *words(ends.transform_filter("datum.mean_ratio === datum.low"), colour=INK,
               align="left", dy=-14)(x=LEFT, text=alt.Text("title:N")),
        height=alt.Step(52),
    )  # fmt: skip
