"""Marks of what is no layout: categories, parts of a whole, lines of any series."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from scaling.report.charts.marks import POINT_SIZE, POINTS, SURFACE, of
from scaling.report.charts.palette import variable

# Of the box, for the columns of a legend: the plot's own width changes while it is laid out. A file
# has no box.
_BOX = "(width && containerSize()[0] || 640)"
CATEGORIES = [variable(name) for name in ("t1", "t4", "t5", "t2", "ink-2", "t6")]


def category_points(
    base: alt.Chart, colour: Any, tooltip: Sequence[alt.Tooltip]
) -> list[alt.Chart]:
    """One layer per series, coloured by a category; hollow ones lie on a disc of the surface.

    All through the channel `color`, so that one scale gives lines and points the same colours.
    """
    layers = []
    for series, look in POINTS.items():
        rows, plain = of(base, series), {k: v for k, v in look.items() if k != "fill"}
        if not look.get("filled"):
            disc = {"size": POINT_SIZE, "shape": look["shape"], "filled": True}
            layers.append(rows.mark_point(color=SURFACE, opacity=1, **disc))
            plain["filled"] = False
        drawn = rows.mark_point(size=POINT_SIZE, opacity=1, **plain)
        layers.append(drawn.encode(color=colour, tooltip=list(tooltip)))
    return layers


def category(field: str, *, domain: Sequence[str] = (), sort: Any = alt.Undefined) -> alt.Color:
    """Colours of things that are no layouts: stages, precisions, clusters, shapes of groups."""
    shown = alt.Legend(
        title=None, orient="top", symbolType="circle", symbolOpacity=1, labelLimit=220,
        labelFontSize=12,
        columns=alt.ExprRef(f"{_BOX} < 470 ? 2 : 4"),
    )  # fmt: skip
    return alt.Color(
        field,
        scale=alt.Scale(range=CATEGORIES, domain=list(domain) or alt.Undefined),
        legend=shown,
        sort=sort,
    )


def part_colour(parts: list[str], ramp: str, table: str) -> alt.Color:
    """Colours of the parts of a whole, from their own ramp of the palette, with a legend.

    Without rows of `table` there is no legend to be seen (one without values has no size).
    """
    shown = alt.ExprRef(f"length(data('{table}')) ? 1 : 0")
    return alt.Color(
        "part:N",
        scale=alt.Scale(
            domain=parts, range=[variable(f"{ramp}{n + 1}") for n in range(len(parts))]
        ),
        legend=alt.Legend(
            title=None, orient="top", symbolType="square", labelLimit=200,
            labelFontSize=alt.ExprRef(f"{_BOX} < 470 ? 11 : 12"),
            labelOpacity=shown, symbolOpacity=shown,
            columns=alt.ExprRef(f"{_BOX} < 470 ? 2 : {_BOX} < 760 ? 3 : 6"),
        ),
    )  # fmt: skip
