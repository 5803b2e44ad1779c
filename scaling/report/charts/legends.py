"""Legends and tooltips: colours of categories and parts, the same tooltip words in every chart."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from scaling.report.charts.marks import POINT_SIZE, POINTS, SURFACE, rows_of
from scaling.report.charts.palette import variable

# Width of the chart's box on the page (a file has none), which decides the columns of a legend: the
# plot's own width changes while it is laid out.
_BOX = "(width && containerSize()[0] || 640)"
CATEGORIES = [variable(name) for name in ("t1", "t4", "t5", "t2", "ink-2", "t6")]


def category_points(
    base: alt.Chart, colour: Any, tooltip: Sequence[alt.Tooltip]
) -> list[alt.Chart]:
    """One layer of points per series, coloured by a category.

    Hollow points lie on a disc in the surface's colour. All use the channel `color`, so that lines
    and points share one scale.
    """
    layers = []
    for series, look in POINTS.items():
        rows, mark = rows_of(base, series), {k: v for k, v in look.items() if k != "fill"}
        if not look.get("filled"):
            disc = {"size": POINT_SIZE, "shape": look["shape"], "filled": True}
            layers.append(rows.mark_point(color=SURFACE, opacity=1, **disc))
            mark["filled"] = False
        points = rows.mark_point(size=POINT_SIZE, opacity=1, **mark)
        layers.append(points.encode(color=colour, tooltip=list(tooltip)))
    return layers


def category(field: str, *, sort: Any = alt.Undefined) -> alt.Color:
    """Colours, with a legend, of stages, precisions, clusters or groups of ranks."""
    legend = alt.Legend(
        title=None, orient="top", symbolType="circle", symbolOpacity=1, labelLimit=220,
        labelFontSize=12,
        columns=alt.ExprRef(f"{_BOX} < 470 ? 2 : 4"),
    )  # fmt: skip
    return alt.Color(field, scale=alt.Scale(range=CATEGORIES), legend=legend, sort=sort)


def part_colour(parts: list[str], ramp: str, table: str) -> alt.Color:
    """Colours of the parts of a whole, from the palette's `ramp`, with a legend.

    The legend is transparent where `table` has no rows, because an empty one has no size.
    """
    opacity = alt.ExprRef(f"length(data('{table}')) ? 1 : 0")
    return alt.Color(
        "part:N",
        scale=alt.Scale(
            domain=parts, range=[variable(f"{ramp}{n + 1}") for n in range(len(parts))]
        ),
        legend=alt.Legend(
            title=None, orient="top", symbolType="square", labelLimit=200,
            labelFontSize=alt.ExprRef(f"{_BOX} < 470 ? 11 : 12"),
            labelOpacity=opacity, symbolOpacity=opacity,
            columns=alt.ExprRef(f"{_BOX} < 470 ? 2 : {_BOX} < 760 ? 3 : 6"),
        ),
    )  # fmt: skip


# By column: its words, and its number format (None: text).
_TOOLTIPS = {
    "world_size": ("{GPUs}", "d"), "layout_name": ("layout", None),
    "advised_layout_name": ("advised", None), "series": ("value is", None),
    "outcome": ("outcome", None), "tokens_per_s": ("tokens/s", ",.4~s"),
    "tokens_per_s_low": ("{interval} from", ",.4~s"),
    "tokens_per_s_high": ("{interval} to", ",.4~s"),
    "tokens_per_s_per_gpu": ("tokens/s per {GPU}", ",.4~s"),
    "efficiency": ("share of ideal", ".1%"), "share_of_best": ("of the fastest", ".1%"),
    "mfu": ("MFU", ".1%"), "runner_up_layout_name": ("runner-up", None),
    "elasticity": ("elasticity", ".2f"), "tried": ("layouts tried", "d"),
    "failed": ("of these failed", "d"), "text": ("best of the cell", None),
    "status": ("outcome", None), "model": ("model", None), "cluster": ("cluster", None),
    "kind": ("collective", None), "nodes": ("nodes", "d"), "ranks": ("ranks of a group", "d"),
    "at_once": ("groups at once", "d"), "message_bytes": ("bytes", ",d"), "rate": ("GB/s", ".4~g"),
    "precision": ("precision", None), "m": ("m", "d"), "n": ("n", "d"), "k": ("k", "d"),
    "flop_per_s": ("FLOP/s", ".4~s"), "probes": ("probes", "d"),
    "stack_fingerprint": ("software stack", None),
}  # fmt: skip


def tooltips(*columns: str) -> list[alt.Tooltip]:
    """Tooltips of table columns, in the same words and formats in every chart."""
    tips = []
    for column in columns:
        title, number = _TOOLTIPS[column]
        options: dict[str, Any] = {} if number is None else {"format": number}
        kind = "N" if number is None else "Q"
        tips.append(alt.Tooltip(f"{column}:{kind}", title=title, **options))
    return tips
