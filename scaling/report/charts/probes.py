"""What links reach, from probes."""

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
