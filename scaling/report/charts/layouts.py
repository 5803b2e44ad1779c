"""Charts of the layouts at one number of GPUs: their memory, their ranking, the map of tp by pp."""

from typing import Any

import altair as alt

from scaling.cluster.hardware import GIB
from scaling.report.charts import marks
from scaling.report.charts.marks import category, category_points, part_colour, tooltips
from scaling.report.charts.palette import HATCH, variable

SHOWN_LAYOUTS = 10  # rows of a chart; the table behind it has all
MEMORY = ["weights", "gradients", "optimizer", "activations", "logits and rest", "fragmentation"]
_ON_DARK = variable("s-ink")
_TAKEN = (
    f"(isValid(datum.peak_memory_bytes) ? datum.peak_memory_bytes : "
    f"datum.predicted_memory_bytes) / {GIB}"
)
_FROM = "isValid(datum.peak_memory_bytes) ? 'measured' : 'predicted'"


def memory_time() -> alt.LayerChart:
    """Memory against step time at one size; a line joins the layouts that none beats in both."""
    capacity = _capacity()
    rows = (
        marks.chart("contenders")
        .transform_filter("datum.outcome === 'ok' && isValid(datum.step_time_s)")
        .transform_calculate(
            memory=_TAKEN, memory_is=_FROM, stage="'ZeRO ' + datum.zero_stage",
        )
        .transform_filter("isValid(datum.memory) && datum.memory > 0")
    )  # fmt: skip
    # the front: less memory than every faster layout (a window cannot end before its own row, so
    # the running minimum is taken from the row before)
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
        axis=marks.LOG_TIMES,
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
        capacity.encode(y=alt.Y("edge:Q"), **marks.ACROSS),
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
            # a row with a measured peak before one without
            order=f"datum.place + (isValid(datum.peak_memory_bytes) ? 0 : {SHOWN_LAYOUTS})",
        )
        .encode(y=marks.rows_by("layout_name", "place"))
    )
    named = marks.one_per_layout(rows, "order")
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
        named.mark_text(
            align="left", dy=-7, color=marks.INK, limit={"expr": "width - 112"}
        ).encode(x=marks.LEFT, text=alt.Text("layout_name:N")),
        named.mark_text(align="right", dx=-2, dy=-7, color=marks.SOFT).encode(
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


def layout_map() -> alt.LayerChart:
    """Map of tp by pp at one size: each cell the best of all other choices, failures hatched."""
    plain: dict[str, Any] = {"domain": False, "ticks": False, "grid": False}
    base = marks.chart("map").encode(
        x=alt.X(
            "pp:O", title="Pipeline stages, pp", axis=alt.Axis(orient="top", labelAngle=0, **plain)
        ),
        y=alt.Y("tp:O", title="Tensor-parallel size, tp", axis=alt.Axis(**plain)),
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
        range=marks.RAMPS["s"],
    )
    ink = alt.condition("datum.share_of_best >= 0.8", alt.value(_ON_DARK), alt.value(marks.INK))
    tips = tooltips(
        "layout_name", "text", "series", "mfu", "tokens_per_s", "tokens_per_s_per_gpu",
        "share_of_best", "tried", "failed",
    )  # fmt: skip
    narrow = "width < 480"
    return marks.finish(
        ran.mark_rect(cornerRadius=3, stroke=marks.SURFACE, strokeWidth=2).encode(
            color=alt.Color("share_of_best:Q", scale=steps, legend=None), tooltip=tips
        ),
        bad.mark_rect(cornerRadius=3, fill=HATCH, stroke=marks.SURFACE, strokeWidth=2).encode(
            tooltip=tooltips("status", "tried", "failed")
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
        .transform_filter(f"datum.place <= {SHOWN_LAYOUTS}")
        .transform_calculate(
            value="datum.outcome === 'ok' ? format(datum.tokens_per_s, '.3s') + ' · ' + "
            "format(datum.share_of_best, '.0%') : replace(datum.outcome, '_', ' ')",
        )
        .encode(y=marks.rows_by("layout_name", "place"))
    )
    named = marks.one_per_layout(rows, "place")
    ran = rows.transform_filter("datum.outcome === 'ok'")
    failed = rows.transform_filter("datum.outcome !== 'ok'")
    ends = marks.intervals(ran, x=alt.X("tokens_per_s_low:Q"), x2=alt.X2("tokens_per_s_high:Q"))
    for layer in ends:
        layer.mark.yOffset = down
    tips = tooltips(
        "world_size", "layout_name", "series", "tokens_per_s", "tokens_per_s_low",
        "tokens_per_s_high", "share_of_best", "mfu", "stack_fingerprint",
    )  # fmt: skip
    return marks.finish(
        marks.chart("contenders")
        .transform_filter("datum.place === 1")
        .mark_rect(color=marks.ACCENT, opacity=0.16)
        .encode(x=alt.X("tokens_per_s_low:Q"), x2=alt.X2("tokens_per_s_high:Q")),
        ran.mark_rule(color=marks.OTHER, strokeWidth=1, yOffset=down).encode(
            x=x, x2=marks.datum("X2", 0)
        ),
        *ends,
        *marks.points(ran.encode(x=x), tips, yOffset=down),
        failed.mark_bar(height=8, yOffset=down, fill=HATCH, cornerRadius=2).encode(
            **marks.ACROSS,
            tooltip=tooltips("world_size", "layout_name", "outcome"),
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
