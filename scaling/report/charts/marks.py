"""The grammar of every chart: how a measured, a published and a predicted value look.

Only the column `series` decides the mark. Colours are names of the palette. Words in braces
(`{GPUs}`) are filled in when the chart is drawn (`svg.fill_words`).
"""

from typing import Any

import altair as alt

from scaling.analyse.series import SERIES
from scaling.report.charts.palette import LAYOUTS, variable
from scaling.report.columns import TOOLTIPS

INK, SOFT, FAINT = variable("ink"), variable("ink-2"), variable("ink-3")
SURFACE, OTHER = variable("surface"), variable("c-other")
ACCENT, WARN, BAD = variable("accent"), variable("warn"), variable("bad")

_channels: Any = alt  # its constructors of values are untyped


def fixed(channel: str, at: float | str) -> Any:
    """One place for all rows: `XValue` in pixels or a word such as `width`, `XDatum` on the scale.

    `x=alt.value(0)` means the same, but altair then compares it with every class it knows.
    """
    return getattr(_channels, channel)(at)


LEFT, RIGHT, FOOT = fixed("XValue", 0), fixed("XValue", "width"), fixed("YValue", "height")
ACROSS: dict[str, Any] = {"x": LEFT, "x2": fixed("X2Value", "width")}  # the whole plot
UPRIGHT: dict[str, Any] = {"y": fixed("YValue", 0), "y2": fixed("Y2Value", "height")}

SHOWN_LAYOUTS = 10  # rows of a chart; the table behind it has all
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

# Width of the chart's box on the page (a file has none), which decides the columns of a legend: the
# plot's own width changes while it is laid out.
BOX = "(width && containerSize()[0] || 640)"
CATEGORIES = [variable(name) for name in ("t1", "t4", "t5", "t2", "ink-2", "t6")]


def _log_ticks(channel: str) -> alt.ExprRef:
    """Ticks of a log axis: 1-2-5 a decade, finer below a factor of 6, Vega's own below 1.5.

    Ticks outside the domain are dropped. Vega's own would be nine grid lines a decade, with one
    label where the axis spans less than that.
    """
    span = f"domain('{channel}')[1] / domain('{channel}')[0]"
    return alt.ExprRef(f"{span} < 1.5 ? null : {span} < 6 ? {_FINER} : {_ONE_TWO_FIVE}")


LAYOUT_COLOUR = alt.Color("slot:O", scale=_SLOTS, legend=None)  # names a layout

FROM_ZERO = alt.Scale(domainMin=0, nice=True)  # amounts start at 0
_BILLIONS = (
    "abs(datum.value) < 1 ? format(datum.value, '~g')"
    " : replace(format(datum.value, '~s'), 'G', 'B')"
)
# Labels `0`, `0.5`, `500k`, `2B`; d3 alone would print `0k`, `500m` and `2G`.
AMOUNTS = alt.Axis(labelExpr=_BILLIONS, tickCount=5)
LOG_AMOUNTS = alt.Axis(
    values=_log_ticks("y"), tickCount=5, labelExpr=_BILLIONS, labelOverlap="greedy",
    labelSeparation=6,
)  # fmt: skip


def amounts(
    field: str, title: str, axis: alt.Axis = AMOUNTS, scale: alt.Scale = FROM_ZERO
) -> alt.Y:
    """A vertical axis of amounts; unless the scale is another it starts at 0."""
    return alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis)


# One row for each layout; the chart writes the names, since an axis has no room for them.
_FASTEST_FIRST = alt.EncodingSortField("place", op="min", order="ascending")
BY_PLACE = alt.Y("layout_name:N", axis=None, sort=_FASTEST_FIRST)


def log(padding: int, **scale: Any) -> alt.Scale:
    """A log scale from the first value to the last, with `padding` pixels at both ends."""
    return alt.Scale(type="log", nice=False, padding=padding, **scale)


def rows_of(base: alt.Chart, series: str) -> alt.Chart:
    """The rows of one series."""
    chart: alt.Chart = base.transform_filter(f"datum.series === '{series}'")
    return chart


def points(base: alt.Chart, tooltip: str, **mark: Any) -> list[alt.Chart]:
    """One layer of points per series, in the colour of the layout's `slot`; see `tooltips`."""
    layers = []
    for series, look in POINTS.items():
        channel = (
            {"fill": alt.Fill("slot:O", scale=_SLOTS, legend=None)}
            if look.get("filled")
            else {"stroke": alt.Stroke("slot:O", scale=_SLOTS, legend=None)}
        )
        drawn = rows_of(base, series).mark_point(size=POINT_SIZE, opacity=1, **look, **mark)
        layers.append(drawn.encode(tooltip=tooltips(tooltip), **channel))
    return layers


def firmest(base: alt.Chart) -> alt.Chart:
    """The rows of each size that are of its firmest series, for what has room for one series."""
    ordered = base.transform_calculate(order=f"indexof({list(SERIES)}, datum.series)")
    kept: alt.Chart = ordered.transform_joinaggregate(
        least="min(order)", groupby=["world_size"]
    ).transform_filter("datum.order === datum.least")
    return kept


def layout_lines(base: alt.Chart) -> list[alt.Chart]:
    """Lines through the best of each size, broken where the layout changes.

    A thin dotted line leads the eye from one layout to the next; where several series have a size,
    through the firmest of them.
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
    dotted = firmest(base).mark_line(color=OTHER, strokeWidth=1, strokeDash=[1, 3])
    return [dotted, *lines(each, color=SOFT)]


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
        rows_of(base, series).mark_rule(**look).encode(color=LAYOUT_COLOUR, **ends)
        for series, look in INTERVALS.items()
    ]


def halo_text(base: alt.Chart, *, colour: str | alt.Color, **mark: Any) -> list[alt.Chart]:
    """Text over a wide stroke in the surface's colour, so that it stays readable over lines."""
    halo = base.mark_text(color=SURFACE, stroke=SURFACE, strokeWidth=5, strokeJoin="round", **mark)
    if isinstance(colour, str):
        return [halo, base.mark_text(color=colour, **mark)]
    return [halo, base.mark_text(**mark).encode(color=colour)]


def over_gpus(field: str = "world_size:Q", *, padding: int = 30, ticks: str = "sizes_") -> alt.X:
    """The axis of GPU counts: log 2, a tick at every size that the parameter `ticks` lists.

    Labels that would touch are dropped.
    """
    axis = alt.Axis(
        values=alt.ExprRef(ticks), format="d", grid=False, labelOverlap="greedy", labelSeparation=3
    )
    scale = log(padding, base=2)
    return alt.X(field, title="Number of {GPUs} (log scale)", scale=scale, axis=axis)


def observed_or_all(base: alt.Chart) -> alt.Chart:
    """The rows that are not predicted, or all where all are, for lines that stand on one series."""
    flagged = base.transform_calculate(seen="datum.series === 'predicted' ? 0 : 1")
    kept: alt.Chart = flagged.transform_joinaggregate(most="max(seen)").transform_filter(
        "datum.seen === datum.most"
    )
    return kept


def category(field: str, *, sort: Any = alt.Undefined) -> alt.Color:
    """Colours, with a legend, of stages, precisions, clusters or groups of ranks."""
    legend = alt.Legend(
        title=None, orient="top", symbolType="circle", symbolOpacity=1, labelLimit=220,
        labelFontSize=12,
        columns=alt.ExprRef(f"{BOX} < 470 ? 2 : 4"),
    )  # fmt: skip
    return alt.Color(field, scale=alt.Scale(range=CATEGORIES), legend=legend, sort=sort)


def tooltips(columns: str) -> list[alt.Tooltip]:
    """Tooltips of columns, separated by spaces, in the same words and formats in every chart."""
    tips = []
    for column in columns.split():
        title, number = TOOLTIPS[column]
        options: dict[str, Any] = {"format": number} if number else {}
        kind = "N" if number is None else "Q"
        tips.append(alt.Tooltip(f"{column}:{kind}", title=title, **options))
    return tips


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
