"""Charts for who pays: time against cost of a run."""

import altair as alt

from scaling.report.charts.marks import (
    INK,
    LINES,
    SOFT,
    chart,
    finish,
    layout_colour,
    log_amount_axis,
    points,
    words,
)

_DAYS = [digit * 10.0**power for power in range(-6, 8) for digit in (1, 2, 5)]


def cost_money() -> alt.LayerChart:
    """Days and dollars of a run of the chosen number of tokens, one mark a size."""
    return _cost("usd_per_token", "Cost of the run (dollar, log scale)", "dollars")


def cost_hours() -> alt.LayerChart:
    """Days and GPU-hours of a run, where no price is known."""
    return _cost("gpu_hours_per_token", "{GPU}-hours of the run (log scale)", "{GPU}-hours")


def _cost(field: str, title: str, unit: str) -> alt.LayerChart:
    tokens = "pow(10, budget_)"
    rows = (
        chart("costs")
        .transform_filter(f"isValid(datum.{field})")
        .transform_calculate(
            days=f"{tokens} * datum.hours_per_token / 24",
            soonest=f"{tokens} * datum.hours_per_token_low / 24",
            latest=f"{tokens} * datum.hours_per_token_high / 24",
            cost=f"{tokens} * datum.{field}",
            energy=f"{tokens} * datum.joules_per_token / 3.6e6",
            name="datum.world_size + (datum.on_front ? '' : ' (dominated)')",
            style="datum.series === 'predicted' ? 'predicted' : 'observed'",
        )
    )
    x = alt.X(
        "days:Q", title="Time of the run (days, log scale)",
        scale=alt.Scale(type="log", nice=False, padding=34),
        axis=alt.Axis(
            # Vega's own ticks, in even steps, where the days lie close together
            values=alt.ExprRef(f"domain('x')[1] / domain('x')[0] < 5 ? null : {_DAYS}"),
            tickCount=5, format=",~r", labelOverlap="greedy", labelSeparation=8,
        ),
    )  # fmt: skip
    y = alt.Y(
        "cost:Q", title=title, scale=alt.Scale(type="log", nice=False, padding=26),
        axis=log_amount_axis(),
    )  # fmt: skip
    best = rows.encode(x=x, y=y)
    tips = [
        alt.Tooltip("world_size:Q", title="{GPUs}"),
        alt.Tooltip("layout_name:N", title="layout"),
        alt.Tooltip("series:N", title="value is"),
        alt.Tooltip("days:Q", title="days", format=",.3~r"),
        alt.Tooltip("cost:Q", title=unit, format=",.4~s"),
        alt.Tooltip("energy:Q", title="kWh", format=",.4~s"),
        alt.Tooltip("joules_from:N", title="energy from"),
    ]
    return finish(
        *(
            best.transform_filter(f"datum.style === '{style}'")
            .mark_line(color=SOFT, **look)
            .encode(order=alt.Order("world_size:Q"))
            for style, look in LINES.items()
        ),
        best.transform_filter("isValid(datum.hours_per_token_low)")
        .mark_rule(opacity=0.3, strokeWidth=5)
        .encode(x=alt.X("soonest:Q"), x2=alt.X2("latest:Q"), color=layout_colour()),
        *points(best, tips),
        *words(best, colour=INK, align="left", dx=8, dy=-9)(text=alt.Text("name:N")),
        height=320,
    )
