"""What bounds a step: the parts of its time."""

from typing import Any

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.categories import part_colour
from scaling.report.charts.palette import variable

TIME = [
    "compute", "tensor parallel", "pipeline transfers", "exposed communication",
    "pipeline bubble", "idle and rest",
]  # fmt: skip
_LABELLED = 0.07  # of a step; a narrower part has no room for its share


def step_bounds() -> alt.LayerChart:
    """Where the step of the layout advised at each size goes; predicted bars are paler."""
    base = marks.chart("time_split").encode(y=marks.each_size())
    tips = [
        alt.Tooltip("world_size:O", title="{GPUs}"),
        alt.Tooltip("layout_name:N", title="layout"),
        alt.Tooltip("part:N", title="part"),
        alt.Tooltip("seconds:Q", title="seconds", format=".4~g"),
        alt.Tooltip("share:Q", title="of the step", format=".1%"),
        alt.Tooltip("series:N", title="value is"),
    ]
    shared = base.transform_calculate(share="datum.share_to - datum.share_from")
    hidden = base.transform_filter(
        "datum.part_order === 0 && datum.hidden_share > 0"
    ).transform_calculate(zero="0")
    shares = shared.transform_filter(f"datum.share > {_LABELLED}").transform_calculate(
        middle="(datum.share_from + datum.share_to) / 2"
    )
    numbers: dict[str, Any] = {
        "x": alt.X("middle:Q"),
        "text": alt.Text("share:Q", format=".0%"),
    }
    steps = (
        marks.chart("time_split")
        .transform_aggregate(step="sum(seconds)", groupby=["world_size"])
        .transform_calculate(
            words="datum.step < 1 ? format(1000 * datum.step, '.3~r') + ' ms' : "
            "format(datum.step, ',.3~r') + ' s'",
        )
        .encode(y=alt.Y("world_size:O"))
    )
    dark = "datum.part_order === 0 || datum.part_order >= 3 && datum.part_order < 5"
    return marks.finish(
        shared.mark_bar(height=18, stroke=marks.SURFACE, strokeWidth=1).encode(
            x=alt.X(
                "share_from:Q",
                title="Share of the step",
                scale=alt.Scale(domain=[0, 1], range=[0, {"expr": "width - 52"}]),
                axis=alt.Axis(format=".0%", tickCount=5, labelOverlap="greedy", labelSeparation=4),
            ),
            x2=alt.X2("share_to:Q"),
            color=part_colour(TIME, "t", "time_split"),
            opacity=alt.condition("datum.series === 'predicted'", alt.value(0.75), alt.value(1)),
            tooltip=tips,
        ),
        hidden.mark_rule(strokeWidth=2, yOffset=14, color=marks.SOFT).encode(
            x=alt.X("zero:Q"),
            x2=alt.X2("hidden_share:Q"),
            tooltip=[alt.Tooltip("hidden_share:Q", title="hidden behind compute", format=".0%")],
        ),
        shares.transform_filter("datum.part_order < 5")
        .mark_text()
        .encode(
            **numbers,
            color=alt.condition(dark, alt.value(variable("t-ink")), alt.value(variable("t-ink2"))),
        ),
        shares.transform_filter("datum.part_order === 5")
        .mark_text(color=marks.INK)
        .encode(**numbers),
        steps.mark_text(align="right", color=marks.SOFT).encode(
            x=marks.RIGHT, text=alt.Text("words:N")
        ),
        height=alt.Step(34),
    )
