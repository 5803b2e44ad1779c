"""Charts over the number of GPUs: one function, one chart, no data inside."""

from typing import Any

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.tooltips import tooltips

_BEST = (
    "world_size", "layout_name", "advised_layout_name", "series", "tokens_per_s",
    "tokens_per_s_low", "tokens_per_s_high", "tokens_per_s_per_gpu", "efficiency", "mfu",
)  # fmt: skip
_NUMBER = 34  # px that a number above a point takes
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
        scale=marks.log(34),
        axis=marks.log_amount_axis(),
    )
    base = marks.chart("best").encode(x=marks.over_gpus())
    ideal = marks.firmest(base).encode(y=alt.Y("ideal_tokens_per_s:Q"))
    named = base.transform_filter("isValid(datum.label)").transform_calculate(
        right="datum.world_size * datum.world_size > sizes_[0] * sizes_[sizes_.length - 1]",
        name="replace(datum.label, regexp('[|]', 'g'), ' ')",
    )
    apart = "datum.world_size === sizes_[sizes_.length - 1] && datum.efficiency < 0.9"
    return marks.finish(
        ideal.mark_line(color=marks.FAINT, strokeWidth=1),
        ideal.transform_filter(apart)
        .mark_text(align="right", dx=-7, dy=-5, color=marks.SOFT)
        .encode(text=marks.value("Text", "ideal")),
        *marks.intervals(base, y=alt.Y("tokens_per_s_low:Q"), y2=alt.Y2("tokens_per_s_high:Q")),
        *marks.stretches(base.encode(y=y)),
        *marks.points(base.encode(y=y), tooltips(*_BEST, "runner_up_layout_name")),
        *(
            layer
            for side, look in _BESIDE.items()
            for layer in marks.words(
                named.transform_filter(side), colour=marks.layout_colour(), **look
            )(y=y, text=alt.Text("name:N"))
        ),
        height=280,
    )  # fmt: skip


def throughput_per_gpu() -> alt.LayerChart:
    """The same per GPU: MFU above each point, below it the share of the smallest size's rate.

    For one model and batch the three are one curve. Grey: every other layout; grey squares: keeping
    the layout that is best at the smallest size.
    """
    y = marks.amounts("tokens_per_s_per_gpu", "Tokens per second per {GPU}")
    base = (
        marks.chart("best")
        .transform_calculate(
            low="datum.tokens_per_s_low / datum.world_size",
            high="datum.tokens_per_s_high / datum.world_size",
            yardstick="datum.ideal_tokens_per_s / datum.world_size",
            used="isValid(datum.mfu) ? format(datum.mfu, '.0%') : "
            "isValid(datum.model_flop_per_s_per_gpu) ? "
            "format(datum.model_flop_per_s_per_gpu, '.3~s') : ''",
        )
        .encode(x=marks.over_gpus())
    )
    others = marks.chart("contenders").transform_filter(
        "datum.position > 1 && isValid(datum.tokens_per_s_per_gpu)"
    )
    kept = marks.chart("fixed_layout").encode(x=marks.over_gpus(), y=y)
    last = "datum.world_size === sizes_[sizes_.length - 1] && datum.share_of_best < 0.97"
    # where many sizes stand close together every other one has its numbers, the largest among them
    second = "(sizes_.length - indexof(sizes_, datum.world_size)) % 2 === 1"
    roomy = alt.condition(
        f"width >= {_NUMBER} * sizes_.length + 60 || {second}", alt.value(1), alt.value(0)
    )
    return marks.finish(
        others.mark_circle(size=16, color=marks.OTHER, opacity=0.45).encode(
            x=marks.over_gpus(), y=y,
            tooltip=tooltips("world_size", "layout_name", "series", "tokens_per_s_per_gpu", "mfu"),
        ),
        marks.firmest(base)
        .mark_rule(color=marks.FAINT, strokeWidth=1)
        .encode(y=alt.Y("yardstick:Q"), **marks.ACROSS),
        kept.mark_line(color=marks.OTHER, strokeWidth=1.25, strokeDash=[1, 3]).encode(
            detail=[alt.Detail("series:N"), alt.Detail("layout_name:N")]
        ),
        kept.mark_square(size=24, color=marks.OTHER, opacity=1).encode(
            tooltip=tooltips("world_size", "layout_name", "series", "efficiency", "share_of_best")
        ),
        *marks.words(
            kept.transform_filter(last).transform_calculate(name="'one layout'"),
            colour=marks.SOFT, align="right", dx=8, dy=14,
        )(text=alt.Text("name:N")),
        *marks.intervals(base, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        *marks.stretches(base.encode(y=y)),
        *marks.points(base.encode(y=y), tooltips(*_BEST)),
        *marks.words(base, colour=marks.SOFT, dy=-15)(
            y=y, text=alt.Text("used:N"), opacity=roomy
        ),
        *marks.words(base, colour=marks.SOFT, dy=16)(
            y=y, text=alt.Text("efficiency:Q", format=".0%"), opacity=roomy
        ),
        height=280,
    )  # fmt: skip
