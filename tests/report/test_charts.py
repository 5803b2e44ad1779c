"""Charts say what their tables can carry, in the grammar of the marks."""

import dataclasses
import json
import re

import pytest

from scaling.report.charts.charts import CHARTS
from scaling.report.charts.marks import SHAPES, dash
from scaling.report.charts.svg import draw, specifications
from scaling.report.tables import Tables
from scaling.report.text import GPU_WORDS
from tests.report.conftest import REPORTS

pytestmark = pytest.mark.slow

CAPTIONS = REPORTS / "captions"


@pytest.fixture(scope="module")
def drawings(full_tables):
    """Every drawing of a model on GPUs, by chart."""
    mine = full_tables.of(2)
    return {name: chart.rows(mine) for name, chart in CHARTS.items()}


def walk(value):
    """Every dictionary of a specification."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from walk(part)
    elif isinstance(value, list):
        for part in value:
            yield from walk(part)


def test_every_chart_has_a_caption_and_every_caption_a_chart():
    assert {path.stem for path in CAPTIONS.glob("*.md")} == {*CHARTS, "layouts"}


@pytest.mark.parametrize("name", CHARTS)
def test_every_specification_is_valid_vega_lite(name):
    CHARTS[name].build().to_dict(validate=True)


def test_every_chart_answers_a_question_that_the_grammar_names():
    grammar = (REPORTS.parent / "docs" / "report.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` \|", grammar, re.M)
    assert sorted(named) == sorted(["layouts", *CHARTS])


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_reads_the_rows_that_are_made_for_it(name, drawings):
    specification = json.loads(specifications()[name])
    data = [part["data"] for part in walk(specification) if isinstance(part.get("data"), dict)]
    for drawing in drawings[name]:
        assert {one["name"] for one in data if "name" in one} == drawing.rows.keys()
        columns = {column for rows in drawing.rows.values() for row in rows for column in row}
        used = {part["field"] for part in walk(specification) if isinstance(part.get("field"), str)}
        used -= {"tip"} if not drawing.rows["rows"] else set()
        empty = {name for name, rows in drawing.rows.items() if not rows}
        assert empty or used <= columns


def test_a_measured_mark_is_filled_and_a_predicted_one_hollow_and_dashed(drawings):
    rows = drawings["throughput_per_gpu"][0].rows["rows"]
    assert all(row["fill"] == row["colour"] for row in rows)
    assert SHAPES["predicted"] != SHAPES["measured"]
    drawing = drawings["throughput_per_gpu"][0]
    for sources, dashed in ((("measured",) * 2, False), (("predicted", "measured"), True)):
        joined = [row | {"dash": dash(*sources)} for row in drawing.rows["joined"]]
        drawn = dataclasses.replace(drawing, rows={**drawing.rows, "joined": joined})
        svg = draw("throughput_per_gpu", drawn, GPU_WORDS)
        assert ('stroke-dasharray="4,3"' in svg) is dashed


def test_a_chart_that_would_have_one_tick_is_not_drawn(full_tables):
    mine = full_tables.of(2)
    size = mine["sizes"][0]["world_size"]
    one = {
        name: [row for row in rows if row.get("world_size", size) == size]
        for name, rows in mine.records.items()
    }
    one["returns"] = []
    assert CHARTS["throughput_per_gpu"].rows(Tables(one)) == []
    assert CHARTS["marginal_return"].rows(Tables(one)) == []
    assert len(CHARTS["memory"].rows(Tables(one))) == 1


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_without_data_draws_nothing(name, full_tables):
    empty = {table: [] for table in full_tables.records} | {
        "comparison_groups": full_tables["comparison_groups"][:1]
    }
    assert CHARTS[name].rows(Tables(empty)) == []


def test_a_profile_much_longer_than_the_timed_step_shows_no_split():
    part = {
        "world_size": 8, "source": "measured", "layout_name": "a", "part": "compute",
        "part_order": 0, "host_bound": None, "seconds": 1.0, "share_from": 0.0, "share_to": 1.0,
    }  # fmt: skip
    rows = CHARTS["step_bounds"].rows
    assert rows(Tables({"time_split": [part | {"profiled_s": 1.3}]})) == []
    (drawing,) = rows(Tables({"time_split": [part | {"profiled_s": 1.2}]}))
    assert drawing.title == "On 8 GPUs the whole step is compute"


def effect(**changes):
    row = {
        "shown": True, "name": "ZeRO 3, against 2", "factor": "zero_stage", "level": 0.95,
        "pairs": 9, "mean_ratio": 0.3, "lowest": 0.2, "highest": 0.4, "near_pairs": 4,
        "near_ratio": None, "near_low": None, "near_high": None, "memory_ratio": 0.5,
    }  # fmt: skip
    return row | changes


def test_the_largest_effect_of_each_factor_is_drawn_before_a_second_of_one():
    """A study asks which engine is faster: that the two are equal is its answer."""
    stages = [effect(name=f"ZeRO {stage}, against 0") for stage in range(1, 9)]
    engine = effect(name="engine torch, against deepspeed", factor="engine", mean_ratio=1.01)
    (drawing,) = CHARTS["factor_effects"].rows(Tables({"effects": [*stages, engine]}))
    drawn = {row["name"]: row["words"] for row in drawing.rows["rows"]}
    assert len(drawn) == 8
    assert drawn["engine torch instead of deepspeed"] == "×1.01, memory ×0.50, 9 pairs"


@pytest.mark.parametrize(
    ("near", "far", "title"),
    [
        ((None, None), (0.2, 0.4), "With ZeRO-3 instead of 2 the rate is 70 % lower"),
        ((None, None), (0.2, 1.1), "No choice changes the rate clearly"),
        ((0.9, 1.1), (0.2, 0.4), "No choice changes the rate clearly"),
        ((0.2, 0.5), (0.2, 1.1), "With ZeRO-3 instead of 2 the rate is 70 % lower"),
    ],
)
def test_a_choice_is_clear_by_its_interval_or_if_all_pairs_agree(near, far, title):
    row = effect(
        lowest=far[0], highest=far[1], near_ratio=None if near[0] is None else 0.3,
        near_low=near[0], near_high=near[1],
    )  # fmt: skip
    (drawing,) = CHARTS["factor_effects"].rows(Tables({"effects": [row]}))
    assert drawing.title.replace("\u202f", " ") == title
