"""Charts as specifications, as SVG and PNG files, and the script that draws them on the page."""

import functools
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import altair as alt
import vl_convert
from altair.utils.schemapi import debug_mode

from scaling.report.charts.charts import ALL, CHARTS, Chart, rows_for
from scaling.report.charts.palette import CONFIG, in_theme
from scaling.report.tables import Tables
from scaling.report.text import fill_words

VEGA_LITE = alt.SCHEMA_VERSION.removeprefix("v").rsplit(".", 1)[0]
WIDTH = 640  # px; on the page a chart is as wide as its box
_TITLE_CHARACTERS, _LINE_CHARACTERS = 70, 100  # of a line at that width

SERIES_KEY = {
    "measured": "● measured",
    "extended": "□ extended from short steps",
    "published": "○ published by others",
    "predicted": "◇ predicted (dashed lines)",
}


@functools.cache
def bundle() -> str:
    """Vega and vegaEmbed as one JavaScript module.

    Bundling takes more than a second and holds Python's lock, so it runs in a process of its own: a
    thread that waits here leaves the caller free to read tables and build charts.
    """
    program = (
        "import sys, vl_convert\n"
        'sys.stdout.write(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", '
        "sys.argv[1]))"
    )
    bundled = subprocess.run(
        [sys.executable, "-c", program, VEGA_LITE],
        check=True, stdout=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    return bundled.stdout


def chart_files(tables: Tables, story: dict[str, Any], study: str) -> Iterator[tuple[str, str]]:
    """Names (without folder and ending) and texts of the SVG files of one setting.

    A chart of one size is written for the largest that ran; readers save the others on the page.
    """
    for name, sizes in story["drawn"][ALL].items():
        chart = CHARTS[name]
        size = str(story["shown_size"]) if chart.per_size else ""
        for panel in sizes.get(size, []):
            file_name = "-".join([name, *filter(None, (panel, size))])
            yield file_name, svg(chart, tables, story, study, size, panel)


def svg(
    chart: Chart, tables: Tables, story: dict[str, Any], study: str, size: str, panel: Any
) -> str:
    """One chart of one setting in the light theme, with its title, study, series and intervals."""
    specification = chart_specification(chart)
    specification |= {"config": CONFIG, "width": WIDTH, "background": "white"}
    specification["title"] = _heading(chart, story, study, size, panel)
    text = in_theme(fill_words(json.dumps(specification), story["words"]), "light")
    filled = json.loads(text)
    filled["datasets"] = {
        name: rows_for(tables, name, chart, size, panel) for name in table_names(filled)
    }
    for parameter in filled["params"]:
        parameter["value"] = story["parameters"][parameter["name"]]
    return str(vl_convert.vegalite_to_svg(filled, vl_version=VEGA_LITE))


def chart_specification(chart: Chart) -> dict[str, Any]:
    """The chart's Vega-Lite without data, theme and schema, which page and file add."""
    specification: dict[str, Any] = json.loads(_specification(chart.name))
    return specification


@functools.cache
def _specification(name: str) -> str:
    """Cached, because building takes a tenth of a second and every setting draws it.

    Validating would take longer; the tests do it.
    """
    with debug_mode(False):  # do not validate parts either
        specification = CHARTS[name].build().to_dict(validate=False)
    del specification["config"], specification["$schema"]
    return json.dumps(specification)


def _heading(
    chart: Chart, story: dict[str, Any], study: str, size: str, panel: Any
) -> dict[str, Any]:
    """What a file must say without a page around it: title, study, series, level of intervals."""
    at_size = story["at_size"].get(size, {})
    title = at_size.get(chart.section) or story["titles"].get(chart.section) or chart.name
    place = f"{study}: {story['model']} on {story['cluster']}, {story['batch']}"
    if panel is not None:
        place += f"; {panel}"
    key = "; ".join(SERIES_KEY[series] for series in story["series"])
    level = f"{key}; intervals: {story['words']['interval']}"
    return {
        "text": _wrapped(title, _TITLE_CHARACTERS),
        "subtitle": [*_wrapped(place, _LINE_CHARACTERS), *_wrapped(level, _LINE_CHARACTERS)],
        "anchor": "start", "frame": "group",
        "fontSize": 14, "subtitleFontSize": 11, "subtitleColor": "var(--ink-2)",
        "color": "var(--ink)", "offset": 12,
    }  # fmt: skip


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), width, break_long_words=False, break_on_hyphens=False
    ) or [""]


def png(text: str) -> bytes:
    """An SVG file as PNG, two pixels for each of its own: sharp in a paper's column."""
    return bytes(vl_convert.svg_to_png(text, scale=2))


def table_names(specification: Any) -> set[str]:
    """The tables that a specification reads."""
    if isinstance(specification, list):
        return set().union(*(table_names(part) for part in specification))
    if not isinstance(specification, dict):
        return set()
    data = specification.get("data")
    named = {data["name"]} if isinstance(data, dict) and "name" in data else set()
    return named.union(*(table_names(part) for part in specification.values()))
