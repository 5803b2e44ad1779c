"""Charts of what memory and time are made of, and of what the predictor says of them."""

from typing import Any

import altair as alt

from scaling.cluster.hardware import GIB
from scaling.report.charts.categories import part_colour
from scaling.report.charts.layouts import SHOWN_LAYOUTS
from scaling.report.charts.marks import (
    ACCENT,
    BAD,
    FROM_ZERO,
    INK,
    LEFT,
    RIGHT,
    SOFT,
    SURFACE,
    UPRIGHT,
    WARN,
    chart,
    finish,
    log_amount_axis,
    rows_by,
)
from scaling.report.charts.palette import variable

MEMORY = ["weights", "gradients", "optimizer", "activations", "logits and rest"]
TIME = [
    "compute", "tensor parallel", "pipeline transfers", "exposed communication",
    "pipeline bubble", "idle and rest",
]  # fmt: skip


def memory_parts() -> alt.LayerChart:
    """Predicted memory of each layout at one size by part; a tick where a peak was measured."""
    rows = (
        chart("memory_parts")
        .transform_filter(f"datum.place <= {SHOWN_LAYOUTS}")
        .transform_calculate(
            start=f"datum.from_bytes / {GIB}",
            end=f"datum.to_bytes / {GIB}",
            size=f"datum.bytes / {GIB}",
            total=f"datum.total_bytes / {GIB}",
            peak=f"isValid(datum.peak_memory_bytes) ? datum.peak_memory_bytes / {GIB} : null",
            capacity=f"datum.capacity_bytes / {GIB}",
            said="datum.outcome === 'ok' ? format(datum.end, '.3~r') + ' GiB' : "
            "(datum.series === 'predicted' ? 'predicted ' : '') + replace(datum.outcome, '_', ' ')",
        )
        .encode(y=rows_by("layout_name", "place"))
    )
    x = alt.X(
        "start:Q",
        title="Memory per {GPU}, largest rank (GiB)",
        scale=FROM_ZERO,
        axis=alt.Axis(tickCount=5),
    )
    first = rows.transform_filter("datum.part_order === 0")
    last = rows.transform_filter(f"datum.part_order === {len(MEMORY) - 1}")
    tips = [
        alt.Tooltip("layout_name:N", title="layout"),
        alt.Tooltip("part:N", title="part"),
        alt.Tooltip("size:Q", title="predicted GiB", format=".3~r"),
        alt.Tooltip("total:Q", title="predicted total GiB", format=".3~r"),
        alt.Tooltip("peak:Q", title="measured peak GiB", format=".3~r"),
        alt.Tooltip("outcome:N", title="outcome"),
        alt.Tooltip("series:N", title="the outcome is"),
    ]
    ran = alt.condition("datum.outcome === 'ok'", alt.value(1), alt.value(0.5))
    return finish(
        rows.mark_bar(height=10, yOffset=-7, stroke=SURFACE, strokeWidth=0.5).encode(
            x=x, x2=alt.X2("end:Q"), color=part_colour(MEMORY, "p"), opacity=ran, tooltip=tips
        ),
        first.transform_filter("isValid(datum.peak)")
        .mark_tick(thickness=3, height=16, yOffset=-7, color=INK)
        .encode(x=alt.X("peak:Q"), tooltip=tips),
        first.transform_aggregate(edge="max(capacity)")
        .mark_rule(color=BAD, strokeWidth=1.5)
        .encode(x=alt.X("edge:Q"), **UPRIGHT),
        first.mark_text(align="left", dy=9, color=INK).encode(
            x=LEFT, text=alt.Text("layout_name:N")
        ),
        last.mark_text(align="right", dx=-5, dy=9, color=SOFT).encode(
            x=RIGHT, text=alt.Text("said:N")
        ),
        height=alt.Step(36),
    )


def memory_fit() -> alt.LayerChart:
    """Predicted memory of every point that ran or ran out of memory, against the capacity."""
    rows = (
        chart("statistics")
        .transform_filter(
            "isValid(datum.predicted_memory_bytes)"
            " && (datum.outcome === 'ok' || datum.outcome === 'oom')"
        )
        .transform_calculate(
            size=f"datum.predicted_memory_bytes / {GIB}",
            peak=f"isValid(datum.peak_memory_bytes) ? datum.peak_memory_bytes / {GIB} : null",
            row="datum.outcome === 'ok' ? 'ran' : 'out of memory'",
        )
    )
    x = alt.X(
        "size:Q",
        title="Predicted peak memory (GiB, log scale)",
        scale=alt.Scale(type="log", nice=False, padding=10),
        axis=alt.Axis(values=[2**n for n in range(14)], format="d", labelOverlap="greedy"),
    )
    y = alt.Y(
        "row:N", sort=["ran", "out of memory"], title=None,
        axis=alt.Axis(domain=False, ticks=False, grid=False),
    )  # fmt: skip
    base = rows.encode(x=x, y=y)
    capacity = (
        chart("settings")
        .transform_filter("isValid(datum.gpu_memory_bytes)")
        .transform_calculate(edge=f"datum.gpu_memory_bytes / {GIB}")
    )
    tips = [
        alt.Tooltip("world_size:Q", title="{GPUs}"),
        alt.Tooltip("layout_name:N", title="layout"),
        alt.Tooltip("size:Q", title="predicted GiB", format=".3~r"),
        alt.Tooltip("peak:Q", title="measured peak GiB", format=".3~r"),
        alt.Tooltip("outcome:N", title="outcome"),
    ]
    tick: dict[str, Any] = {"height": 34, "thickness": 1.5, "opacity": 0.6}
    return finish(
        base.transform_filter("datum.outcome === 'ok'")
        .mark_tick(color=ACCENT, **tick)
        .encode(tooltip=tips),
        base.transform_filter("datum.outcome !== 'ok'")
        .mark_point(shape="cross", angle=45, filled=True, color=BAD, size=46, opacity=0.6)
        .encode(tooltip=tips),
        capacity.mark_rule(color=BAD, strokeWidth=1.5).encode(x=alt.X("edge:Q"), **UPRIGHT),
        height=alt.Step(70),
    )


def time_split() -> alt.LayerChart:
    """Where the step of the best layout goes at each size; predicted bars are paler."""
    base = chart("time_split").encode(
        y=alt.Y(
            "world_size:O",
            title="Number of {GPUs}",
            axis=alt.Axis(domain=False, ticks=False, grid=False),
        )
    )
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
    shares = shared.transform_filter("datum.share > 0.07").transform_calculate(
        middle="(datum.share_from + datum.share_to) / 2"
    )
    numbers: dict[str, Any] = {
        "x": alt.X("middle:Q"),
        "text": alt.Text("share:Q", format=".0%"),
    }
    dark = "datum.part_order === 0 || datum.part_order >= 3 && datum.part_order < 5"
    return finish(
        shared.mark_bar(height=18, stroke=SURFACE, strokeWidth=1).encode(
            x=alt.X(
                "share_from:Q",
                title="Share of the step time",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format=".0%", tickCount=5),
            ),
            x2=alt.X2("share_to:Q"),
            color=part_colour(TIME, "t"),
            opacity=alt.condition("datum.series === 'predicted'", alt.value(0.75), alt.value(1)),
            tooltip=tips,
        ),
        hidden.mark_rule(strokeWidth=2, yOffset=14, color=SOFT).encode(
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
        shares.transform_filter("datum.part_order === 5").mark_text(color=INK).encode(**numbers),
        height=alt.Step(40),
    )


def predicted_against_measured() -> alt.LayerChart:
    """Predicted over measured throughput of every point that ran, ten per cent shaded."""
    rows = (
        chart("statistics")
        .transform_filter("isValid(datum.predicted_tokens_per_s) && isValid(datum.tokens_per_s)")
        .transform_calculate(
            error="datum.predicted_tokens_per_s / datum.tokens_per_s - 1",
            near="datum.tokens_per_s * 0.9",
            far="datum.tokens_per_s * 1.1",
        )
    )
    scale = alt.Scale(type="log", nice=False, padding=10)
    x = alt.X(
        "tokens_per_s:Q", title="Measured tokens per second (log scale)", scale=scale,
        axis=log_amount_axis(),
    )  # fmt: skip
    y = alt.Y(
        "predicted_tokens_per_s:Q", title="Predicted tokens per second (log scale)", scale=scale,
        axis=log_amount_axis(),
    )  # fmt: skip
    off = alt.condition("abs(datum.error) > 0.1", alt.value(WARN), alt.value(ACCENT))
    return finish(
        rows.mark_area(color=ACCENT, opacity=0.12).encode(
            x=x, y=alt.Y("near:Q"), y2=alt.Y2("far:Q")
        ),
        rows.mark_line(color=SOFT, strokeWidth=1).encode(x=x, y=alt.Y("tokens_per_s:Q")),
        rows.mark_point(
            shape="diamond", size=44, strokeWidth=1.5, fill=SURFACE, opacity=0.9
        ).encode(
            x=x,
            y=y,
            stroke=off,
            tooltip=[
                alt.Tooltip("world_size:Q", title="{GPUs}"),
                alt.Tooltip("layout_name:N", title="layout"),
                alt.Tooltip("tokens_per_s:Q", title="measured tokens/s", format=",.4~s"),
                alt.Tooltip("predicted_tokens_per_s:Q", title="predicted tokens/s", format=",.4~s"),
                alt.Tooltip("error:Q", title="error", format="+.1%"),
            ],
        ),
        height=300,
    )
