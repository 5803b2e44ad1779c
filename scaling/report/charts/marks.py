"""The grammar of every chart: how a measured, a published and a predicted value look.

Only the column `series` decides the mark. Colours are names of the palette. Words in braces
(`{GPUs}`) are filled in when the chart is drawn (`scaling.report.text.fill_words`).
"""

from collections.abc import Sequence
from typing import Any

import altair as alt

from scaling.report.charts.palette import LAYOUTS, variable

INK, SOFT, FAINT = variable("ink"), variable("ink-2"), variable("ink-3")
SURFACE, OTHER = variable("surface"), variable("c-other")
ACCENT, WARN, BAD = variable("accent"), variable("warn"), variable("bad")

_channels: Any = alt  # its constructors of values are untyped


def value(channel: str, pixels: float | str) -> Any:
    """A fixed value of a channel: pixels, or a word such as `width`.

    `x=alt.value(0)` means the same, but altair then compares it with every class it knows.
    """
    return getattr(_channels, f"{channel}Value")(pixels)


def datum(channel: str, at: float) -> Any:
    """A fixed value on the scale of a channel."""
    return getattr(_channels, f"{channel}Datum")(at)


LEFT, RIGHT, FOOT = value("X", 0), value("X", "width"), value("Y", "height")
ACROSS: dict[str, Any] = {"x": LEFT, "x2": value("X2", "width")}  # the whole plot
UPRIGHT: dict[str, Any] = {"y": value("Y", 0), "y2": value("Y2", "height")}

FONT = 'Inter, "Segoe UI", Roboto, "Helvetica Neue", Arial, system-ui, sans-serif'

CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "transparent",
    "lineBreak": "|",
    "padding": {"left": 2, "right": 4, "top": 6, "bottom": 2},
    "view": {"stroke": None},
    "axis": {
        "labelColor": SOFT, "titleColor": SOFT, "tickColor": variable("line"),
        "domainColor": variable("line"), "gridColor": variable("grid"), "labelFontSize": 12,
        "titleFontSize": 12, "titleFontWeight": 400, "titlePadding": 8, "labelPadding": 5,
        "tickSize": 4,
    },
    "axisY": {"domain": False, "ticks": False, "grid": True},
    "axisX": {"grid": False},
    "legend": {"labelColor": SOFT, "labelFontSize": 12},
    "text": {"font": FONT, "fontSize": 11},
}  # fmt: skip

POINT_SIZE = 64  # square pixels
POINTS: dict[str, dict[str, Any]] = {
    "measured": {"shape": "circle", "filled": True},
    "extended": {"shape": "square", "fill": SURFACE, "strokeWidth": 2},
    "published": {"shape": "circle", "fill": SURFACE, "strokeWidth": 2},
    "predicted": {"shape": "diamond", "fill": SURFACE, "strokeWidth": 1.5},
}
LINES: dict[str, dict[str, Any]] = {
    "observed": {"strokeWidth": 1.75},
    "predicted": {"strokeWidth": 1.5, "strokeDash": [4, 3]},
}
INTERVALS: dict[str, dict[str, Any]] = {
    "measured": {"strokeWidth": 1.5},
    "extended": {"strokeWidth": 1.5, "strokeDash": [2, 2]},
    "published": {"strokeWidth": 1.5},
    "predicted": {"strokeWidth": 6.5, "opacity": 0.25},
}
SEGMENTS: dict[str, dict[str, Any]] = {
    "measured": {"strokeWidth": 3},
    "extended": {"strokeWidth": 3},
    "published": {"strokeWidth": 3},
    "predicted": {"strokeWidth": 2, "strokeDash": [4, 3]},
}

_SLOTS = alt.Scale(domain=list(range(1, len(LAYOUTS) + 1)), range=LAYOUTS)
# Set by the page and the SVG export: GPU counts on the axis, the same with sizes beyond them, the
# tokens of a run, and the price of a GPU-hour (0: unknown).
PARAMETERS: dict[str, Any] = {
    "sizes_": [1, 2, 4, 8],
    "beyond_": [1, 2, 4, 8, 16],
    "tokens_": 1e12,
    "price_": 0,
}
_DECADES = [10.0**exponent for exponent in range(-6, 18)]
_ONE_TWO_FIVE = [digit * decade for decade in _DECADES for digit in (1, 2, 5)]
_FINER = [digit * decade for decade in _DECADES for digit in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)]


FROM_ZERO = alt.Scale(domainMin=0, nice=True)  # amounts start at 0


def log(padding: int, **scale: Any) -> alt.Scale:
    """A log scale from the first value to the last, with `padding` pixels at both ends."""
    return alt.Scale(type="log", nice=False, padding=padding, **scale)


def amounts(field: str, title: str, axis: alt.Axis | None = None) -> alt.Y:
    """A vertical axis of amounts that starts at 0."""
    return alt.Y(f"{field}:Q", title=title, scale=FROM_ZERO, axis=axis or amount_axis())


def rows_by(name: str, order: str, *, falling: bool = False) -> alt.Y:
    """One row for each name; the chart writes the names, since an axis has no room for them."""
    sort = alt.EncodingSortField(
        order, op="max" if falling else "min", order="descending" if falling else "ascending"
    )
    return alt.Y(f"{name}:N", axis=None, sort=sort)


def rows_of(base: alt.Chart, series: str) -> alt.Chart:
    """The rows of one series."""
    chart: alt.Chart = base.transform_filter(f"datum.series === '{series}'")
    return chart


def points(base: alt.Chart, tooltip: Sequence[alt.Tooltip], **mark: Any) -> list[alt.Chart]:
    """One layer of points per series, in the colour of the layout's `slot`."""
    layers = []
    for series, look in POINTS.items():
        channel = (
            {"fill": alt.Fill("slot:O", scale=_SLOTS, legend=None)}
            if look.get("filled")
            else {"stroke": alt.Stroke("slot:O", scale=_SLOTS, legend=None)}
        )
        drawn = rows_of(base, series).mark_point(size=POINT_SIZE, opacity=1, **look, **mark)
        layers.append(drawn.encode(tooltip=list(tooltip), **channel))
    return layers


def layout_lines(base: alt.Chart) -> list[alt.Chart]:
    """Lines through the best of each size, broken where the layout changes.

    A thin dotted line leads the eye from one layout to the next.
    """
    along = base.transform_window(
        before="lag(advised_layout_name)",
        groupby=["series"],
        sort=[alt.SortField("world_size")],
    ).transform_calculate(changed="datum.before === datum.advised_layout_name ? 0 : 1")
    numbered = along.transform_window(
        stretch="sum(changed)", groupby=["series"], sort=[alt.SortField("world_size")]
    )
    each = numbered.encode(detail=[alt.Detail("series:N"), alt.Detail("stretch:Q")])
    return [base.mark_line(color=OTHER, strokeWidth=1, strokeDash=[1, 3]), *lines(each, color=SOFT)]


def lines(base: alt.Chart, **mark: Any) -> list[alt.Chart]:
    """Lines through the rows: dashed where predicted, else solid."""
    return [
        base.transform_filter(f"(datum.series === 'predicted') === {is_predicted}").mark_line(
            **LINES[style], **mark
        )
        for style, is_predicted in (("observed", "false"), ("predicted", "true"))
    ]


def intervals(base: alt.Chart, **ends: Any) -> list[alt.Chart]:
    """Rules between the ends of an interval, given as encodings such as y= and y2=."""
    return [
        rows_of(base, series).mark_rule(**look).encode(color=layout_colour(), **ends)
        for series, look in INTERVALS.items()
    ]


def halo_text(base: alt.Chart, *, colour: str | alt.Color, **mark: Any) -> list[alt.Chart]:
    """Text over a wide stroke in the surface's colour, so that it stays readable over lines."""
    halo = base.mark_text(color=SURFACE, stroke=SURFACE, strokeWidth=5, strokeJoin="round", **mark)
    if isinstance(colour, str):
        return [halo, base.mark_text(color=colour, **mark)]
    return [halo, base.mark_text(**mark).encode(color=colour)]


def layout_colour() -> alt.Color:
    """The colour that names a layout."""
    return alt.Color("slot:O", scale=_SLOTS, legend=None)


def over_gpus(field: str = "world_size:Q", *, padding: int = 30) -> alt.X:
    """The axis of GPU counts: log 2, a tick at every size of the study (parameter `sizes_`)."""
    return alt.X(
        field,
        title="Number of {GPUs} (log scale)",
        scale=log(padding, base=2),
        axis=sizes_axis("sizes_"),
    )


def sizes_axis(parameter: str) -> alt.Axis:
    """Ticks at the values of a parameter; labels that would touch are dropped."""
    return alt.Axis(
        values=alt.ExprRef(parameter), format="d", grid=False, labelOverlap="greedy",
        labelSeparation=3,
    )  # fmt: skip


def amount_axis() -> alt.Axis:
    """Labels `0`, `500k`, `2B`; d3 alone would print `0k` and `2G`."""
    shortest = "replace(format(datum.value, '~s'), 'G', 'B')"
    return alt.Axis(labelExpr=f"datum.value === 0 ? '0' : {shortest}", tickCount=5)


def log_amount_axis() -> alt.Axis:
    """Amounts on a log scale, with `log_ticks`."""
    return alt.Axis(
        values=log_ticks("y"),
        tickCount=5,
        labelExpr="replace(format(datum.value, '~s'), 'G', 'B')",
        labelOverlap="greedy",
        labelSeparation=6,
    )


def log_time_axis() -> alt.Axis:
    """Seconds or days on a log scale from left to right, with `log_ticks`."""
    return alt.Axis(
        values=log_ticks("x"), tickCount=5, format=",.3~r", labelOverlap="greedy",
        labelSeparation=8,
    )  # fmt: skip


def log_ticks(channel: str) -> alt.ExprRef:
    """Ticks of a log axis: 1-2-5 a decade, finer below a factor of 6, Vega's own below 1.5.

    Ticks outside the domain are dropped. Vega's own would be nine grid lines a decade, with one
    label where the axis spans less than that.
    """
    span = f"domain('{channel}')[1] / domain('{channel}')[0]"
    return alt.ExprRef(f"{span} < 1.5 ? null : {span} < 6 ? {_FINER} : {_ONE_TWO_FIVE}")


def observed_or_all(base: alt.Chart) -> alt.Chart:
    """The rows that are not predicted, or all where all are, for lines that stand on one series."""
    flagged = base.transform_calculate(seen="datum.series === 'predicted' ? 0 : 1")
    kept: alt.Chart = flagged.transform_joinaggregate(most="max(seen)").transform_filter(
        "datum.seen === datum.most"
    )
    return kept


def chart(table: str) -> alt.Chart:
    """A chart of the table that the page holds under this name."""
    return alt.Chart(alt.NamedData(table))


def finish(*layers: alt.Chart, height: int | alt.Step) -> alt.LayerChart:
    """Layers as one chart as wide as its box, with the parameters that the page sets."""
    return alt.LayerChart(
        layer=list(layers),
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        width="container",
        height=height,
        params=[
            alt.VariableParameter(name=name, value=value) for name, value in PARAMETERS.items()
        ],
    )
