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
    OTHER,
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
    words,
)
from scaling.report.charts.tooltips import tooltips

HALF_SHARE = 0.5  # of what a GPU gave at the smallest size; the dotted line


def marginal_return() -> alt.LayerChart:
    """Tokens per second that one more GPU added, a segment per step between two sizes."""
    return _marginal(
        "marginal_tokens_per_s", "marginal_low", "marginal_high", "yardstick_tokens_per_s_per_gpu",
        title="Tokens per second per added {GPU}",
    )  # fmt: skip


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
    knee = chart("knees").transform_filter("!datum.beyond_data && datum.series !== 'predicted'")
    segments = base.transform_calculate(part=f"datum.{value} / datum.{yardstick}")
    return finish(
        start.mark_rule(color=FAINT, strokeWidth=1).encode(y=datum("Y", 0), **ACROSS),
        base.mark_rect(opacity=0.16, color=ACCENT).encode(
            y=alt.Y(f"{low}:Q"), y2=alt.Y2(f"{high}:Q")
        ),
        start.mark_rule(color=FAINT, strokeWidth=1).encode(y=alt.Y("start:Q"), **ACROSS),
        half.mark_rule(color=WARN, strokeDash=[2, 3]).encode(y=alt.Y("half:Q"), **ACROSS),
        knee.mark_rule(color=WARN, strokeWidth=1.25).encode(
            x=over_gpus("knee_world_size:Q", padding=14), **UPRIGHT
        ),
        knee.transform_calculate(words="'knee ' + datum.knee_world_size")
        .mark_text(align="right", dx=-4, dy=-5, color=WARN, baseline="bottom")
        .encode(
            x=over_gpus("knee_world_size:Q", padding=14),
            y=FOOT,
            text=alt.Text("words:N"),
        ),
        *(
            of(segments, series).mark_rule(color=ACCENT, **look).encode(y=y, tooltip=tooltip)
            for series, look in SEGMENTS.items()
        ),
        *words(middle, colour=INK, dy=13)(y=y, text=alt.Text("words:N")),
        height=260,
    )


def efficiency() -> alt.LayerChart:
    """Share of ideal scaling: at the best layout of each size, and keeping one layout."""
    y = alt.Y(
        "efficiency:Q",
        title="Efficiency: share of ideal scaling",
        scale=FROM_ZERO,
        axis=alt.Axis(format=".0%", tickCount=5),
    )
    best = chart("best").encode(x=over_gpus(), y=y)
    fixed = chart("fixed_layout").encode(x=over_gpus(), y=y)
    tips = tooltips("world_size", "layout_name", "series", "efficiency", "share_of_best")
    last = "datum.world_size === sizes_[sizes_.length - 1] && datum.share_of_best < 0.99"
    return finish(
        *(
            of(fixed, series).mark_line(color=OTHER, strokeWidth=1.5, **dash)
            for series, dash in _DASHES.items()
        ),
        fixed.mark_square(size=26, color=OTHER, opacity=1).encode(tooltip=tips),
        *words(
            fixed.transform_filter(last).transform_calculate(words="'one layout'"),
            colour=SOFT, align="right", dx=-8, dy=10,
        )(text=alt.Text("words:N")),
        *(
            of(best, series).mark_line(color=SOFT, strokeWidth=1.75, **dash)
            for series, dash in _DASHES.items()
        ),
        *points(best, tooltips("world_size", "layout_name", "series", "efficiency")),
        height=280,
    )  # fmt: skip


_DASHES: dict[str, dict[str, Any]] = {
    "measured": {},
    "extended": {},
    "published": {},
    "predicted": {"strokeDash": [4, 3]},
}


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
        axis=alt.Axis(
            values=[2**power for power in range(20)], format="d", grid=False, labelOverlap="greedy"
        ),
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
