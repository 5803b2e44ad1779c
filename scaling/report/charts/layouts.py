"""The chart of the layouts at one number of GPUs."""

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.marks import tooltips
from scaling.report.charts.palette import HATCH


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
