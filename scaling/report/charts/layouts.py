"""Charts of the layouts at one number of GPUs: one function, one chart, no data inside."""

from typing import Any

import altair as alt

from scaling.cluster.hardware import GIB
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
    UPRIGHT,
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

SHOWN_LAYOUTS = 15  # rows of a chart; the table behind it has all


def layout_ranking() -> alt.LayerChart:
    """Every layout tried at one size, fastest first, failures as hatched rows."""
    x = alt.X(
        "tokens_per_s:Q",
        title="Tokens per second",
        scale=FROM_ZERO,
        axis=amount_axis(),
    )
    best = chart("contenders").transform_filter("datum.place === 1")
    value = "format(datum.tokens_per_s, '.3s') + ' · ' + format(datum.share_of_best, '.0%')"
    tips = (
        "world_size", "layout_name", "series", "tokens_per_s", "tokens_per_s_low",
        "tokens_per_s_high", "share_of_best", "stack_fingerprint",
    )  # fmt: skip
    return _layout_rows(
        best.mark_rect(color=ACCENT, opacity=0.16).encode(
            x=alt.X("tokens_per_s_low:Q"), x2=alt.X2("tokens_per_s_high:Q")
        ),
        x=x,
        ends=("tokens_per_s_low:Q", "tokens_per_s_high:Q"),
        value=value,
        tooltip=tooltips(*tips),
    )


def memory() -> alt.LayerChart:
    """Peak memory per GPU of every layout tried at one size, against what the GPU has."""
    x = alt.X(
        "memory:Q",
        title="Peak memory per {GPU}, largest rank (GiB)",
        scale=FROM_ZERO,
        axis=alt.Axis(tickCount=5),
    )
    capacity = (
        chart("settings")
        .transform_filter("isValid(datum.gpu_memory_bytes)")
        .transform_calculate(capacity=f"datum.gpu_memory_bytes / {GIB}")
    )
    return _layout_rows(
        capacity.mark_rule(color=BAD, strokeWidth=1.5).encode(x=alt.X("capacity:Q"), **UPRIGHT),
        x=x,
        ends=None,
        value="isValid(datum.memory) ? format(datum.memory, '.3~g') + ' GiB' : 'not measured'",
        tooltip=tooltips("world_size", "layout_name", "series", "memory", "tokens_per_s"),
    )


def _layout_rows(
    behind: alt.Chart,
    *,
    x: alt.X,
    ends: tuple[str, str] | None,
    value: str,
    tooltip: list[alt.Tooltip],
) -> alt.LayerChart:
    """Rows of layouts: the name and its number above, the mark below, so a phone has room."""
    up, down = -9, 7
    rows = (
        chart("contenders")
        .transform_filter(f"datum.place <= {SHOWN_LAYOUTS}")
        .transform_calculate(
            memory=f"isValid(datum.peak_memory_bytes) ? datum.peak_memory_bytes / {GIB} : null",
            value=f"datum.outcome === 'ok' ? {value} : replace(datum.outcome, '_', ' ')",
        )
        .encode(y=rows_by("layout_name", "place"))
    )
    ran = rows.transform_filter("datum.outcome === 'ok'")
    failed = rows.transform_filter("datum.outcome !== 'ok'")
    shaft = ran.mark_rule(color=OTHER, strokeWidth=1, yOffset=down)
    number: dict[str, Any] = {"x": RIGHT, "text": "value:N"}
    return finish(
        behind,
        shaft.encode(x=x, x2=datum("X2", 0)),
        *([] if ends is None else _offset_intervals(ran, *ends, down)),
        *points(ran.encode(x=x), tooltip, yOffset=down),
        failed.mark_bar(height=8, yOffset=down, fill=HATCH, cornerRadius=2).encode(
            **ACROSS,
            tooltip=tooltips("world_size", "layout_name", "outcome"),
        ),
        rows.mark_text(align="left", dy=up, color=INK).encode(
            x=LEFT, text=alt.Text("layout_name:N")
        ),
        ran.mark_text(align="right", dx=-5, dy=up, color=SOFT).encode(**number),
        failed.mark_text(align="right", dx=-5, dy=up, color=BAD).encode(**number),
        height=alt.Step(36),
    )


def _offset_intervals(base: alt.Chart, low: str, high: str, offset: int) -> list[alt.Chart]:
    shifted = intervals(base, x=alt.X(low), x2=alt.X2(high))
    for layer in shifted:
        layer.mark.yOffset = offset
    return shifted
