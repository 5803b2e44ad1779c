"""Colours by name, light and dark, and the look of all charts (`CONFIG`, of Vega-Lite).

The colours are the page's CSS variables; files get their values.
"""

from collections.abc import Mapping
from typing import Any, Literal

Theme = Literal["light", "dark"]

LAYOUT_SLOTS = 6  # other layouts are grey: colour-blind readers could not tell more apart

_LIGHT = {
    "surface": "#ffffff", "page": "#f7f7f5", "raised": "#f0f0ed",
    "line": "#dddcd7", "grid": "#ebeae6",
    "ink": "#1c1d1f", "ink-2": "#56585d", "ink-3": "#8d9094",
    "accent": "#0b62a4", "warn": "#a04a00", "bad": "#b3261e",
    "c1": "#2e73dd", "c2": "#7d1022", "c3": "#00735f",
    "c4": "#bd489f", "c5": "#8b5100", "c6": "#4b2e83", "c-other": "#727579",
    "hatch": "#c6c4bd", "hatch-bg": "#f3f2ef", "note": "#fff4d6", "note-ink": "#5c4400",
    "note-line": "#e8cf86",
    "s1": "#eef4fa", "s2": "#d3e4f3", "s3": "#a9cbe8", "s4": "#337ab4", "s5": "#1f69a6",
    "s6": "#0b4376", "s-ink": "#ffffff",
    "p1": "#0b3c6f", "p2": "#2f78b7", "p3": "#8fbfe3", "p4": "#e39b4a", "p5": "#c9c7c0",
    "p6": "#6b6d70",
    "t1": "#1f5fae", "t2": "#e08a2e", "t3": "#f6d3a8", "t4": "#c2500a", "t5": "#6b2f73",
    "t6": "#c9c7c0", "t-ink": "#ffffff", "t-ink2": "#1c1d1f",
}  # fmt: skip
_DARK = {
    "surface": "#17191c", "page": "#101214", "raised": "#202327",
    "line": "#33373c", "grid": "#272a2f",
    "ink": "#eceef0", "ink-2": "#aab0b6", "ink-3": "#7b8188",
    "accent": "#6db5f2", "warn": "#f0a35e", "bad": "#ff8a80",
    "c1": "#53b1e3", "c2": "#de751c", "c3": "#50a587",
    "c4": "#fdc6fd", "c5": "#e0c066", "c6": "#8d7aff", "c-other": "#8b9299",
    "hatch": "#3d4147", "hatch-bg": "#1d2024", "note": "#3a2f10", "note-ink": "#f3dc9a",
    "note-line": "#6a5520",
    "s1": "#1c2733", "s2": "#1f3a55", "s3": "#235382", "s4": "#3f86c4", "s5": "#74b4ea",
    "s6": "#b7daf7", "s-ink": "#101214",
    "p1": "#c4e1f9", "p2": "#6db5f2", "p3": "#2f6ea6", "p4": "#f0a35e", "p5": "#555a61",
    "p6": "#aab0b6",
    "t1": "#6db5f2", "t2": "#f0a35e", "t3": "#f8dcb6", "t4": "#d2602c", "t5": "#8f62dc",
    "t6": "#555a61", "t-ink": "#101214", "t-ink2": "#101214",
}  # fmt: skip
COLOURS: Mapping[Theme, Mapping[str, str]] = {"light": _LIGHT, "dark": _DARK}


def variable(name: str) -> str:
    """A colour by name, as charts and page write it: `var(--ink)`.

    Raises:
        KeyError: a name the palette does not have.
    """
    if name not in _LIGHT:
        raise KeyError(f"no colour {name!r} in the palette")
    return f"var(--{name})"


LAYOUTS = [*(variable(f"c{slot}") for slot in range(1, LAYOUT_SLOTS + 1)), variable("c-other")]
# Light to dark, or part by part: shares of the fastest, memory, time.
RAMPS = {ramp: [variable(f"{ramp}{step}") for step in range(1, 7)] for ramp in "spt"}

FONT = 'Inter, "Segoe UI", Roboto, "Helvetica Neue", Arial, system-ui, sans-serif'

_SOFT, _LINE = variable("ink-2"), variable("line")
CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "transparent",
    "lineBreak": "|",
    "padding": {"left": 2, "right": 4, "top": 6, "bottom": 2},
    "view": {"stroke": None},
    "axis": {
        "labelColor": _SOFT, "titleColor": _SOFT, "tickColor": _LINE,
        "domainColor": _LINE, "gridColor": variable("grid"), "labelFontSize": 13,
        "titleFontSize": 13, "titleFontWeight": 400, "titlePadding": 14, "labelPadding": 5,
        "tickSize": 4,
    },
    "axisY": {"domain": False, "ticks": False, "grid": True},
    "axisX": {"grid": False},
    "legend": {"labelColor": _SOFT, "labelFontSize": 13},
    "text": {"font": FONT, "fontSize": 13},
}  # fmt: skip

# The palette of each theme as CSS declarations.
CSS = {
    theme: f"color-scheme:{theme};" + "".join(f"--{name}:{value};" for name, value in of.items())
    for theme, of in COLOURS.items()
}
