"""Charts of measured energy: what a joule buys, and what a device draws."""

import altair as alt

from scaling.report.charts.marks import (
    ACROSS,
    BAD,
    FROM_ZERO,
    SOFT,
    chart,
    finish,
    over_gpus,
    points,
)
from scaling.report.charts.tooltips import tooltips


def tokens_per_joule() -> alt.LayerChart:
    """Tokens per joule, that is tokens per second per watt, of the best layout at each size."""
    y = alt.Y(
        "tokens_per_joule:Q",
        title="Tokens per joule (tokens/s per watt)",
        scale=FROM_ZERO,
        axis=alt.Axis(format=",~r", tickCount=5),
    )
    return _along(y)


def power() -> alt.LayerChart:
    """Mean power of one GPU at the best layout of each size, against the data sheet's."""
    y = alt.Y(
        "power_per_gpu_w:Q",
        title="Mean power per {GPU} (W)",
        scale=FROM_ZERO,
        axis=alt.Axis(format=",~r", tickCount=5),
    )
    sheet = chart("settings").transform_filter("isValid(datum.gpu_tdp_w)")
    return _along(
        y, sheet.mark_rule(color=BAD, strokeWidth=1.5).encode(y=alt.Y("gpu_tdp_w:Q"), **ACROSS)
    )


def _along(y: alt.Y, *behind: alt.Chart) -> alt.LayerChart:
    rows = chart("best").transform_filter("isValid(datum.energy_j)")
    base = rows.encode(x=over_gpus(), y=y)
    tips = (
        "world_size", "layout_name", "series", "tokens_per_joule", "power_per_gpu_w",
        "tokens_per_s",
    )  # fmt: skip
    return finish(
        *behind,
        base.mark_line(color=SOFT, strokeWidth=1.75),
        *points(base, tooltips(*tips)),
        height=280,
    )
