"""Charts say what their tables can carry, in the grammar of the marks."""

import json
import re

import pytest

from scaling.report.charts.charts import ALL, CHARTS, drawable
from scaling.report.charts.marks import INTERVALS, POINTS, SEGMENTS
from scaling.report.charts.palette import COLOURS
from scaling.report.charts.svg import specifications, table_names
from scaling.report.columns import COLUMNS
from scaling.report.page.page import read_caption
from scaling.report.tables import Tables
from tests.report.conftest import REPORTS

pytestmark = pytest.mark.slow

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
    return json.loads(specifications()[name])["layer"]


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


def test_every_chart_has_a_place_on_the_page_and_every_place_a_chart():
    page = (REPORTS / "page" / "page.html.j2").read_text(encoding="utf-8")
    places = re.findall(r'call charts\("(\w+)"', page)
    assert len(places) == len(set(places))
    assert set(places) == {chart.section for chart in CHARTS.values()}


def test_every_chart_answers_a_question_that_the_grammar_names():
    grammar = (REPORTS.parent / "docs" / "report.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| \w[\w ]* \| `(\w+)` \|", grammar, re.M)
    assert sorted(named) == sorted(["decision", *CHARTS])


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_reads_only_tables_and_columns_the_page_holds(name):
    chart, specification = CHARTS[name], json.loads(specifications()[name])
    assert table_names(specification) <= set(COLUMNS)
    needed = {*chart.needs, *chart.over, *chart.where, *filter(None, [chart.panel])}
    assert needed <= set(COLUMNS[chart.table])
    calculated = {
        word
        for part in walk(specification)
        for word in ([part["as"]] if isinstance(part.get("as"), str) else part.get("as", []))
    }
    known = calculated | {column for columns in COLUMNS.values() for column in columns}
    used = {part["field"] for part in walk(specification) if isinstance(part.get("field"), str)}
    used |= set(re.findall(r"datum\.([a-z_]+)", json.dumps(specification))) - {"value"}
    assert used <= known


@pytest.mark.parametrize("name", CHARTS)
def test_colours_come_from_the_palette_only(name):
    text = json.dumps(json.loads(specifications()[name]))
    assert not re.findall(r"#[0-9a-fA-F]{6}|\bblack\b|\bred\b", text)
    assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= set(COLOURS["light"])


def test_numbers_stand_above_the_interval_and_cover_neither_it_nor_other_layouts():
    numbers = [
        layer
        for layer in layers("throughput_per_gpu")
        if layer["encoding"].get("text", {}).get("field") in ("used", "share")
    ]
    assert {layer["encoding"]["y"]["field"] for layer in numbers} == {"top"}
    assert all(layer["mark"]["dy"] < -10 for layer in numbers)


@pytest.mark.parametrize("name", ["throughput_per_gpu"])
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


@pytest.mark.parametrize("name", ["throughput_per_gpu"])
def test_predicted_lines_are_dashed_and_observed_ones_solid(name):
    dashes = {
        str(step["filter"]): layer["mark"].get("strokeDash")
        for layer in layers(name)
        if layer["mark"]["type"] == "line"
        for step in layer.get("transform", [])
        if "series" in str(step.get("filter"))
    }
    assert dashes == {
        "(datum.series === 'predicted') === false": None,
        "(datum.series === 'predicted') === true": [4, 3],
    }


@pytest.mark.parametrize("name", ["throughput_per_gpu"])
def test_no_solid_line_runs_through_a_change_of_layout(name):
    dotted = [1, 3]  # leads the eye from one layout to the next
    lines = [
        layer
        for layer in layers(name)
        if layer["mark"]["type"] == "line"
        and layer["encoding"]["y"]["field"] != "ideal_tokens_per_s"
        and layer["mark"].get("strokeDash") != dotted
    ]
    assert lines
    assert all(
        {"field": "stretch", "type": "quantitative"} in line["encoding"]["detail"] for line in lines
    )


def test_a_chart_with_one_tick_is_not_drawn(full_tables):
    mine = full_tables.of(1)
    size = mine["best"][0]["world_size"]
    records = {
        name: [row for row in rows if row.get("world_size", size) == size]
        for name, rows in mine.records.items()
    }
    assert "throughput_per_gpu" in drawable(mine)[ALL]
    one_size = drawable(Tables(records))[ALL]
    assert "throughput_per_gpu" not in one_size
    assert "layout_ranking" in one_size


def test_what_is_drawn_follows_the_series_that_is_chosen(full_tables):
    mine = full_tables.of(1)
    assert drawable(mine).keys() == {ALL, "measured"}
    published = {
        name: [row | {"series": "published"} if "series" in row else row for row in rows]
        for name, rows in mine.records.items()
    }
    both = {name: [*rows, *published[name]] for name, rows in mine.records.items()}
    assert drawable(Tables(both))["published"].keys() == drawable(mine)["measured"].keys()


def test_steps_extended_from_short_ones_are_shown_with_the_measured_ones(full_tables):
    mine = full_tables.of(1)
    short = {
        name: [row | {"series": "extended"} if "series" in row else row for row in rows]
        for name, rows in mine.records.items()
    }
    assert drawable(Tables(short)) == drawable(mine)


def test_the_vocabulary_knows_the_same_series_everywhere():
    assert POINTS.keys() == INTERVALS.keys() == SEGMENTS.keys()


@pytest.mark.parametrize("name", ["throughput_per_gpu", "memory"])
def test_axes_of_amounts_start_at_zero(name):
    assert any(part.get("domainMin") == 0 for part in walk(json.loads(specifications()[name])))


def test_failures_are_hatched_and_have_no_number():
    hatched = [
        layer for layer in layers("layout_ranking") if layer["mark"].get("fill") == "url(#hatch)"
    ]
    assert len(hatched) == 1
    assert {"filter": "datum.outcome !== 'ok'"} in hatched[0]["transform"]
    fields = {part.get("field") for part in walk(hatched[0]["encoding"])}
    assert not fields & {"tokens_per_s", "memory"}
