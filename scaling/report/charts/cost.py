"""The chart for who pays: time against cost of a run."""

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.tooltips import tooltips


def cost() -> alt.LayerChart:
    """Days and cost of a run of the chosen number of tokens, one mark a size.

    The cost is in GPU-hours, or in money where a price of one is known or given.
    """
    rows = marks.chart("costs").transform_calculate(
        days="tokens_ * datum.hours_per_token / 24",
        soonest="tokens_ * datum.hours_per_token_low / 24",
        latest="tokens_ * datum.hours_per_token_high / 24",
        least="tokens_ * datum.gpu_hours_per_token_low * (price_ > 0 ? price_ : 1)",
        most="tokens_ * datum.gpu_hours_per_token_high * (price_ > 0 ? price_ : 1)",
        cost="tokens_ * datum.gpu_hours_per_token * (price_ > 0 ? price_ : 1)",
        energy="tokens_ * datum.joules_per_token / 3.6e6",
        name="format(datum.world_size, 'd')",
    )
    x = alt.X(
        "days:Q", title="Time of the run (days, log scale)",
        scale=marks.log(30),
        axis=marks.log_time_axis(),
    )  # fmt: skip
    y = marks.amounts("cost", "{cost}")  # fmt: skip
    best = rows.encode(x=x, y=y)
    tips = [
        *tooltips("world_size", "layout_name", "series"),
        alt.Tooltip("days:Q", title="days", format=",.3~r"),
        alt.Tooltip("cost:Q", title="{cost}", format=",.4~s"),
        alt.Tooltip("energy:Q", title="kWh", format=",.4~s"),
        alt.Tooltip("joules_from:N", title="energy from"),
    ]
    return marks.finish(
        *marks.lines(best.encode(order=alt.Order("world_size:Q")), color=marks.SOFT),
        best.transform_filter("isValid(datum.hours_per_token_low)")
        .mark_rule(opacity=0.3, strokeWidth=5)
        .encode(x=alt.X("soonest:Q"), x2=alt.X2("latest:Q"), color=marks.layout_colour()),
        best.transform_filter("isValid(datum.gpu_hours_per_token_low)")
        .mark_rule(opacity=0.3, strokeWidth=5)
        .encode(y=alt.Y("least:Q"), y2=alt.Y2("most:Q"), color=marks.layout_colour()),
        *marks.points(best, tips),
        *marks.words(best, colour=marks.INK, align="left", dx=8, dy=-9)(text=alt.Text("name:N")),
        height=300,
    )
