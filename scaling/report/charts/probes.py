"""What links and devices reach, from probes."""

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.marks import category, tooltips


def collectives() -> alt.LayerChart:
    """Bus bandwidth against message size, one line per shape of group."""
    rows = marks.chart("collectives").transform_calculate(
        group="(datum.nodes > 1 ? datum.nodes + ' nodes, ' : '') + datum.ranks + ' {GPUs}'"
        " + (datum.stride > 1 ? ', ' + datum.stride + ' apart' : '')"
        " + (datum.at_once > 1 ? ', ' + datum.at_once + ' at once' : '')",
        rate="datum.bus_bytes_per_s / 1e9",
        low="isValid(datum.bus_low) ? datum.bus_low / 1e9 : null",
        high="isValid(datum.bus_high) ? datum.bus_high / 1e9 : null",
        order="datum.nodes * 1e9 + datum.ranks * 1e5 + datum.stride * 1e2 + datum.at_once",
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
            tooltip=tooltips("kind nodes ranks stride at_once message_bytes rate"),
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
            y=y, color=kind, tooltip=tooltips("precision m n k flop_per_s probes")
        ),
        height=215,
    )
