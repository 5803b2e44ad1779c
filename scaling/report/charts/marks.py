"""The grammar of every chart: how a measured, a published and a predicted value look.

Python shapes the rows of a chart. Vega-Lite only places them, so a specification is the same for
every selection. Colours are names of the palette. Words in braces (`{GPUs}`) are filled in when
the chart is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from scaling.report.charts.palette import LAYOUTS, RAMPS, variable
from scaling.report.tables import Record

INK, SOFT, FAINT = variable("ink"), variable("ink-2"), variable("ink-3")
SURFACE, OTHER = variable("surface"), variable("c-other")
ACCENT, WARN, BAD = variable("accent"), variable("warn"), variable("bad")

WIDTH = 480  # px of the plot; the page scales a chart to its column
SHAPES = {
    "measured": "circle", "extended": "square", "published": "circle", "predicted": "diamond",
}  # fmt: skip
_SHAPE = alt.Shape(
    "source:N", legend=None, scale=alt.Scale(domain=list(SHAPES), range=list(SHAPES.values()))
)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart of one selection: its title, and the rows of each list that it reads.

    `panel` names one of several drawings of a chart.
    """

    title: str
    rows: dict[str, list[Record]]
    sizes: list[int] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    panel: str = ""


_channels: Any = alt  # its constructors of values are untyped


def fixed(channel: str, at: float | str) -> Any:
    """One place for all rows: `XValue` in pixels or a word such as `width`, `XDatum` on the scale.

    `x=alt.value(0)` means the same, but altair then compares it with every class it knows.
    """
    return getattr(_channels, channel)(at)


LEFT, RIGHT = fixed("XValue", 0), fixed("XValue", "width")
ACROSS: dict[str, Any] = {"x": LEFT, "x2": fixed("X2Value", "width")}  # the whole plot
UPRIGHT: dict[str, Any] = {"y": fixed("YValue", 0), "y2": fixed("Y2Value", "height")}
AS_STATED: dict[str, Any] = {"scale": None, "legend": None}  # the row holds the colour
DASHED = alt.StrokeDash("dash:N", **AS_STATED)

_BILLIONS = (
    "abs(datum.value) < 1 ? format(datum.value, '~g')"
    " : replace(format(datum.value, '~s'), 'G', 'B')"
)
# Labels `0`, `0.5`, `500k`, `2B`; d3 alone would print `0k`, `500m` and `2G`.
AMOUNTS = alt.Axis(labelExpr=_BILLIONS, tickCount=5)
FROM_ZERO = alt.Scale(domainMin=0, nice=True)  # amounts start at 0


def rows(name: str = "rows") -> alt.Chart:
    """A chart of one of the lists of rows that the chart's function makes."""
    return alt.Chart(alt.NamedData(name))


def look(source: str, slot: int) -> Record:
    """The look of a mark, by columns: filled where it was measured, else hollow.

    Its interval is thin where it ran, wide and pale where it is predicted.
    """
    colour = LAYOUTS[slot - 1]
    thick, pale = (7, 0.25) if source == "predicted" else (1.5, 1)
    fill = colour if source == "measured" else SURFACE
    return {"colour": colour, "fill": fill, "thick": thick, "pale": pale}


def dash(*sources: str) -> list[int]:
    """The dashes of a line, for its column `dash`: none unless an end is predicted."""
    return [4, 3] if "predicted" in sources else [1, 0]


def log(padding: int, **scale: Any) -> alt.Scale:
    """A log scale from the first value to the last, with `padding` pixels at both ends."""
    return alt.Scale(type="log", nice=False, padding=padding, **scale)


def over_gpus(field: str = "size:Q", *, padding: int = 30) -> alt.X:
    """The axis of GPU counts: log 2, a tick at every size that the parameter `sizes` lists."""
    axis = alt.Axis(
        values=alt.ExprRef("sizes"), format="d", grid=False, labelOverlap="greedy",
        labelSeparation=3,
    )  # fmt: skip
    scale = log(padding, base=2)
    return alt.X(field, title="Number of {GPUs} (log scale)", scale=scale, axis=axis)


def of_sizes() -> alt.Y:
    """A row for each number of GPUs."""
    axis = alt.Axis(domain=False, ticks=False, grid=False)
    return alt.Y("size:O", title="Number of {GPUs}", axis=axis)


def points(base: alt.Chart) -> alt.Chart:
    """Points whose shape says the source and whose label is column `tip`."""
    drawn: alt.Chart = base.mark_point(size=70, opacity=1, strokeWidth=1.75).encode(
        shape=_SHAPE, stroke=alt.Stroke("colour:N", **AS_STATED),
        fill=alt.Fill("fill:N", **AS_STATED), description=alt.Description("tip:N"),
    )  # fmt: skip
    return drawn


def halo_text(base: alt.Chart, text: str, *, colour: str = INK, **mark: Any) -> list[alt.Chart]:
    """Text over a wide stroke in the surface's colour, so that it stays readable over lines."""
    words = base.encode(text=alt.Text(f"{text}:N"))
    halo: dict[str, Any] = {
        "stroke": SURFACE,
        "strokeWidth": 4,
        "strokeJoin": "round",
        "color": SURFACE,
    }
    return [
        words.mark_text(aria=False, **halo, **mark),
        words.mark_text(aria=False, color=colour, **mark),
    ]


def parts(names: Sequence[str], ramp: str) -> alt.Color:
    """Colours of the parts of a whole, with a legend of those that the parameter `parts` lists."""
    legend = alt.Legend(
        title=None,
        orient="top",
        symbolType="square",
        values=alt.ExprRef("parts"),
        columns=3,
        columnPadding=40,
    )
    scale = alt.Scale(domain=list(names), range=RAMPS[ramp][: len(names)])
    return alt.Color("part:N", scale=scale, legend=legend)


def finish(*layers: alt.Chart, height: int | alt.Step) -> alt.LayerChart:
    """Layers as one chart, with the parameters that are set when it is drawn."""
    parameters = {"sizes": [1, 2], "parts": []}
    return alt.LayerChart(
        layer=list(layers), width=WIDTH, height=height,
        params=[alt.VariableParameter(name=name, value=of) for name, of in parameters.items()],
    )  # fmt: skip
