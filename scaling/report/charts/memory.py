"""Charts of memory at one number of GPUs: what it costs in time, and what it is made of."""

import altair as alt

from scaling.cluster.hardware import GIB
from scaling.report.charts import marks
from scaling.report.charts.categories import category, category_points, part_colour
from scaling.report.charts.layouts import SHOWN_LAYOUTS
from scaling.report.charts.tooltips import tooltips

MEMORY = ["weights", "gradients", "optimizer", "activations", "logits and rest", "fragmentation"]
_TAKEN = (
    f"(isValid(datum.peak_memory_bytes) ? datum.peak_memory_bytes : "
    f"datum.predicted_memory_bytes) / {GIB}"
)
_FROM = "isValid(datum.peak_memory_bytes) ? 'measured' : 'predicted'"


def memory_time() -> alt.LayerChart:
    """Memory against step time of the layouts at one size; the line joins the best."""
    rows = (
        marks.chart("contenders")
        .transform_filter("datum.outcome === 'ok' && isValid(datum.step_time_s)")
        .transform_calculate(
            memory=_TAKEN, memory_is=_FROM, stage="'ZeRO ' + datum.zero_stage",
        )
        .transform_filter("isValid(datum.memory) && datum.memory > 0")
    )  # fmt: skip
    # a layout below the least memory of all that are faster is ahead (a window cannot end before
    # its row, so the running minimum is looked up one row earlier)
    faster: list[alt.SortField | dict[str, str]] = [
        alt.SortField("step_time_s"),
        alt.SortField("memory"),
    ]
    front = (
        rows.transform_window(running="min(memory)", frame=[None, 0], sort=faster)
        .transform_window(least="lag(running)", sort=faster)
        .transform_filter("!isValid(datum.least) || datum.memory < datum.least")
    )
    x = alt.X(
        "step_time_s:Q",
        title="Seconds per step (log scale)",
        scale=marks.log(20),
        axis=marks.log_time_axis(),
    )
    y = marks.amounts("memory", "Memory per {GPU}, largest rank (GiB)", alt.Axis(tickCount=5))
    stage = category("stage:N")
    tips = [
        *tooltips("world_size", "layout_name", "series"),
        alt.Tooltip("step_time_s:Q", title="seconds per step", format=".4~g"),
        alt.Tooltip("memory:Q", title="GiB", format=".3~r"),
        alt.Tooltip("memory_is:N", title="memory is"),
        *tooltips("share_of_best"),
    ]
    return marks.finish(
        _capacity().encode(y=alt.Y("edge:Q"), **marks.ACROSS),
        front.mark_line(color=marks.SOFT, strokeWidth=1, interpolate="step-after").encode(
            x=x, y=y, order=alt.Order("step_time_s:Q")
        ),
        *category_points(rows.encode(x=x, y=y), stage, tips),
        height=300,
    )


def memory() -> alt.LayerChart:
    """Memory of each layout at one size: predicted parts as a bar, the measured peak as a tick."""
    bars = (
        marks.chart("memory_parts")
        .transform_filter(f"datum.place <= {SHOWN_LAYOUTS}")
        .transform_calculate(
            start=f"datum.from_bytes / {GIB}",
            end=f"datum.to_bytes / {GIB}",
            size=f"datum.bytes / {GIB}",
            total=f"datum.total_bytes / {GIB}",
        )
        .encode(y=marks.rows_by("layout_name", "place"))
    )
    rows = (
        marks.chart("contenders")
        .transform_filter(f"datum.place <= {SHOWN_LAYOUTS}")
        .transform_calculate(
            peak=f"isValid(datum.peak_memory_bytes) ? datum.peak_memory_bytes / {GIB} : null",
            words="datum.outcome !== 'ok' ? "
            "(datum.series === 'predicted' ? 'predicted ' : '') + replace(datum.outcome, '_', ' ')"
            " : isValid(datum.peak_memory_bytes) ? format(datum.peak_memory_bytes"
            f" / {GIB}, '.3~r') + ' GiB' : isValid(datum.predicted_memory_bytes) ? 'predicted ' + "
            f"format(datum.predicted_memory_bytes / {GIB}, '.3~r') + ' GiB' : 'not measured'",
        )
        .encode(y=marks.rows_by("layout_name", "place"))
    )
    x = alt.X(
        "peak:Q", title="Memory per {GPU}, largest rank (GiB)", scale=marks.FROM_ZERO,
        axis=alt.Axis(tickCount=5),
    )  # fmt: skip
    part = [
        *tooltips("world_size", "layout_name"),
        alt.Tooltip("part:N", title="part"),
        alt.Tooltip("size:Q", title="predicted GiB", format=".3~r"),
        alt.Tooltip("total:Q", title="predicted total GiB", format=".3~r"),
        alt.Tooltip("peak_phase:N", title="fullest phase of a step"),
    ]
    ran = alt.condition("datum.outcome === 'ok'", alt.value(1), alt.value(0.5))
    return marks.finish(
        bars.mark_bar(height=9, yOffset=7, stroke=marks.SURFACE, strokeWidth=0.5).encode(
            x=alt.X("start:Q"), x2=alt.X2("end:Q"), opacity=ran, tooltip=part,
            color=part_colour(MEMORY, "p", "memory_parts"),
        ),
        rows.transform_filter("isValid(datum.peak)")
        .mark_rule(color=marks.OTHER, strokeWidth=1, yOffset=7)
        .encode(x=x, x2=marks.datum("X2", 0)),
        rows.transform_filter("isValid(datum.peak)")
        .mark_tick(thickness=3, height=15, yOffset=7, color=marks.INK)
        .encode(x=x, tooltip=[*tooltips("world_size", "layout_name", "series"),
                              alt.Tooltip("peak:Q", title="measured peak GiB", format=".3~r")]),
        _capacity().encode(x=alt.X("edge:Q"), **marks.UPRIGHT),
        rows.mark_text(align="left", dy=-7, color=marks.INK, limit={"expr": "width - 112"}).encode(
            x=marks.LEFT, text=alt.Text("layout_name:N")
        ),
        rows.mark_text(align="right", dx=-2, dy=-7, color=marks.SOFT).encode(
            x=marks.RIGHT, text=alt.Text("words:N")
        ),
        height=alt.Step(32),
    )  # fmt: skip


def _capacity() -> alt.Chart:
    """A rule at what a GPU holds, in GiB, where that is known: column `edge`."""
    capacity: alt.Chart = (
        marks.chart("settings")
        .transform_filter("isValid(datum.gpu_memory_bytes)")
        .transform_calculate(edge=f"datum.gpu_memory_bytes / {GIB}")
        .mark_rule(color=marks.BAD, strokeWidth=1.5)
    )
    return capacity
