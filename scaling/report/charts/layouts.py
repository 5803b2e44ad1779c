"""Charts of the layouts at one number of GPUs: their ranking, and the map of tp by pp."""

from typing import Any

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.marks import tooltips
from scaling.report.charts.palette import HATCH, RAMPS, variable

_ON_DARK = variable("s-ink")


def layout_map() -> alt.LayerChart:
    """Map of tp by pp at one size: each cell the best of all other choices, failures hatched."""
    unstated = "isValid(datum.value) ? datum.label : 'not stated'"
    plain: dict[str, Any] = {"domain": False, "ticks": False, "grid": False, "labelExpr": unstated}
    # both titles stand on top: beside a map of one or two rows the second would be cut
    titles = ["Across: pipeline stages, pp", "Down: tensor-parallel size, tp"]
    base = marks.chart("map").encode(
        x=alt.X("pp:O", title=titles, axis=alt.Axis(orient="top", labelAngle=0, **plain)),
        y=alt.Y("tp:O", title=None, axis=alt.Axis(**plain)),
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
        range=RAMPS["s"],
    )
    ink = alt.condition("datum.share_of_best >= 0.8", alt.value(_ON_DARK), alt.value(marks.INK))
    tips = tooltips(
        "layout_name text series mfu tokens_per_s tokens_per_s_per_gpu share_of_best tried failed"
    )
    narrow = "width < 480"
    return marks.finish(
        ran.mark_rect(cornerRadius=3, stroke=marks.SURFACE, strokeWidth=2).encode(
            color=alt.Color("share_of_best:Q", scale=steps, legend=None), tooltip=tips
        ),
        bad.mark_rect(cornerRadius=3, fill=HATCH, stroke=marks.SURFACE, strokeWidth=2).encode(
            tooltip=tooltips("status tried failed")
        ),
        ran.transform_filter("datum.share_of_best === 1").mark_rect(
            cornerRadius=3, fill="transparent", stroke=marks.INK, strokeWidth=2.5
        ),
        ran.transform_filter("datum.series === 'predicted'").mark_rect(
            cornerRadius=3, fill="transparent", stroke=marks.INK, strokeWidth=1.5, strokeDash=[4, 3]
        ),
        ran.mark_text(
            dy={"expr": f"{narrow} ? 1 : -6"}, fontSize={"expr": f"{narrow} ? 11 : 13"},
            fontWeight=600,
        ).encode(text=alt.Text("number:N"), color=ink),
        ran.mark_text(dy=9, fontSize=10, opacity={"expr": f"{narrow} ? 0 : 1"}).encode(
            text=alt.Text("text:N"), color=ink
        ),
        *marks.halo_text(
            bad.encode(text=alt.Text("said:N")), colour=marks.SOFT,
            fontSize={"expr": f"{narrow} ? 10 : 11"},
        ),
        height=alt.Step(46),
    )  # fmt: skip


def layout_ranking() -> alt.LayerChart:
    """Every layout tried at one size, fastest first, failures as hatched rows.

    Name and number stand above the mark, so a phone has room.
    """
    up, down = -7, 7
    x = alt.X(
        "tokens_per_s:Q", title="Tokens per second", scale=marks.FROM_ZERO, axis=marks.AMOUNTS
    )
    rows = (
        marks.chart("contenders")
        .transform_filter(f"datum.place <= {marks.SHOWN_LAYOUTS}")
        .transform_calculate(
            value="datum.outcome === 'ok' ? format(datum.tokens_per_s, '.3s') + ' · ' + "
            "format(datum.share_of_best, '.0%') : replace(datum.outcome, '_', ' ')",
        )
        .encode(y=marks.BY_PLACE)
    )
    # of a layout that several series or software stacks have, the first row
    named = rows.transform_joinaggregate(
        first="min(place)", groupby=["layout_name"]
    ).transform_filter("datum.place === datum.first")
    ran = rows.transform_filter("datum.outcome === 'ok'")
    failed = rows.transform_filter("datum.outcome !== 'ok'")
    ends = marks.intervals(ran, x=alt.X("tokens_per_s_low:Q"), x2=alt.X2("tokens_per_s_high:Q"))
    for layer in ends:
        layer.mark.yOffset = down
    tips = (
        "world_size layout_name series tokens_per_s tokens_per_s_low tokens_per_s_high "
        "share_of_best mfu stack_fingerprint"
    )
    return marks.finish(
        marks.chart("contenders")
        .transform_filter("datum.place === 1")
        .mark_rect(color=marks.ACCENT, opacity=0.16)
        .encode(x=alt.X("tokens_per_s_low:Q"), x2=alt.X2("tokens_per_s_high:Q")),
        ran.mark_rule(color=marks.OTHER, strokeWidth=1, yOffset=down).encode(
            x=x, x2=marks.fixed("X2Datum", 0)
        ),
        *ends,
        *marks.points(ran.encode(x=x), tips, yOffset=down),
        failed.mark_bar(height=8, yOffset=down, fill=HATCH, cornerRadius=2).encode(
            **marks.ACROSS,
            tooltip=tooltips("world_size layout_name outcome"),
        ),
        named.mark_text(
            align="left", dy=up, color=marks.INK, limit={"expr": "width - 82"}
        ).encode(x=marks.LEFT, text=alt.Text("layout_name:N")),
        named.mark_text(align="right", dx=-2, dy=up).encode(
            x=marks.RIGHT, text="value:N",
            color=alt.condition(
                "datum.outcome === 'ok'", alt.value(marks.SOFT), alt.value(marks.BAD)
            ),
        ),
        height=alt.Step(32),
    )  # fmt: skip
