"""Charts as SVG and PNG files, for papers and slides, and the scripts that draw them on a page."""

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import altair as alt
import vl_convert

from scaling.report.charts.charts import CHARTS, Chart
from scaling.report.charts.marks import CONFIG
from scaling.report.charts.palette import in_theme
from scaling.report.charts.selection import ALL, rows_for
from scaling.report.tables import Tables
from scaling.report.text.words import filled

VEGA_LITE = alt.SCHEMA_VERSION.removeprefix("v").rsplit(".", 1)[0]
WIDTH = 640  # px; the page gives charts the width of their box
_TITLE_CHARACTERS, _LINE_CHARACTERS = 70, 100  # of a line at that width

SERIES_KEY = {
    "measured": "● measured",
    "extended": "□ extended from short steps",
    "published": "○ published by others",
    "predicted": "◇ predicted (dashed lines)",
}


def chart_files(tables: Tables, story: dict[str, Any], study: str) -> Iterator[tuple[str, str]]:
    """Names (without folder and ending) and texts of the SVG files of one setting.

    A chart of one size is written for the largest that ran; the page saves the others.
    """
    for name, sizes in story["drawn"][ALL].items():
        chart = CHARTS[name]
        size = str(story["shown_size"]) if chart.per_size else ""
        for panel in sizes.get(size, []):
            words = name if panel is None else f"{name}-{panel}"
            suffix = f"-{size}" if size else ""
            yield f"{words}{suffix}", svg(chart, tables, story, study, size, panel)


def svg(
    chart: Chart, tables: Tables, story: dict[str, Any], study: str, size: str, panel: Any
) -> str:
    """One chart of one setting in the light theme, with its title, study, series and intervals."""
    specification = bare(chart)
    specification |= {"config": CONFIG, "width": WIDTH, "background": "white"}
    specification["title"] = heading(chart, story, study, size, panel)
    text = in_theme(filled(json.dumps(specification), story["words"]), "light")
    ready = json.loads(text)
    ready["datasets"] = {
        name: rows_for(tables, name, chart, size, panel) for name in datasets(ready)
    }
    stated = parameters(story)
    for parameter in ready["params"]:
        parameter["value"] = stated.get(parameter["name"], parameter.get("value"))
    return str(vl_convert.vegalite_to_svg(ready, vl_version=VEGA_LITE))


def heading(
    chart: Chart, story: dict[str, Any], study: str, size: str, panel: Any
) -> dict[str, Any]:
    """What a file says that has no page around it: title, study, series key, level of intervals."""
    per_size = story["at_size"].get(size, {})
    title = per_size.get(chart.section) or story["titles"].get(chart.section) or chart.name
    place = f"{study}: {story['model']} on {story['cluster']}, {story['batch']}"
    if panel is not None:
        place += f"; {panel}"
    key = "; ".join(SERIES_KEY[series] for series in story["series"])
    level = f"{key}; intervals: {story['words']['interval']}"
    lines = [*_wrapped(place, _LINE_CHARACTERS), *_wrapped(level, _LINE_CHARACTERS)]
    return {
        "text": _wrapped(title, _TITLE_CHARACTERS), "subtitle": lines, "anchor": "start",
        "frame": "group",
        "fontSize": 14, "subtitleFontSize": 11, "subtitleColor": "var(--ink-2)",
        "color": "var(--ink)", "offset": 12,
    }  # fmt: skip


def _wrapped(text: str, most: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) >= most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def png(text: str) -> bytes:
    """An SVG file as PNG, two pixels for each of its own: sharp in a paper's column."""
    return bytes(vl_convert.svg_to_png(text, scale=2))


def parameters(story: dict[str, Any]) -> dict[str, Any]:
    """What a setting says for the charts' parameters (scaling.report.charts.marks.PARAMETERS)."""
    sizes = story["sizes"]
    largest = max(sizes, default=1)
    return {
        "sizes_": sizes,
        "beyond_": [*sizes, *(largest * 2**power for power in range(1, 6))],
        "tokens_": story["tokens"],
        "price_": story["price"],
    }


def bare(chart: Chart) -> dict[str, Any]:
    """The specification without data, theme and schema, which page and file add."""
    specification: dict[str, Any] = json.loads(_specification(chart.name))
    return specification


@functools.cache
def _specification(name: str) -> str:
    """Building takes a quarter of a second, and every setting draws it; the tests validate it."""
    specification = CHARTS[name].build().to_dict(validate=False)
    del specification["config"], specification["$schema"]
    return json.dumps(specification)


def datasets(specification: Any) -> set[str]:
    """The tables a specification names."""
    if isinstance(specification, list):
        return set().union(*(datasets(part) for part in specification))
    if not isinstance(specification, dict):
        return set()
    named = specification.get("data")
    own = {named["name"]} if isinstance(named, dict) and "name" in named else set()
    return own.union(*(datasets(part) for part in specification.values()))


_PROGRAM = """
import sys, vl_convert
sys.stdout.write(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", sys.argv[1]))
"""


@functools.cache
def bundle() -> str:
    """The module's text.

    Bundling takes more than a second and holds Python's lock all the time, so it runs in a process
    of its own: a thread that waits here leaves the caller free to read tables and build charts.
    """
    bundled = subprocess.run(
        [sys.executable, "-c", _PROGRAM, VEGA_LITE],
        check=True, stdout=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    return bundled.stdout
