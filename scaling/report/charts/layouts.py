"""The chart of the layouts at one number of GPUs."""

from typing import Any

import altair as alt

from scaling.report.charts.marks import (
    ACCENT,
    ACROSS,
    BAD,
    FROM_ZERO,
    INK,
    LEFT,
    OTHER,
    RIGHT,
    SOFT,
    amount_axis,
    chart,
    datum,
    finish,
    intervals,
    points,
    rows_by,
)
from scaling.report.charts.palette import HATCH
from scaling.report.charts.tooltips import tooltips

SHOWN_LAYOUTS = 10  # rows of a chart; the table behind it has all


def layout_ranking() -> alt.LayerChart:
    """Every layout tried at one size, fastest first, failures as hatched rows.

    Name and number stand above the mark, so a phone has room.
    """
    up, down = -7, 7
    x = alt.X("tokens_per_s:Q", title="Tokens per second", scale=FROM_ZERO, axis=amount_axis())
    rows = (
        chart("contenders")
        .transform_filter(f"datum.place <= {SHOWN_LAYOUTS}")
        .transform_calculate(
            value="datum.outcome === 'ok' ? format(datum.tokens_per_s, '.3s') + ' · ' + "
            "format(datum.share_of_best, '.0%') : replace(datum.outcome, '_', ' ')",
        )
        .encode(y=rows_by("layout_name", "place"))
    )
    ran = rows.transform_filter("datum.outcome === 'ok'")
    failed = rows.transform_filter("datum.outcome !== 'ok'")
    ends = intervals(ran, x=alt.X("tokens_per_s_low:Q"), x2=alt.X2("tokens_per_s_high:Q"))
    for layer in ends:
        layer.mark.yOffset = down
    number: dict[str, Any] = {"x": RIGHT, "text": "value:N"}
    tips = tooltips(
        "world_size", "layout_name", "series", "tokens_per_s", "tokens_per_s_low",
        "tokens_per_s_high", "share_of_best", "mfu", "stack_fingerprint",
    )  # fmt: skip
    return finish(
        chart("contenders")
        .transform_filter("datum.place === 1")
        .mark_rect(color=ACCENT, opacity=0.16)
        .encode(x=alt.X("tokens_per_s_low:Q"), x2=alt.X2("tokens_per_s_high:Q")),
        ran.mark_rule(color=OTHER, strokeWidth=1, yOffset=down).encode(x=x, x2=datum("X2", 0)),
        *ends,
        *points(ran.encode(x=x), tips, yOffset=down),
        failed.mark_bar(height=8, yOffset=down, fill=HATCH, cornerRadius=2).encode(
            **ACROSS,
            tooltip=tooltips("world_size", "layout_name", "outcome"),
        ),
        rows.mark_text(align="left", dy=up, color=INK, limit={"expr": "width * 0.72"}).encode(
            x=LEFT, text=alt.Text("layout_name:N")
        ),
        ran.mark_text(align="right", dx=-2, dy=up, color=SOFT).encode(**number),
        failed.mark_text(align="right", dx=-2, dy=up, color=BAD).encode(**number),
        height=alt.Step(32),
    )
