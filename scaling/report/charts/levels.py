"""Charts of one choice: the best layout at each level of an axis, and of tp x pp together."""

from typing import Any

import altair as alt

from scaling.cluster.hardware import GIB
from scaling.report.charts.categories import at_end, category, category_points, style_lines
from scaling.report.charts.marks import (
    ACCENT,
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
    log_amount_axis,
    over_gpus,
    points,
    rows_by,
    value,
    words,
)
from scaling.report.charts.palette import HATCH
from scaling.report.charts.tooltips import tooltips

_BEST = ("layout_name", "series", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "tried", "failed")


def doubling(field: str, title: str) -> alt.X:
    """An axis of powers of two: degrees, micro-batches, sequence lengths."""
    return alt.X(
        field,
        title=f"{title} (log scale)",
        scale=alt.Scale(type="log", base=2, nice=False, padding=30),
        axis=alt.Axis(
            values=[2**power for power in range(24)], format="d", grid=False, labelOverlap="greedy"
        ),
    )


def best_mfu() -> alt.LayerChart:
    """The best MFU at every level of every axis; levels at which nothing ran are hatched."""
    axis = alt.Axis(format=".0%", tickCount=5)
    return _best_of_level("mfu", "Model FLOPs utilisation (MFU), best of the rest", axis, ".1%")


def best_rate() -> alt.LayerChart:
    """The same in tokens per second, where no peak is published to divide by."""
    return _best_of_level(
        "tokens_per_s_per_gpu",
        "Tokens per second per {GPU}, best of the rest",
        amount_axis(),
        ".3s",
    )


def _best_of_level(field: str, title: str, axis: alt.Axis, shown: str) -> alt.LayerChart:
    rows = (
        chart("levels")
        .transform_filter("datum.compared")
        .transform_calculate(
            row="datum.axis_order * 1000 + datum.level_order",
            said="datum.outcome === 'ok' ? "
            f"format(datum.{field}, '{shown}') + (width < 460 ? '' : ' · ' + datum.tried + "
            "(datum.tried === 1 ? ' layout' : ' layouts')) : replace(datum.outcome, '_', ' ')",
        )
        .encode(y=rows_by("name", "row"))
    )
    ran = rows.transform_filter("datum.outcome === 'ok'")
    failed = rows.transform_filter("datum.outcome !== 'ok'")
    x = alt.X(f"{field}:Q", title=title, scale=FROM_ZERO, axis=axis)
    number: dict[str, Any] = {"x": RIGHT, "text": alt.Text("said:N")}
    return finish(
        ran.mark_rule(color=OTHER, strokeWidth=1, yOffset=7).encode(x=x, x2=datum("X2", 0)),
        *points(ran.encode(x=x), tooltips("world_size", *_BEST), yOffset=7),
        failed.mark_bar(height=8, yOffset=7, fill=HATCH, cornerRadius=2).encode(
            x=LEFT, x2=value("X2", "width"), tooltip=tooltips("world_size", "outcome", "tried")
        ),
        rows.mark_text(align="left", dy=-9, color=INK).encode(x=LEFT, text=alt.Text("name:N")),
        ran.mark_text(align="right", dx=-5, dy=-9, color=SOFT).encode(**number),
        failed.mark_text(align="right", dx=-5, dy=-9, color=BAD).encode(**number),
        height=alt.Step(34),
    )


def tensor_parallel() -> alt.LayerChart:
    """Tokens per second against tp, the best of all other choices, one line a GPU count."""
    y = alt.Y(
        "tokens_per_s:Q",
        title="Tokens per second (log scale)",
        scale=alt.Scale(type="log", nice=False, padding=20),
        axis=log_amount_axis(),
    )
    rows = chart("levels").transform_filter("datum.axis === 'tp' && datum.outcome === 'ok'")
    base = rows.encode(x=doubling("level_order:Q", "Tensor-parallel size, tp"), y=y)
    last = at_end(base, "level_order", "world_size")
    return finish(
        *style_lines(base, color=SOFT, detail=alt.Detail("world_size:N")),
        *points(base, tooltips("world_size", *_BEST)),
        *words(
            last.transform_calculate(
                words="datum.world_size + (datum.world_size === 1 ? ' {GPU}' : ' {GPUs}')"
            ),
            colour=SOFT, align="left", dx=9,
        )(text=alt.Text("words:N")),
        height=320,
    )  # fmt: skip


def zero_steps() -> alt.LayerChart:
    """Seconds per step against GPUs, one line a ZeRO stage, the best of all other choices."""
    y = alt.Y(
        "step_time_s:Q",
        title="Seconds per step (log scale)",
        scale=alt.Scale(type="log", nice=False, padding=14),
        axis=alt.Axis(
            values=[digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)],
            format=",~r",
            labelOverlap="greedy",
            labelSeparation=6,
        ),
    )
    rows = chart("levels").transform_filter("datum.axis === 'ZeRO' && datum.outcome === 'ok'")
    base = rows.encode(x=over_gpus(padding=14), y=y)
    stage = category("name:N", domain=[f"ZeRO {number}" for number in range(4)])
    tips = [*tooltips("world_size", *_BEST), _seconds("step_time_s", "seconds per step")]
    return finish(
        *style_lines(base, encode={"color": stage}),
        *category_points(base, stage, tips),
        height=260,
    )


def _seconds(field: str, title: str) -> alt.Tooltip:
    return alt.Tooltip(f"{field}:Q", title=title, format=".4~g")


def zero_memory() -> alt.LayerChart:
    """Least measured peak of memory per GPU at each ZeRO stage, one line a GPU count."""
    rows = (
        chart("levels")
        .transform_filter("datum.axis === 'ZeRO' && isValid(datum.least_memory_bytes)")
        .transform_calculate(memory=f"datum.least_memory_bytes / {GIB}")
    )
    base = rows.encode(
        x=alt.X(
            "level_order:Q", title="ZeRO stage", scale=alt.Scale(domain=[0, 3], padding=30),
            axis=alt.Axis(values=[0, 1, 2, 3], format="d", grid=False),
        ),
        y=alt.Y(
            "memory:Q", title="Memory per {GPU}, largest rank (GiB)",
            scale=FROM_ZERO, axis=alt.Axis(tickCount=5),
        ),
    )  # fmt: skip
    last = at_end(base, "level_order", "world_size")
    return finish(
        *style_lines(base, color=SOFT, detail=alt.Detail("world_size:N")),
        base.mark_point(shape="circle", filled=True, size=64, opacity=1, color=ACCENT).encode(
            tooltip=tooltips("world_size", "memory", "tried", "failed")
        ),
        *words(
            last.transform_calculate(words="'on ' + datum.world_size"),
            colour=SOFT, align="left", dx=8,
        )(text=alt.Text("words:N")),
        height=260,
    )  # fmt: skip


def batch_precision() -> alt.LayerChart:
    """Tokens per second against the micro-batch, one line a precision; what failed is a cross."""
    y = alt.Y(
        "tokens_per_s:Q",
        title="Tokens per second",
        scale=FROM_ZERO,
        axis=amount_axis(),
    )
    rows = chart("batches").encode(x=doubling("micro_batch_size:Q", "Micro-batch, sequences"))
    ran = rows.transform_filter("datum.outcome === 'ok'").encode(y=y)
    failed = rows.transform_filter("datum.outcome !== 'ok'").transform_calculate(
        words="datum.precision + ' ' + replace(datum.outcome, '_', ' ')"
    )
    kind = category("precision:N")
    failures = tooltips("world_size", "outcome", "tried")
    return finish(
        *style_lines(ran, encode={"color": kind}),
        *category_points(
            ran, kind, tooltips("world_size", "layout_name", "series", "tokens_per_s", "mfu")
        ),
        failed.mark_point(shape="cross", angle=45, filled=True, color=BAD, size=60).encode(
            y=value("Y", 250), tooltip=failures
        ),
        *words(failed, colour=BAD, dy=-12)(y=value("Y", 250), text=alt.Text("words:N")),
        height=260,
    )


def model_parallel() -> alt.LayerChart:
    """Tokens per second per GPU against tp x pp, which of the two makes it up told apart."""
    y = alt.Y(
        "tokens_per_s_per_gpu:Q",
        title="Tokens per second per {GPU}",
        scale=FROM_ZERO,
        axis=amount_axis(),
    )
    return _by_degree(y, "datum.status === 'ok'")


def model_parallel_exposed() -> alt.LayerChart:
    """Exposed communication of a step against tp x pp, of the same layouts."""
    y = alt.Y(
        "exposed_comm_s:Q",
        title="Exposed communication (s per step)",
        scale=FROM_ZERO,
        axis=alt.Axis(format=",~r", tickCount=5),
    )
    return _by_degree(y, "isValid(datum.exposed_comm_s)")


def _by_degree(y: alt.Y, kept: str) -> alt.LayerChart:
    rows = (
        chart("map")
        .transform_filter(kept)
        .transform_calculate(
            degree="datum.tp * datum.pp",
            made="datum.tp === 1 && datum.pp === 1 ? 'neither' : datum.pp === 1 ? 'tp only' : "
            "datum.tp === 1 ? 'pp only' : 'tp and pp'",
        )
        .encode(x=doubling("degree:Q", "Model-parallel degree, tp × pp"), y=y)
    )
    kinds = ["tp only", "pp only", "tp and pp", "neither"]
    made = category("made:N", domain=kinds)
    tips = tooltips(
        "world_size", "layout_name", "text", "series", "tokens_per_s_per_gpu", "mfu", "tried"
    )
    alone = rows.transform_filter("datum.tp === 1 || datum.pp === 1").transform_calculate(
        # the layout with neither starts both lines
        way="datum.pp === 1 ? ['tp only', datum.tp === 1 ? 'pp only' : ''] : ['pp only']"
    )
    ways = alone.transform_flatten(["way"]).transform_filter("datum.way !== ''")
    return finish(
        *style_lines(ways, encode={"color": category("way:N", domain=kinds)}),
        *category_points(rows, made, tips),
        height=280,
    )
