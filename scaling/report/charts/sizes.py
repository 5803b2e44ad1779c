"""Charts over the number of GPUs: one function, one chart, no data inside."""

import altair as alt

from scaling.report.charts.marks import (
    ACROSS,
    FAINT,
    FROM_ZERO,
    OTHER,
    SOFT,
    amount_axis,
    chart,
    finish,
    firmest,
    intervals,
    layout_colour,
    lines,
    log_amount_axis,
    over_gpus,
    points,
    rate_axis,
    value,
    words,
)
from scaling.report.charts.tooltips import tooltips

_BEST = (
    "world_size", "layout_name", "series", "tokens_per_s", "tokens_per_s_low",
    "tokens_per_s_high", "tokens_per_s_per_gpu", "efficiency",
)  # fmt: skip


def throughput() -> alt.LayerChart:
    """Tokens per second of the best layout at each size, with the ideal line."""
    y = alt.Y(
        "tokens_per_s:Q",
        title="Tokens per second (log scale)",
        scale=alt.Scale(type="log", nice=False, padding=34),
        axis=log_amount_axis(),
    )
    base = chart("best").encode(x=over_gpus())
    ideal = firmest(base).encode(y=alt.Y("ideal_tokens_per_s:Q"))
    apart = "datum.world_size === sizes_[sizes_.length - 1] && datum.efficiency < 0.9"
    return finish(
        ideal.mark_line(color=FAINT, strokeWidth=1),
        ideal.transform_filter(apart)
        .mark_text(align="left", dx=7, dy=-3, color=SOFT)
        .encode(text=value("Text", "ideal")),
        *intervals(base, y=alt.Y("tokens_per_s_low:Q"), y2=alt.Y2("tokens_per_s_high:Q")),
        *lines(chart("curves").encode(x=over_gpus(), y=y)),
        *points(base.encode(y=y), tooltips(*_BEST, "runner_up_layout_name")),
        *words(
            base.transform_filter("isValid(datum.label)"),
            colour=layout_colour(),
            align="left",
            baseline="top",
            dx=6,
            dy=8,
            lineHeight=13,
            lineBreak="|",
        )(y=y, text=alt.Text("label:N")),
        height=330,
    )


def throughput_per_gpu() -> alt.LayerChart:
    """The same per GPU, with the share of the smallest size that is kept."""
    y = alt.Y(
        "tokens_per_s_per_gpu:Q",
        title="Tokens per second per {GPU}",
        scale=FROM_ZERO,
        axis=amount_axis(),
    )
    base = (
        chart("best")
        .transform_calculate(
            low="datum.tokens_per_s_low / datum.world_size",
            high="datum.tokens_per_s_high / datum.world_size",
            yardstick="datum.ideal_tokens_per_s / datum.world_size",
        )
        .encode(x=over_gpus())
    )
    return finish(
        firmest(base)
        .mark_rule(color=FAINT, strokeWidth=1)
        .encode(y=alt.Y("yardstick:Q"), **ACROSS),
        *intervals(base, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        *lines(chart("curves").encode(x=over_gpus(), y=y)),
        *points(base.encode(y=y), tooltips(*_BEST)),
        *words(base, colour=SOFT, dy=18)(y=y, text=alt.Text("efficiency:Q", format=".0%")),
        height=330,
    )


def mfu() -> alt.LayerChart:
    """Model FLOPs utilisation of the best layout, and of every other as a grey dot."""
    return _utilisation("mfu", "Model FLOPs utilisation (MFU)", alt.Axis(format=".0%", tickCount=5))


def flop_rate() -> alt.LayerChart:
    """Achieved FLOP/s per rank, where no peak is published to divide by."""
    return _utilisation(
        "model_flop_per_s_per_gpu", "Achieved FLOP/s per {GPU}, model FLOPs", rate_axis()
    )


def _utilisation(field: str, title: str, axis: alt.Axis) -> alt.LayerChart:
    y = alt.Y(f"{field}:Q", title=title, scale=FROM_ZERO, axis=axis)
    base = chart("best").encode(x=over_gpus(), y=y)
    others = chart("contenders").transform_filter("datum.position > 1").encode(x=over_gpus(), y=y)
    tips = ("world_size", "layout_name", "series", field, "tokens_per_s_per_gpu")
    return finish(
        others.mark_circle(size=22, color=OTHER, opacity=0.55).encode(tooltip=tooltips(*tips)),
        *lines(chart("curves").encode(x=over_gpus(), y=y)),
        *points(base, tooltips(*tips)),
        height=280,
    )
