"""Charts say what their tables can carry, in the grammar of the marks."""

import json
import re

import pytest

from scaling.report.charts.charts import CHARTS
from scaling.report.charts.marks import INTERVALS, POINTS, SEGMENTS
from scaling.report.charts.palette import COLOURS
from scaling.report.charts.svg import bare, datasets
from scaling.report.tables import COLUMNS
from scaling.report.text.captions import read_caption
from tests.report.conftest import REPORTS

CAPTIONS = REPORTS / "captions"


def walk(value):
    """Every dictionary of a specification."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from walk(part)
    elif isinstance(value, list):
        for part in value:
            yield from walk(part)


def layers(name):
    return bare(CHARTS[name])["layer"]


def test_every_chart_has_a_caption_and_every_caption_a_chart():
    assert {path.stem for path in CAPTIONS.glob("*.md")} == set(CHARTS)


@pytest.mark.parametrize("name", CHARTS)
def test_captions_start_with_what_somebody_hears_who_cannot_see(name):
    caption = read_caption(CAPTIONS / f"{name}.md")
    assert caption.alt.endswith(".")
    assert len(caption.text) <= 3 * 76 + 40


@pytest.mark.parametrize("name", CHARTS)
def test_every_specification_is_valid_vega_lite(name):
    CHARTS[name].build().to_dict(validate=True)


@pytest.mark.parametrize("name", CHARTS)
def test_the_page_shows_every_chart_once(name):
    page = (REPORTS / "page" / "page.html.j2").read_text(encoding="utf-8")
    assert page.count(f'data-chart="{name}"') == 1


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_reads_only_tables_and_columns_the_page_holds(name):
    chart, specification = CHARTS[name], bare(CHARTS[name])
    assert datasets(specification) <= set(COLUMNS)
    assert chart.needs in COLUMNS[chart.table]
    calculated = {
        word
        for part in walk(specification)
        for word in ([part["as"]] if isinstance(part.get("as"), str) else [])
    }
    known = calculated | {column for columns in COLUMNS.values() for column in columns}
    used = {part["field"] for part in walk(specification) if isinstance(part.get("field"), str)}
    used |= set(re.findall(r"datum\.([a-z_]+)", json.dumps(specification))) - {"value"}
    assert used <= known


@pytest.mark.parametrize("name", CHARTS)
def test_colours_come_from_the_palette_only(name):
    text = json.dumps(bare(CHARTS[name]))
    assert not re.findall(r"#[0-9a-fA-F]{6}|\bblack\b|\bred\b", text)
    assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= set(COLOURS["light"])


@pytest.mark.parametrize("name", ["throughput", "throughput_per_gpu", "mfu", "flop_rate"])
def test_series_decide_the_mark(name):
    drawn = {}
    for layer in layers(name):
        for step in layer.get("transform", []):
            found = re.search(r"series === '(\w+)'", str(step.get("filter")))
            if found and layer["mark"]["type"] == "point":
                drawn[found.group(1)] = layer["mark"]
    assert drawn.keys() == POINTS.keys()
    assert (drawn["measured"]["shape"], drawn["measured"]["filled"]) == ("circle", True)
    assert (drawn["published"]["shape"], drawn["published"]["fill"]) == ("circle", "var(--surface)")
    assert (drawn["predicted"]["shape"], drawn["predicted"]["fill"]) == (
        "diamond",
        "var(--surface)",
    )


@pytest.mark.parametrize("name", ["throughput", "throughput_per_gpu", "mfu", "flop_rate"])
def test_predicted_lines_are_dashed_and_observed_ones_solid(name):
    dashes = {
        str(step["filter"]): layer["mark"].get("strokeDash")
        for layer in layers(name)
        if layer["mark"]["type"] == "line"
        for step in layer.get("transform", [])
        if "style" in str(step.get("filter"))
    }
    assert dashes == {
        "datum.style === 'observed'": None,
        "datum.style === 'predicted'": [4, 3],
    }


def test_the_vocabulary_knows_the_same_series_everywhere():
    assert POINTS.keys() == INTERVALS.keys() == SEGMENTS.keys()


def test_throughput_has_its_interval_and_the_ideal_line():
    fields = [
        (layer["mark"]["type"], part["field"])
        for layer in layers("throughput")
        for part in walk(layer["encoding"])
        if isinstance(part.get("field"), str)
    ]
    assert ("rule", "tokens_per_s_low") in fields
    assert ("rule", "tokens_per_s_high") in fields
    assert ("line", "ideal_tokens_per_s") in fields


@pytest.mark.parametrize("name", ["throughput_per_gpu", "mfu", "flop_rate", "memory"])
def test_axes_of_amounts_start_at_zero(name):
    assert any(part.get("domainMin") == 0 for part in walk(bare(CHARTS[name])))


@pytest.mark.parametrize("name", ["layout_ranking", "memory"])
def test_failures_are_hatched_and_have_no_number(name):
    hatched = [layer for layer in layers(name) if layer["mark"].get("fill") == "url(#hatch)"]
    assert len(hatched) == 1
    assert {"filter": "datum.outcome !== 'ok'"} in hatched[0]["transform"]
    fields = {part.get("field") for part in walk(hatched[0]["encoding"])}
    assert not fields & {"tokens_per_s", "memory"}
