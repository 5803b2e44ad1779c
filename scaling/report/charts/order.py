"""Charts of which layout is ahead: where the order changes, and the map of tp and pp."""

from typing import Any

import altair as alt

from scaling.report.charts.marks import (
    INK,
    SOFT,
    SURFACE,
    UPRIGHT,
    chart,
    finish,
    layout_colour,
    over_gpus,
    points,
    value,
    words,
)
from scaling.report.charts.palette import HATCH, variable
from scaling.report.charts.tooltips import tooltips

LEAST_SHARE = 0.6  # below it a line leaves the chart; the table behind it has all


def crossovers() -> alt.LayerChart:
    """Throughput of each coloured layout as a share of the fastest, and where the lead changes."""
    y = alt.Y(
        "share_of_best:Q",
        title="Throughput, share of the fastest at that size",
        scale=alt.Scale(domain=[LEAST_SHARE, 1.06], nice=False),
        axis=alt.Axis(format=".0%", values=[0.6, 0.7, 0.8, 0.9, 1]),
    )
    shown = f"datum.slot < 7 && datum.share_of_best >= {LEAST_SHARE}"
    base = chart("contenders").transform_filter(shown).encode(x=over_gpus(), y=y)
    legend = alt.Legend(
        title=None, orient="top", direction="vertical", labelLimit=420,
        labelFontSize=12, labelColor=SOFT, symbolType="circle",
        values=alt.ExprRef("slots_"), labelExpr="names_[datum.value - 1]",
        columns=alt.ExprRef("width < 520 ? 1 : 2"),
    )  # fmt: skip
    coloured = layout_colour(legend)
    zone = chart("switches").encode(x=over_gpus("crossing_low:Q"), x2=alt.X2("crossing_high:Q"))
    said = (
        "datum.verdict === 'resolved' ? '≈ ' + format(datum.crossing, '.3~r') : "
        "datum.verdict === 'tie' ? 'tie' : '?'"
    )
    middle = (
        chart("switches")
        .transform_calculate(
            middle="isValid(datum.crossing) ? datum.crossing : "
            "sqrt(datum.from_world_size * datum.to_world_size)",
            said=said,
        )
        .encode(x=over_gpus("middle:Q"))
    )
    tips = tooltips("world_size", "layout_name", "series", "tokens_per_s", "share_of_best")
    return finish(
        zone.mark_rect(fill=HATCH, opacity=0.6).encode(
            **UPRIGHT,
            tooltip=[
                alt.Tooltip("crossing:Q", title="order changes near", format=".3~r"),
                alt.Tooltip("crossing_low:Q", title="between", format=".3~r"),
                alt.Tooltip("crossing_high:Q", title="and", format=".3~r"),
                alt.Tooltip("verdict:N", title="verdict"),
                alt.Tooltip("before_name:N", title="before"),
                alt.Tooltip("after_name:N", title="after"),
            ],
        ),
        base.transform_filter("datum.series === 'predicted'")
        .mark_line(strokeWidth=1.75, strokeDash=[4, 3])
        .encode(color=coloured, detail=alt.Detail("layout_name:N")),
        base.transform_filter("datum.series !== 'predicted'")
        .mark_line(strokeWidth=2.25)
        .encode(
            color=coloured,
            detail=[
                alt.Detail(f"{name}:N") for name in ("layout_name", "series", "stack_fingerprint")
            ],
        ),
        *points(base, tips),
        *words(middle, colour=INK, baseline="bottom")(y=value("Y", 335), text=alt.Text("said:N")),
        height=340,
    )


def layout_map() -> alt.LayerChart:
    """Map of tp by pp at one size: each cell the best of all other choices, failures hatched."""
    plain: dict[str, Any] = {"domain": False, "ticks": False, "grid": False}
    base = chart("map").encode(
        x=alt.X(
            "pp:O", title="Pipeline stages, pp", axis=alt.Axis(orient="top", labelAngle=0, **plain)
        ),
        y=alt.Y("tp:O", title="Tensor-parallel size, tp", axis=alt.Axis(**plain)),
    )
    ran = base.transform_filter("datum.status === 'ok'").transform_calculate(
        number="isValid(datum.mfu) ? format(datum.mfu, '.1%') : "
        "format(datum.tokens_per_s_per_gpu, '.3s')"
    )
    bad = base.transform_filter("datum.status !== 'ok'").transform_calculate(
        said="replace(datum.status, '_', ' ')"
    )
    steps = alt.Scale(
        type="threshold",
        domain=[0.5, 0.7, 0.8, 0.9, 0.97],
        range=[variable(f"s{step}") for step in range(1, 7)],
    )
    ink = alt.condition("datum.share_of_best >= 0.8", alt.value(variable("s-ink")), alt.value(INK))
    tips = tooltips(
        "layout_name", "text", "series", "mfu", "tokens_per_s", "tokens_per_s_per_gpu",
        "share_of_best", "tried", "failed",
    )  # fmt: skip
    narrow = "width < 480"
    return finish(
        ran.mark_rect(cornerRadius=3, stroke=SURFACE, strokeWidth=2).encode(
            color=alt.Color("share_of_best:Q", scale=steps, legend=None), tooltip=tips
        ),
        bad.mark_rect(cornerRadius=3, fill=HATCH, stroke=SURFACE, strokeWidth=2).encode(
            tooltip=tooltips("status", "tried", "failed")
        ),
        ran.transform_filter("datum.share_of_best === 1").mark_rect(
            cornerRadius=3, fill="transparent", stroke=INK, strokeWidth=2.5
        ),
        ran.transform_filter("datum.series === 'predicted'").mark_rect(
            cornerRadius=3, fill="transparent", stroke=INK, strokeWidth=1.5, strokeDash=[4, 3]
        ),
        ran.mark_text(
            dy={"expr": f"{narrow} ? 1 : -6"}, fontSize={"expr": f"{narrow} ? 11 : 13"},
            fontWeight=600,
        ).encode(text=alt.Text("number:N"), color=ink),
        ran.mark_text(dy=9, fontSize=10, opacity={"expr": f"{narrow} ? 0 : 1"}).encode(
            text=alt.Text("text:N"), color=ink
        ),
        bad.mark_text(
            fontSize={"expr": f"{narrow} ? 9 : 11"}, stroke=variable("hatch-bg"), strokeWidth=4,
            strokeJoin="round",
        ).encode(text=alt.Text("said:N")),
        bad.mark_text(fontSize={"expr": f"{narrow} ? 9 : 11"}, color=SOFT).encode(
            text=alt.Text("said:N")
        ),
        height=alt.Step(46),
    )  # fmt: skip
