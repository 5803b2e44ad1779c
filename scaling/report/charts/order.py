"""The map of tensor-parallel by pipeline size."""

from typing import Any

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.palette import HATCH, variable
from scaling.report.charts.tooltips import tooltips


def layout_map() -> alt.LayerChart:
    """Map of tp by pp at one size: each cell the best of all other choices, failures hatched."""
    plain: dict[str, Any] = {"domain": False, "ticks": False, "grid": False}
    base = marks.chart("map").encode(
        x=alt.X(
            "pp:O", title="Pipeline stages, pp", axis=alt.Axis(orient="top", labelAngle=0, **plain)
        ),
        y=alt.Y("tp:O", title="Tensor-parallel size, tp", axis=alt.Axis(**plain)),
    )
    ran = base.transform_filter("datum.status === 'ok'").transform_calculate(
        number="isValid(datum.mfu) ? format(datum.mfu, '.1%') : "
        "format(datum.tokens_per_s_per_gpu, '.3s')"
    )
    bad = base.transform_filter("datum.status !== 'ok'").transform_calculate(
        said="replace(datum.status, '_', ' ')"
    )
    steps = alt.Scale(
        type="threshold",
        domain=[0.5, 0.7, 0.8, 0.9, 0.97],
        range=[variable(f"s{step}") for step in range(1, 7)],
    )
    ink = alt.condition(
        "datum.share_of_best >= 0.8", alt.value(variable("s-ink")), alt.value(marks.INK)
    )
    tips = tooltips(
        "layout_name", "text", "series", "mfu", "tokens_per_s", "tokens_per_s_per_gpu",
        "share_of_best", "tried", "failed",
    )  # fmt: skip
    narrow = "width < 480"
    return marks.finish(
        ran.mark_rect(cornerRadius=3, stroke=marks.SURFACE, strokeWidth=2).encode(
            color=alt.Color("share_of_best:Q", scale=steps, legend=None), tooltip=tips
        ),
        bad.mark_rect(cornerRadius=3, fill=HATCH, stroke=marks.SURFACE, strokeWidth=2).encode(
            tooltip=tooltips("status", "tried", "failed")
        ),
        ran.transform_filter("datum.share_of_best === 1").mark_rect(
            cornerRadius=3, fill="transparent", stroke=marks.INK, strokeWidth=2.5
        ),
        ran.transform_filter("datum.series === 'predicted'").mark_rect(
            cornerRadius=3, fill="transparent", stroke=marks.INK, strokeWidth=1.5, strokeDash=[4, 3]
        ),
        ran.mark_text(
            dy={"expr": f"{narrow} ? 1 : -6"}, fontSize={"expr": f"{narrow} ? 11 : 13"},
            fontWeight=600,
        ).encode(text=alt.Text("number:N"), color=ink),
        ran.mark_text(dy=9, fontSize=10, opacity={"expr": f"{narrow} ? 0 : 1"}).encode(
            text=alt.Text("text:N"), color=ink
        ),
        *marks.words(bad, colour=marks.SOFT, fontSize={"expr": f"{narrow} ? 9 : 11"})(
            text=alt.Text("said:N")
        ),
        height=alt.Step(46),
    )  # fmt: skip
