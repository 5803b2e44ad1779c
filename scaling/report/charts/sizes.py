"""Charts over the number of GPUs: the rate of one, and the return of each step."""

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.marks import tooltips

_BEST = (
    "world_size layout_name advised_layout_name series tokens_per_s tokens_per_s_low "
    "tokens_per_s_high tokens_per_s_per_gpu efficiency mfu"
)
_NUMBER = 34  # width in px of the numbers above a point


def throughput_per_gpu() -> alt.LayerChart:
    """Tokens per second per GPU of the best layouts, with MFU and efficiency above the interval.

    For one model and batch the three are one curve. Grey dots: other layouts; grey squares: the
    layout that is advised at the smallest size, kept throughout.
    """
    y = marks.amounts("tokens_per_s_per_gpu", "Tokens per second per {GPU}")
    base = (
        marks.chart("best")
        .transform_calculate(
            low="datum.tokens_per_s_low / datum.world_size",
            high="datum.tokens_per_s_high / datum.world_size",
            yardstick="datum.ideal_tokens_per_s / datum.world_size",
            top="max(datum.tokens_per_s_high, datum.tokens_per_s) / datum.world_size",
            used="isValid(datum.mfu) ? format(datum.mfu, '.0%') : "
            "isValid(datum.model_flop_per_s_per_gpu) ? "
            "format(datum.model_flop_per_s_per_gpu, '.3~s') : ''",
            share="format(datum.efficiency, '.0%')",
        )
        .encode(x=marks.over_gpus())
    )
    others = marks.chart("contenders").transform_filter(
        "datum.position > 1 && isValid(datum.tokens_per_s_per_gpu)"
    )
    kept = marks.chart("fixed_layout").encode(x=marks.over_gpus(), y=y)
    last = "datum.world_size === sizes_[sizes_.length - 1] && datum.share_of_best < 0.97"
    # where sizes are close together only every other one has numbers, the largest included
    second = "(sizes_.length - indexof(sizes_, datum.world_size)) % 2 === 1"
    roomy = alt.condition(
        f"width >= {_NUMBER} * sizes_.length + 60 || {second}", alt.value(1), alt.value(0)
    )
    numbers = marks.firmest(base).encode(y=alt.Y("top:Q"), opacity=roomy)
    return marks.finish(
        others.mark_circle(size=16, color=marks.OTHER, opacity=0.45).encode(
            x=marks.over_gpus(), y=y,
            tooltip=tooltips("world_size layout_name series tokens_per_s_per_gpu mfu"),
        ),
        marks.observed_or_all(base)
        .mark_rule(color=marks.FAINT, strokeWidth=1)
        .encode(y=alt.Y("yardstick:Q"), **marks.ACROSS),
        kept.mark_line(color=marks.OTHER, strokeWidth=1.25, strokeDash=[1, 3]).encode(
            detail=[alt.Detail("series:N"), alt.Detail("layout_name:N")]
        ),
        kept.mark_square(size=24, color=marks.OTHER, opacity=1).encode(
            tooltip=tooltips("world_size layout_name series efficiency share_of_best")
        ),
        *marks.halo_text(
            kept.transform_filter(last)
            .transform_calculate(name="'one layout'")
            .encode(text=alt.Text("name:N")),
            colour=marks.SOFT, align="right", dx=8, dy=14,
        ),
        *marks.intervals(base, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        *marks.layout_lines(base.encode(y=y)),
        *marks.points(base.encode(y=y), _BEST),
        *marks.halo_text(numbers.encode(text=alt.Text("used:N")), colour=marks.SOFT, dy=-26),
        *marks.halo_text(numbers.encode(text=alt.Text("share:N")), colour=marks.SOFT, dy=-13),
        height=280,
    )  # fmt: skip


def marginal_return() -> alt.LayerChart:
    """The share of its cost that each step between two sizes returned, with its interval."""
    steps = marks.chart("returns").transform_filter("isValid(datum.step_return)")
    one = steps.transform_aggregate(count="count()")
    knee = marks.chart("knees").transform_calculate(least="2 * datum.knee_share - 1")
    band, *segments = _segments(
        steps,
        "step_return",
        title="Return of the step, share of what it costs",
        axis=alt.Axis(format=".1f", tickCount=5),
        number="format(datum.step_return, '.2f')",
        tooltip="from_world_size to_world_size from_layout to_layout series step_return "
        "step_return_low step_return_high marginal_tokens_per_s",
    )
    return marks.finish(
        one.mark_rule(color=marks.FAINT, strokeWidth=1).encode(
            y=marks.fixed("YDatum", 0), **marks.ACROSS
        ),
        one.mark_rule(color=marks.FAINT, strokeWidth=1).encode(
            y=marks.fixed("YDatum", 1), **marks.ACROSS
        ),
        band,
        knee.mark_rule(color=marks.WARN, strokeDash=[2, 3]).encode(
            y=alt.Y("least:Q"), **marks.ACROSS
        ),
        *segments,
        height=260,
    )


def _segments(
    steps: alt.Chart,
    column: str,
    *,
    title: str,
    axis: alt.Axis,
    number: str,
    tooltip: str,
) -> list[alt.Chart]:
    """Layers for the value of each step, from one size to the next: first the band, then the rest.

    Args:
        steps: rows of `returns`.
        column: the value, with its interval in `<column>_low` and `<column>_high`.
        title: title of the vertical axis.
        axis: labels of the vertical axis.
        number: expression for the text below the middle of a segment.
        tooltip: columns for the tooltip of the segments.
    """
    y = alt.Y(f"{column}:Q", title=title, scale=alt.Scale(nice=True), axis=axis)
    base = steps.encode(
        x=marks.over_gpus("from_world_size:Q", padding=14), x2=alt.X2("to_world_size:Q")
    )
    middle = steps.transform_calculate(
        middle="sqrt(datum.from_world_size * datum.to_world_size)", words=number
    ).encode(x=marks.over_gpus("middle:Q", padding=14))
    return [
        base.mark_rect(opacity=0.16, color=marks.ACCENT).encode(
            y=alt.Y(f"{column}_low:Q"), y2=alt.Y2(f"{column}_high:Q")
        ),
        *(
            marks.rows_of(base, series)
            .mark_rule(color=marks.ACCENT, **look)
            .encode(y=y, tooltip=tooltips(tooltip))
            for series, look in marks.SEGMENTS.items()
        ),
        *marks.halo_text(middle.encode(y=y, text=alt.Text("words:N")), colour=marks.INK, dy=13),
    ]
