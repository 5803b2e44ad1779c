"""Charts for who pays: time against cost of a run, and what each choice is worth."""

import altair as alt

from scaling.report.marks import (
    ACCENT,
    INK,
    LEFT,
    LINES,
    OTHER,
    RIGHT,
    SOFT,
    UPRIGHT,
    chart,
    datum,
    finish,
    layout_colour,
    log_amount_axis,
    points,
    words,
)


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
            values=[d * 10.0**e for e in range(-6, 8) for d in (1, 2, 5)], format=",~r",
            labelOverlap="greedy", labelSeparation=8,
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


def factor_effects() -> alt.LayerChart:
    """Throughput ratios of matched pairs: mean, quartiles and range of each choice."""
    rows = (
        chart("effects")
        .transform_filter("datum.shown")
        .transform_calculate(
            numbers="'×' + format(datum.mean_ratio, '.2f') + ' [' + format(datum.lowest, '.2f')"
            " + '–' + format(datum.highest, '.2f') + '] · ' + datum.pairs + "
            "(datum.pairs === 1 ? ' pair' : ' pairs')",
            brief="'×' + format(datum.mean_ratio, '.2f') + ' · ' + datum.pairs",
        )
        .encode(
            y=alt.Y(
                "name:N",
                axis=None,
                sort=alt.EncodingSortField("mean_ratio", op="max", order="descending"),
            )
        )
    )
    x = alt.X(
        "mean_ratio:Q",
        title="Throughput ratio (log scale)",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(
            values=[0.1, 0.25, 0.5, 0.7, 0.85, 1, 1.2, 1.5, 2, 4, 10], format="~g",
            labelOverlap="greedy", labelSeparation=8,
        ),
    )  # fmt: skip
    tips = [
        alt.Tooltip("name:N", title="choice"),
        alt.Tooltip("series:N", title="value is"),
        alt.Tooltip("pairs:Q", title="matched pairs"),
        alt.Tooltip("mean_ratio:Q", title="mean ratio", format=".3f"),
        alt.Tooltip("lowest:Q", title="lowest", format=".3f"),
        alt.Tooltip("lower_quartile:Q", title="lower quartile", format=".3f"),
        alt.Tooltip("upper_quartile:Q", title="upper quartile", format=".3f"),
        alt.Tooltip("highest:Q", title="highest", format=".3f"),
        alt.Tooltip("smallest_world_size:Q", title="smallest size"),
        alt.Tooltip("ratio_at_smallest:Q", title="ratio there", format=".3f"),
        alt.Tooltip("largest_world_size:Q", title="largest size"),
        alt.Tooltip("ratio_at_largest:Q", title="ratio there", format=".3f"),
    ]
    one = rows.transform_aggregate(count="count()")
    narrow = "width < 460"
    return finish(
        one.mark_rule(color=OTHER, strokeWidth=1).encode(x=datum("X", 1), **UPRIGHT),
        rows.mark_rule(strokeWidth=1.25, color=ACCENT, yOffset=6).encode(
            x=alt.X("lowest:Q"), x2=alt.X2("highest:Q")
        ),
        rows.mark_rule(strokeWidth=6, color=ACCENT, opacity=0.45, yOffset=6).encode(
            x=alt.X("lower_quartile:Q"), x2=alt.X2("upper_quartile:Q")
        ),
        rows.mark_point(
            shape="circle", filled=True, size=64, opacity=1, color=ACCENT, yOffset=6
        ).encode(x=x, tooltip=tips),
        *words(rows, colour=INK, align="left", dy=-11)(x=LEFT, text=alt.Text("name:N")),
        *words(rows, colour=SOFT, align="right", dy=-11, opacity={"expr": f"{narrow} ? 0 : 1"})(
            x=RIGHT, text=alt.Text("numbers:N")
        ),
        *words(rows, colour=SOFT, align="right", dy=-11, opacity={"expr": f"{narrow} ? 1 : 0"})(
            x=RIGHT, text=alt.Text("brief:N")
        ),
        height=alt.Step(46),
    )
