"""Charts as drawn from a few rows: their words, legends and ticks."""

import json
import re

import altair as alt
import pytest
import vl_convert

from scaling.report.charts import marks
from scaling.report.charts.palette import CONFIG
from scaling.report.charts.steps import MEMORY
from scaling.report.charts.svg import VEGA_LITE, specifications, table_names

LAYOUT = {"world_size": 8, "layout_name": "tp 2", "outcome": "ok", "place": 1, "series": "measured"}


def drawn(name, **tables):
    """The SVG of a chart of these rows by table."""
    specification = json.loads(specifications()[name])
    empty = {name: [] for name in table_names(specification)}
    specification |= {"config": CONFIG, "width": 640, "datasets": empty | tables}
    return str(vl_convert.vegalite_to_svg(specification, vl_version=VEGA_LITE))


def numbers(svg):
    """The texts of a chart that are plain numbers: labels of its axes."""
    return [float(text) for text in re.findall(r">([\d.]+)</text>", svg)]


def test_a_layout_measured_and_published_has_one_memory_text():
    layout = LAYOUT | {"predicted_memory_bytes": None}
    contenders = [
        layout | {"series": "published", "peak_memory_bytes": None},
        layout | {"place": 2, "peak_memory_bytes": 40 * 2**30},
    ]
    svg = drawn("memory", contenders=contenders)
    assert "40 GiB" in svg
    assert "not measured" not in svg


@pytest.mark.parametrize("parts", [[], ["weights", "activations"]])
def test_a_legend_lists_the_parts_that_are_drawn_and_leaves_no_gap_for_others(parts):
    size = {"from_bytes": 0, "to_bytes": 2**30, "bytes": 2**30, "total_bytes": 2**31}
    svg = drawn(
        "memory",
        contenders=[LAYOUT | {"peak_memory_bytes": 2**31}],
        memory_parts=[LAYOUT | size | {"part": part} for part in parts],
    )
    assert [part for part in MEMORY if f">{part}<" in svg] == parts
    height = float(re.search(r'height="([\d.]+)"', svg).group(1))
    assert height <= (110 if parts else 90)


def test_a_short_axis_of_ratios_has_labels_on_both_sides_of_one():
    ratios = {"near_ratio": 1.0, "near_low": 0.98, "near_high": 1.02, "near_pairs": 5, "pairs": 5}
    ends = {"mean_ratio": 1.0, "lowest": 0.98, "highest": 1.02}
    effect = {"name": "engine torch", "shown": True, "series": "measured", **ratios, **ends}
    labels = numbers(drawn("factor_effects", effects=[effect]))
    assert min(labels) < 1 < max(labels)


def test_amounts_below_one_are_numbers_and_no_thousandths():
    """d3 alone would write half a GPU-hour as `500m`."""
    values = alt.Data(values=[{"hours": hours} for hours in (0.5, 0.9)])
    chart = alt.Chart(values).mark_point().encode(y=alt.Y("hours:Q", axis=marks.AMOUNTS))
    svg = vl_convert.vegalite_to_svg(chart.to_dict(), vl_version=VEGA_LITE)
    assert ">0.4<" in svg
    assert not re.search(r">\d+m<", svg)
