"""What a step takes: the memory of each layout, and where its time goes."""

from typing import Any

import altair as alt

from scaling.cluster.hardware import GIB
from scaling.report.charts import marks
from scaling.report.charts.marks import tooltips
from scaling.report.charts.palette import RAMPS, variable

MEMORY = ["weights", "gradients", "optimizer", "activations", "logits and rest", "fragmentation"]
TIME = [
    "compute", "tensor parallel", "pipeline transfers", "exposed communication",
    "pipeline bubble", "idle and rest",
]  # fmt: skip
_ON_DARK, _ON_LIGHT = variable("t-ink"), variable("t-ink2")
_LABELLED = 0.07  # share of a step below which a part has no room for its label


def memory() -> alt.LayerChart:
    """Memory of each layout at one size: predicted parts as a bar, the measured peak as a tick."""
    bars = (
        marks.chart("memory_parts")
        .transform_filter(f"datum.place <= {marks.SHOWN_LAYOUTS}")
        .transform_calculate(
            start=f"datum.from_bytes / {GIB}",
            end=f"datum.to_bytes / {GIB}",
            size=f"datum.bytes / {GIB}",
            total=f"datum.total_bytes / {GIB}",
        )
        .encode(y=marks.BY_PLACE)
    )
    rows = (
        marks.chart("contenders")
        .transform_filter(f"datum.place <= {marks.SHOWN_LAYOUTS}")
        .transform_calculate(
            peak=f"isValid(datum.peak_memory_bytes) ? datum.peak_memory_bytes / {GIB} : null",
            words="datum.outcome !== 'ok' ? "
            "(datum.series === 'predicted' ? 'predicted ' : '') + replace(datum.outcome, '_', ' ')"
            " : isValid(datum.peak_memory_bytes) ? format(datum.peak_memory_bytes"
            f" / {GIB}, '.3~r') + ' GiB' : isValid(datum.predicted_memory_bytes) ? 'predicted ' + "
            f"format(datum.predicted_memory_bytes / {GIB}, '.3~r') + ' GiB' : 'not measured'",
            # a row with a measured peak before one without
            order=f"datum.place + (isValid(datum.peak_memory_bytes) ? 0 : {marks.SHOWN_LAYOUTS})",
        )
        .encode(y=marks.BY_PLACE)
    )
    # of a layout that several series or software stacks have, the first row
    named = rows.transform_joinaggregate(
        first="min(order)", groupby=["layout_name"]
    ).transform_filter("datum.order === datum.first")
    x = alt.X(
        "peak:Q", title="Memory per {GPU}, largest rank (GiB)", scale=marks.FROM_ZERO,
        axis=alt.Axis(tickCount=5),
    )  # fmt: skip
    part = tooltips("world_size layout_name part size total peak_phase")
    ran = alt.condition("datum.outcome === 'ok'", alt.value(1), alt.value(0.5))
    return marks.finish(
        bars.mark_bar(height=9, yOffset=7, stroke=marks.SURFACE, strokeWidth=0.5).encode(
            x=alt.X("start:Q"), x2=alt.X2("end:Q"), opacity=ran, tooltip=part,
            color=_part_colour(MEMORY, "p", "memory_parts"),
        ),
        rows.transform_filter("isValid(datum.peak)")
        .mark_rule(color=marks.OTHER, strokeWidth=1, yOffset=7)
        .encode(x=x, x2=marks.fixed("X2Datum", 0)),
        rows.transform_filter("isValid(datum.peak)")
        .mark_tick(thickness=3, height=15, yOffset=7, color=marks.INK)
        .encode(x=x, tooltip=tooltips("world_size layout_name series peak")),
        _capacity().encode(x=alt.X("edge:Q"), **marks.UPRIGHT),
        named.mark_text(
            align="left", dy=-7, color=marks.INK, limit={"expr": "width - 112"}
        ).encode(x=marks.LEFT, text=alt.Text("layout_name:N")),
        named.mark_text(align="right", dx=-6, dy=-7, color=marks.SOFT).encode(
            x=marks.RIGHT, text=alt.Text("words:N")
        ),
        height=alt.Step(32),
    )  # fmt: skip


def _capacity() -> alt.Chart:
    """A rule at the memory of a GPU where that is known: column `edge`, in GiB."""
    capacity: alt.Chart = (
        marks.chart("settings")
        .transform_filter("isValid(datum.gpu_memory_bytes)")
        .transform_calculate(edge=f"datum.gpu_memory_bytes / {GIB}")
        .mark_rule(color=marks.BAD, strokeWidth=1.5)
    )
    return capacity


def step_bounds() -> alt.LayerChart:
    """Shares of the step of the layout advised at each size; predicted bars are paler."""
    base = marks.chart("time_split").encode(y=_size_rows())
    tips = [
        alt.Tooltip("world_size:O", title="{GPUs}"),
        *tooltips("layout_name part seconds share series"),
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
            color=_part_colour(TIME, "t", "time_split"),
            opacity=alt.condition("datum.series === 'predicted'", alt.value(0.75), alt.value(1)),
            tooltip=tips,
        ),
        hidden.mark_rule(strokeWidth=2, yOffset=14, color=marks.SOFT).encode(
            x=alt.X("zero:Q"),
            x2=alt.X2("hidden_share:Q"),
            tooltip=tooltips("hidden_share"),
        ),
        shares.transform_filter("datum.part_order < 5")
        .mark_text()
        .encode(
            **numbers,
            color=alt.condition(dark, alt.value(_ON_DARK), alt.value(_ON_LIGHT)),
        ),
        shares.transform_filter("datum.part_order === 5")
        .mark_text(color=marks.INK)
        .encode(**numbers),
        steps.mark_text(align="right", color=marks.SOFT).encode(
            x=marks.RIGHT, text=alt.Text("words:N")
        ),
        height=alt.Step(34),
    )


def _size_rows() -> alt.Y:
    """A row for each number of GPUs."""
    axis = alt.Axis(domain=False, ticks=False, grid=False)
    return alt.Y("world_size:O", title="Number of {GPUs}", axis=axis)


def _part_colour(parts: list[str], ramp: str, table: str) -> alt.Color:
    """Colours of the parts of a whole, from the palette's `ramp`, with a legend of those drawn.

    Where `table` has no rows the legend is one entry without words, mark and size, because one
    without entries leaves the chart without a size.
    """
    named = f"pluck(data('{table}'), 'part')"
    drawn = " + ".join(f"(indexof({named}, '{part}') < 0 ? '' : '|{part}')" for part in parts)
    empty = f"!length(data('{table}'))"
    return alt.Color(
        "part:N",
        scale=alt.Scale(
            domain=parts, range=RAMPS[ramp][: len(parts)]
        ),
        legend=alt.Legend(
            title=None, orient="top", symbolType="square", labelLimit=200,
            values=alt.ExprRef(f"split(slice({drawn}, 1), '|')"),
            labelFontSize=alt.ExprRef(f"{empty} ? 0 : {marks.BOX} < 470 ? 11 : 12"),
            symbolSize=alt.ExprRef(f"{empty} ? 0 : 100"),
            offset=alt.ExprRef(f"{empty} ? 0 : 18"),
            columns=alt.ExprRef(f"{marks.BOX} < 470 ? 2 : {marks.BOX} < 760 ? 3 : 6"),
        ),
    )  # fmt: skip
