"""Charts as specifications, as SVG and PNG files, and the script that draws them on the page."""

import functools
import hashlib
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from altair.utils.schemapi import debug_mode

from scaling.record.files import write_bytes, write_text
from scaling.report.charts.charts import ALL, CHARTS, Chart
from scaling.report.charts.palette import COLOURS, CONFIG, HATCH
from scaling.report.tables import Tables

VEGA_LITE = alt.SCHEMA_VERSION.removeprefix("v").rsplit(".", 1)[0]
WIDTH = 640  # px; on the page a chart is as wide as its box
LIGHT = COLOURS["light"]
_LONGEST_NAME = 120  # of the 255 that a file system allows
_TITLE_CHARACTERS, _LINE_CHARACTERS = 70, 100  # of a line at that width


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


@functools.cache
def specifications() -> dict[str, str]:
    """By chart its Vega-Lite as JSON, without data, theme and schema, which page and file add.

    Cached, because building takes a tenth of a second for each. Validating would take longer; the
    tests do it.
    """
    texts = {}
    for name, chart in CHARTS.items():
        with debug_mode(False):  # do not validate parts either
            specification = chart.build().to_dict(validate=False)
        del specification["config"], specification["$schema"]
        texts[name] = json.dumps(specification)
    return texts


def chart_files(tables: Tables, story: dict[str, Any], study: str) -> dict[str, str]:
    """The SVG files of one setting in the light theme, by name (without folder and ending).

    A chart of one size is written for the largest that ran; readers save the others on the page.
    """
    files = {}
    look = {"config": json.loads(in_light(json.dumps(CONFIG))), "background": "white"}
    for name, sizes in story["drawn"][ALL].items():
        chart = CHARTS[name]
        size = str(story["shown_size"]) if chart.per_size else ""
        for panel in sizes.get(size, []):
            filled = json.loads(fill_words(in_light(specifications()[name]), story["words"]))
            filled |= look | {"width": WIDTH, "title": _heading(chart, story, study, size, panel)}
            filled["datasets"] = {  # charts.js (`rowsFor`) chooses the same rows
                table: [
                    row
                    for row in tables[table]
                    if (not size or str(row.get("world_size", size)) == size)
                    and (panel is None or row.get(chart.panel or "", panel) == panel)
                ]
                for table in table_names(filled)
            }
            for parameter in filled["params"]:
                parameter["value"] = story["parameters"][parameter["name"]]
            svg = str(vl_convert.vegalite_to_svg(filled, vl_version=VEGA_LITE))
            files["-".join([name, *filter(None, (panel, size))])] = svg
    return files


def fill_words(text: str, words: Mapping[str, str]) -> str:
    """`text` with `{GPU}`, `{GPUs}` and other `words` filled in; other braces are left alone."""
    for name, word in words.items():
        text = text.replace("{" + name + "}", word)
    return text


def _heading(
    chart: Chart, story: dict[str, Any], study: str, size: str, panel: Any
) -> dict[str, Any]:
    """What a file must say without a page around it: title, study, series, level of intervals."""
    at_size = story["at_size"].get(size, {})
    title = at_size.get(chart.section) or story["titles"].get(chart.section) or chart.name
    place = f"{study}: {story['model']} on {story['cluster']}, {story['batch']}"
    if panel is not None:
        place += f"; {panel}"
    return {
        "text": _wrapped(title, _TITLE_CHARACTERS),
        "subtitle": [*_wrapped(place, _LINE_CHARACTERS), *_wrapped(story["key"], _LINE_CHARACTERS)],
        "anchor": "start", "frame": "group",
        "fontSize": 14, "subtitleFontSize": 11, "subtitleColor": LIGHT["ink-2"],
        "color": LIGHT["ink"], "offset": 12,
    }  # fmt: skip


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), width, break_long_words=False, break_on_hyphens=False
    ) or [""]


def in_light(text: str) -> str:
    """`text` with the light theme's colours in place of the page's variables and its pattern."""
    named = re.sub(r"var\(--([\w-]+)\)", lambda match: LIGHT[match.group(1)], text)
    return named.replace(HATCH, LIGHT["hatch"])


def table_names(specification: Any) -> set[str]:
    """The tables that a specification reads."""
    if isinstance(specification, list):
        return set().union(*(table_names(part) for part in specification))
    if not isinstance(specification, dict):
        return set()
    data = specification.get("data")
    named = {data["name"]} if isinstance(data, dict) and "name" in data else set()
    return named.union(*(table_names(part) for part in specification.values()))


def write_charts(
    charts_dir: Path, stories: list[dict[str, Any]], svgs: Mapping[int, Mapping[str, str]]
) -> None:
    """Write each chart as SVG and PNG, and remove those of a former report."""
    written = set()
    for told in stories:
        selection = f"{told['setting_id']}-{told['model']}-{told['cluster']}-"
        for chart, svg in svgs[told["setting_id"]].items():
            name = file_name(f"{selection}{chart}" if len(stories) > 1 else chart)
            # two pixels for each of its own: sharp in a paper's column
            png = bytes(vl_convert.svg_to_png(svg, scale=2))
            write_text(charts_dir / f"{name}.svg", svg)
            write_bytes(charts_dir / f"{name}.png", png)
            written |= {f"{name}.svg", f"{name}.png"}
    for path in (*charts_dir.glob("*.svg"), *charts_dir.glob("*.png")):
        if path.name not in written:
            path.unlink()


def file_name(words: str) -> str:
    """A safe file name, whatever the words: names of models and panels come from outside."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", words).lstrip(".") or "_"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(words.encode("utf-8", errors="replace")).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - 9]}-{digest}"
