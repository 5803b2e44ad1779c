"""Where the time of a step goes, and what links and devices reach."""

from typing import Any

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.marks import category, part_colour, tooltips
from scaling.report.charts.palette import variable

TIME = [
    "compute", "tensor parallel", "pipeline transfers", "exposed communication",
    "pipeline bubble", "idle and rest",
]  # fmt: skip
AXES = ["tp", "cp", "dp", "pp", "ep"]
_ON_DARK, _ON_LIGHT = variable("t-ink"), variable("t-ink2")
_LABELLED = 0.07  # share of a step below which a part has no room for its label


def step_bounds() -> alt.LayerChart:
    """Shares of the step of the layout advised at each size; predicted bars are paler."""
    base = marks.chart("time_split").encode(y=_size_rows())
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


def communication() -> alt.LayerChart:
    """Communication per step by axis of parallelism; a tick ends the exposed part."""
    rows = (
        marks.chart("communication")
        .transform_filter("datum.split === 'axis'")
        .transform_calculate(
            start="datum.from_s * 1000", end="datum.to_s * 1000",
            took="datum.seconds * 1000", exposed="datum.exposed_s * 1000",
        )
        .encode(y=_size_rows())
    )  # fmt: skip
    tips = [
        *tooltips("world_size", "layout_name"),
        alt.Tooltip("part:N", title="part"),
        alt.Tooltip("took:Q", title="ms per step", format=".4~g"),
        alt.Tooltip("exposed:Q", title="ms exposed, all parts", format=".4~g"),
        *tooltips("series"),
    ]
    one = rows.transform_aggregate(exposed="max(exposed)", groupby=["world_size"])
    return marks.finish(
        rows.mark_bar(height=16, stroke=marks.SURFACE, strokeWidth=0.5).encode(
            x=alt.X(
                "start:Q",
                title="Communication (ms per step, hidden or not)",
                scale=marks.FROM_ZERO,
                axis=alt.Axis(format=",~r", tickCount=5),
            ),
            x2=alt.X2("end:Q"),
            color=part_colour(AXES, "t", "communication"),
            tooltip=tips,
        ),
        one.mark_tick(thickness=4, height=22, color=marks.SURFACE).encode(x=alt.X("exposed:Q")),
        one.mark_tick(thickness=2, height=22, color=marks.INK).encode(
            x=alt.X("exposed:Q"),
            tooltip=[alt.Tooltip("exposed:Q", title="ms exposed", format=".4~g")],
        ),
        height=alt.Step(30),
    )


def _size_rows() -> alt.Y:
    """A row for each number of GPUs."""
    axis = alt.Axis(domain=False, ticks=False, grid=False)
    return alt.Y("world_size:O", title="Number of {GPUs}", axis=axis)


def collectives() -> alt.LayerChart:
    """Bus bandwidth against message size, one line per shape of group."""
    rows = marks.chart("collectives").transform_calculate(
        group="(datum.nodes > 1 ? datum.nodes + ' nodes, ' : '') + datum.ranks + ' {GPUs}'"
        " + (datum.at_once > 1 ? ', ' + datum.at_once + ' at once' : '')",
        rate="datum.bus_bytes_per_s / 1e9",
        low="isValid(datum.bus_low) ? datum.bus_low / 1e9 : null",
        high="isValid(datum.bus_high) ? datum.bus_high / 1e9 : null",
        order="datum.nodes * 1e6 + datum.ranks * 1e3 + datum.at_once",
    )
    base = rows.encode(
        x=alt.X(
            "message_bytes:Q",
            title="Message (bytes of one rank, log scale)",
            scale=marks.log(8, base=2),
            axis=alt.Axis(
                values=[2**power for power in range(0, 41, 5)],
                labelExpr="datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? "
                "datum.value / 1024 + ' KiB' : datum.value < 1073741824 ? datum.value / 1048576 + "
                "' MiB' : datum.value / 1073741824 + ' GiB'",
                grid=False,
                labelOverlap="greedy",
            ),
        ),
        y=marks.amounts("rate", "Bus bandwidth (GB/s)", alt.Axis(format=",~r", tickCount=5)),
    )
    shape = category("group:N", sort=alt.EncodingSortField("order", op="min"))
    return marks.finish(
        base.mark_rule(strokeWidth=1.25, opacity=0.5).encode(
            y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), color=shape
        ),
        base.mark_line(strokeWidth=1.75).encode(color=shape),
        base.mark_point(shape="circle", filled=True, size=30, opacity=1).encode(
            color=shape,
            tooltip=tooltips("kind", "nodes", "ranks", "at_once", "message_bytes", "rate"),
        ),
        height=215,
    )


def gemm_rates() -> alt.LayerChart:
    """FLOP/s of one device against the size of a matrix product, by precision."""
    base = marks.chart("gemms").encode(
        x=alt.X(
            "flops:Q",
            title="FLOPs of the product, 2·m·n·k (log scale)",
            scale=marks.log(12),
            axis=alt.Axis(
                values=[10**power for power in range(20)], format="~s", grid=False,
                labelOverlap="greedy",
            ),
        ),
    )  # fmt: skip
    y = marks.amounts(
        "flop_per_s",
        "FLOP/s of one {GPU}",
        alt.Axis(labelExpr="datum.value === 0 ? '0' : format(datum.value, '~s')", tickCount=5),
    )
    kind = category("precision:N")
    return marks.finish(
        base.mark_rule(strokeWidth=1.25, opacity=0.5).encode(
            y=alt.Y("slowest_flop_per_s:Q"), y2=alt.Y2("fastest_flop_per_s:Q"), color=kind
        ),
        base.mark_point(shape="circle", filled=True, size=50, opacity=0.9).encode(
            y=y, color=kind, tooltip=tooltips("precision", "m", "n", "k", "flop_per_s", "probes")
        ),
        height=215,
    )
