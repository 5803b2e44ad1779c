"""Charts over the number of GPUs: one function, one chart, no data inside."""

from typing import Any

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
    log_amount_axis,
    over_gpus,
    points,
    stretches,
    value,
    words,
)
from scaling.report.charts.tooltips import tooltips

_BEST = (
    "world_size", "layout_name", "advised_layout_name", "series", "tokens_per_s",
    "tokens_per_s_low", "tokens_per_s_high", "tokens_per_s_per_gpu", "efficiency", "mfu",
)  # fmt: skip
# On the right half there is room to the left of a mark only.
_BESIDE: dict[str, dict[str, Any]] = {
    "!datum.right": {"align": "left", "baseline": "top", "dx": 7, "dy": 7},
    "datum.right": {"align": "right", "baseline": "bottom", "dx": -7, "dy": -7},
}


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
    named = base.transform_filter("isValid(datum.label)").transform_calculate(
        right="datum.world_size * datum.world_size > sizes_[0] * sizes_[sizes_.length - 1]",
        name="replace(datum.label, regexp('[|]', 'g'), ' ')",
    )
    apart = "datum.world_size === sizes_[sizes_.length - 1] && datum.efficiency < 0.9"
    return finish(
        ideal.mark_line(color=FAINT, strokeWidth=1),
        ideal.transform_filter(apart)
        .mark_text(align="right", dx=-7, dy=-5, color=SOFT)
        .encode(text=value("Text", "ideal")),
        *intervals(base, y=alt.Y("tokens_per_s_low:Q"), y2=alt.Y2("tokens_per_s_high:Q")),
        *stretches(base.encode(y=y)),
        *points(base.encode(y=y), tooltips(*_BEST, "runner_up_layout_name")),
        *(
            layer
            for side, look in _BESIDE.items()
            for layer in words(
                named.transform_filter(side), colour=layout_colour(), **look
            )(y=y, text=alt.Text("name:N"))
        ),
        height=280,
    )  # fmt: skip


def throughput_per_gpu() -> alt.LayerChart:
    """The same per GPU: MFU above each point, below it the share of the smallest size's rate.

    For one model and batch the three are one curve. Grey: every other layout; grey squares: keeping
    the layout that is best at the smallest size.
    """
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
            used="isValid(datum.mfu) ? format(datum.mfu, '.0%') : "
            "isValid(datum.model_flop_per_s_per_gpu) ? "
            "format(datum.model_flop_per_s_per_gpu, '.3~s') : ''",
        )
        .encode(x=over_gpus())
    )
    others = chart("contenders").transform_filter(
        "datum.position > 1 && isValid(datum.tokens_per_s_per_gpu)"
    )
    kept = chart("fixed_layout").encode(x=over_gpus(), y=y)
    last = "datum.world_size === sizes_[sizes_.length - 1] && datum.share_of_best < 0.97"
    return finish(
        others.mark_circle(size=16, color=OTHER, opacity=0.45).encode(
            x=over_gpus(), y=y,
            tooltip=tooltips("world_size", "layout_name", "series", "tokens_per_s_per_gpu", "mfu"),
        ),
        firmest(base)
        .mark_rule(color=FAINT, strokeWidth=1)
        .encode(y=alt.Y("yardstick:Q"), **ACROSS),
        kept.mark_line(color=OTHER, strokeWidth=1.25, strokeDash=[1, 3]).encode(
            detail=[alt.Detail("series:N"), alt.Detail("layout_name:N")]
        ),
        kept.mark_square(size=24, color=OTHER, opacity=1).encode(
            tooltip=tooltips("world_size", "layout_name", "series", "efficiency", "share_of_best")
        ),
        *words(
            kept.transform_filter(last).transform_calculate(name="'one layout'"),
            colour=SOFT, align="right", dx=8, dy=14,
        )(text=alt.Text("name:N")),
        *intervals(base, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        *stretches(base.encode(y=y)),
        *points(base.encode(y=y), tooltips(*_BEST)),
        *words(base, colour=SOFT, dy=-15)(y=y, text=alt.Text("used:N")),
        *words(base, colour=SOFT, dy=16)(y=y, text=alt.Text("efficiency:Q", format=".0%")),
        height=280,
    )  # fmt: skip
