"""Charts of what more GPUs return: one function, one chart, no data inside."""

from typing import Any

import altair as alt

from scaling.report.charts.marks import (
    ACCENT,
    ACROSS,
    FAINT,
    FOOT,
    FROM_ZERO,
    INK,
    INTERVALS,
    SEGMENTS,
    SOFT,
    UPRIGHT,
    WARN,
    amount_axis,
    chart,
    datum,
    finish,
    firmest,
    layout_colour,
    log_amount_axis,
    of,
    over_gpus,
    points,
    sizes_axis,
    words,
)
from scaling.report.charts.tooltips import tooltips

HALF_SHARE = 0.5  # of what a GPU gave at the smallest size; the dotted line


def marginal_return() -> alt.LayerChart:
    """What each step between two sizes returned of what it cost, with its interval: 1 is all."""
    y = alt.Y(
        "step_return:Q",
        title="Return of the step, share of what it costs",
        scale=alt.Scale(nice=True),
        axis=alt.Axis(format=".1f", tickCount=5),
    )
    ends: dict[str, Any] = {
        "x": over_gpus("from_world_size:Q", padding=14),
        "x2": alt.X2("to_world_size:Q"),
    }
    steps = chart("returns").transform_filter("isValid(datum.step_return)")
    base = steps.encode(**ends)
    one = steps.transform_aggregate(count="count()")
    knee = chart("knees").transform_calculate(least="2 * datum.knee_share - 1")
    tooltip = [
        alt.Tooltip("from_world_size:Q", title="from {GPUs}"),
        alt.Tooltip("to_world_size:Q", title="to {GPUs}"),
        alt.Tooltip("from_layout:N", title="layout before"),
        alt.Tooltip("to_layout:N", title="layout there"),
        alt.Tooltip("series:N", title="value is"),
        alt.Tooltip("step_return:Q", title="return", format=".2f"),
        alt.Tooltip("step_return_low:Q", title="{interval} from", format=".2f"),
        alt.Tooltip("step_return_high:Q", title="{interval} to", format=".2f"),
        alt.Tooltip("marginal_tokens_per_s:Q", title="tokens/s per added {GPU}", format=",.4~s"),
        alt.Tooltip("elasticity:Q", title="elasticity", format=".2f"),
    ]
    middle = steps.transform_calculate(
        middle="sqrt(datum.from_world_size * datum.to_world_size)",
        words="format(datum.step_return, '.2f')",
    ).encode(x=over_gpus("middle:Q", padding=14))
    return finish(
        one.mark_rule(color=FAINT, strokeWidth=1).encode(y=datum("Y", 0), **ACROSS),
        one.mark_rule(color=FAINT, strokeWidth=1).encode(y=datum("Y", 1), **ACROSS),
        base.mark_rect(opacity=0.16, color=ACCENT).encode(
            y=alt.Y("step_return_low:Q"), y2=alt.Y2("step_return_high:Q")
        ),
        knee.mark_rule(color=WARN, strokeDash=[2, 3]).encode(y=alt.Y("least:Q"), **ACROSS),
        *(
            of(base, series).mark_rule(color=ACCENT, **look).encode(y=y, tooltip=tooltip)
            for series, look in SEGMENTS.items()
        ),
        *words(middle, colour=INK, dy=13)(y=y, text=alt.Text("words:N")),
        height=260,
    )


def marginal_watt() -> alt.LayerChart:
    """Tokens per second for each added watt."""
    return _marginal(
        "per_watt", "per_watt_low", "per_watt_high", "yardstick_per_watt",
        title="Tokens per second per added watt",
    )  # fmt: skip


def marginal_dollar() -> alt.LayerChart:
    """Tokens for each added dollar."""
    return _marginal(
        "per_usd", "per_usd_low", "per_usd_high", "yardstick_per_usd",
        title="Tokens per added dollar",
    )  # fmt: skip


def _marginal(value: str, low: str, high: str, yardstick: str, *, title: str) -> alt.LayerChart:
    y = alt.Y(f"{value}:Q", title=title, scale=alt.Scale(nice=True), axis=amount_axis())
    ends: dict[str, Any] = {
        "x": over_gpus("from_world_size:Q", padding=14),
        "x2": alt.X2("to_world_size:Q"),
    }
    steps = chart("returns").transform_filter(f"isValid(datum.{value})")
    base = steps.encode(**ends)
    start = firmest(steps).transform_aggregate(start=f"max({yardstick})")
    half = start.transform_calculate(half=f"datum.start * {HALF_SHARE}")
    tooltip = [
        alt.Tooltip("from_world_size:Q", title="from {GPUs}"),
        alt.Tooltip("to_world_size:Q", title="to {GPUs}"),
        alt.Tooltip("to_layout:N", title="layout there"),
        alt.Tooltip("series:N", title="value is"),
        alt.Tooltip(f"{value}:Q", title=title.lower(), format=",.4~s"),
        alt.Tooltip(f"{low}:Q", title="{interval} from", format=",.4~s"),
        alt.Tooltip(f"{high}:Q", title="{interval} to", format=",.4~s"),
        alt.Tooltip("part:Q", title="of its share", format=".2f"),
        alt.Tooltip("elasticity:Q", title="elasticity", format=".2f"),
        alt.Tooltip("watt_from:N", title="power from"),
    ]
    middle = steps.transform_calculate(
        middle="sqrt(datum.from_world_size * datum.to_world_size)",
        words=f"format(datum.{value} / datum.{yardstick}, '.2f')",
    ).encode(x=over_gpus("middle:Q", padding=14))
    segments = base.transform_calculate(part=f"datum.{value} / datum.{yardstick}")
    return finish(
        start.mark_rule(color=FAINT, strokeWidth=1).encode(y=datum("Y", 0), **ACROSS),
        base.mark_rect(opacity=0.16, color=ACCENT).encode(
            y=alt.Y(f"{low}:Q"), y2=alt.Y2(f"{high}:Q")
        ),
        start.mark_rule(color=FAINT, strokeWidth=1).encode(y=alt.Y("start:Q"), **ACROSS),
        half.mark_rule(color=WARN, strokeDash=[2, 3]).encode(y=alt.Y("half:Q"), **ACROSS),
        *(
            of(segments, series).mark_rule(color=ACCENT, **look).encode(y=y, tooltip=tooltip)
            for series, look in SEGMENTS.items()
        ),
        *words(middle, colour=INK, dy=13)(y=y, text=alt.Text("words:N")),
        height=260,
    )


def scaling_law() -> alt.LayerChart:
    """The chosen law through the best layouts, dashed with its band where it leaves the data."""
    y = alt.Y(
        "tokens_per_s:Q",
        title="Tokens per second (log scale)",
        scale=alt.Scale(type="log", nice=False, padding=24),
        axis=log_amount_axis(),
    )
    x = alt.X(
        "world_size:Q",
        title="Number of {GPUs} (log scale)",
        scale=alt.Scale(type="log", base=2, nice=False, padding=14),
        axis=sizes_axis("beyond_"),
    )
    curve = chart("law_curves").encode(x=x)
    inside = curve.transform_filter("datum.inside_data")
    leaves = curve.transform_filter("datum.inside_data").transform_aggregate(
        edge="max(world_size)", groupby=["series"]
    )
    beyond = (
        chart("law_curves")
        .transform_calculate(inside="datum.inside_data ? datum.world_size : 0")
        .transform_joinaggregate(edge="max(inside)", groupby=["series"])
        .transform_filter("datum.world_size >= datum.edge")
        .encode(x=x)
    )
    seen = chart("best").transform_filter("datum.series !== 'predicted'").encode(x=x)
    rules = chart("best").encode(x=x)
    return finish(
        curve.mark_area(color=ACCENT, opacity=0.14).encode(
            y=alt.Y("tokens_per_s_low:Q"), y2=alt.Y2("tokens_per_s_high:Q")
        ),
        inside.mark_line(color=ACCENT, strokeWidth=1.5).encode(y=y),
        beyond.mark_line(color=ACCENT, strokeWidth=1.5, strokeDash=[4, 3]).encode(y=y),
        leaves.mark_rule(color=WARN, strokeWidth=1).encode(x=alt.X("edge:Q"), **UPRIGHT),
        leaves.mark_text(
            text="data end", align="left", dx=4, dy=-5, baseline="bottom", color=WARN
        ).encode(x=alt.X("edge:Q"), y=FOOT),
        of(rules, "measured")
        .mark_rule(**INTERVALS["measured"])
        .encode(
            y=alt.Y("tokens_per_s_low:Q"), y2=alt.Y2("tokens_per_s_high:Q"), color=layout_colour()
        ),
        *points(seen.encode(y=y), tooltips("world_size", "layout_name", "series", "tokens_per_s")),
        height=280,
    )
