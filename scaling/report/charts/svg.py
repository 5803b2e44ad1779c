"""Charts as SVG and PNG files, for papers and slides: the page's specifications with their data."""

import functools
import json
from collections.abc import Iterator
from typing import Any

import vl_convert

from scaling.report.charts.charts import CHARTS, Chart
from scaling.report.charts.marks import CONFIG
from scaling.report.charts.palette import in_theme
from scaling.report.charts.vega import VEGA_LITE
from scaling.report.tables import Record, Tables
from scaling.report.text.words import filled

BUDGET = 12.0  # log10 of the tokens of a run, until the reader says otherwise
WIDTH = 640  # px; the page gives charts the width of their box


def chart_files(tables: Tables, story: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names (without folder and ending) and texts of the SVG files of one setting.

    A chart of one size is written for the largest that ran; the page saves the others.
    """
    largest = story["shown_size"]
    for chart in CHARTS.values():
        size = largest if chart.per_size else None
        rows = rows_of(chart, tables, size)
        if not rows:
            continue
        suffix = "" if size is None else f"-{size}"
        # the models of a study are settings, each with files of its own
        panels = {row.get(chart.panel or "") for row in rows}
        for panel in sorted(panels, key=str):
            name = chart.name if panel is None else f"{chart.name}-{panel}"
            yield f"{name}{suffix}", svg(chart, tables, story, size, panel)


def rows_of(chart: Chart, tables: Tables, size: int | None) -> list[Record]:
    """The rows that give the chart something to draw; none if another chart says the same."""
    if chart.unless and any(row[chart.unless] is not None for row in tables[chart.table]):
        return []
    return [
        row
        for row in tables[chart.table]
        if row[chart.needs] is not None
        and size in (None, row.get("world_size", size))
        and all(row[column] in values for column, values in chart.where.items())
    ]


def svg(
    chart: Chart, tables: Tables, story: dict[str, Any], size: int | None, panel: str | None = None
) -> str:
    """One chart of one setting in the light theme; of a chart of panels one of them."""
    specification = bare(chart)
    specification |= {"config": CONFIG, "width": WIDTH, "background": "white"}
    text = in_theme(filled(json.dumps(specification), story["words"]), "light")
    ready = json.loads(text)
    ready["datasets"] = {
        name: [
            row
            for row in tables[name]
            if size in (None, row.get("world_size", size))
            and (panel is None or row.get(str(chart.panel), panel) == panel)
        ]
        for name in datasets(ready)
    }
    stated = parameters(story)
    for parameter in ready["params"]:
        parameter["value"] = stated.get(parameter["name"], parameter.get("value"))
    return str(vl_convert.vegalite_to_svg(ready, vl_version=VEGA_LITE))


def png(text: str) -> bytes:
    """An SVG file as PNG, two pixels for each of its own: sharp in a paper's column."""
    return bytes(vl_convert.svg_to_png(text, scale=2))


def parameters(story: dict[str, Any]) -> dict[str, Any]:
    """What a setting says for the charts' parameters (scaling.report.charts.marks.PARAMETERS)."""
    return {
        "sizes_": story["sizes"],
        "slots_": [slot for slot, _ in story["coloured"]],
        "names_": story["names"],
        "budget_": BUDGET,
    }


def bare(chart: Chart) -> dict[str, Any]:
    """The specification without data, theme and schema, which page and file add."""
    found: dict[str, Any] = json.loads(_specification(chart.name))
    return found


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
