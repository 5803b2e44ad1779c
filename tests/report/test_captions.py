"""Captions name the marks that are drawn, and no other."""

import pytest

from scaling.report.sections.captions import caption_words, caption_words_at
from scaling.report.tables import Tables

NAMES = (
    "best", "contenders", "memory_parts", "interactions", "fixed_layout", "time_split", "map",
)  # fmt: skip


def tables(**rows):
    return Tables({"settings": [{"gpu_memory_bytes": None}], **{one: [] for one in NAMES}, **rows})


def contender(seconds, gib, outcome="ok", **more):
    return {
        "world_size": 8, "place": 1, "position": 1, "outcome": outcome, "step_time_s": seconds,
        "peak_memory_bytes": gib, "predicted_memory_bytes": None, **more,
    }  # fmt: skip


def cell(tp, pp, status="ok", series="measured"):
    return {"world_size": 8, "tp": tp, "pp": pp, "status": status, "series": series}


def best(size, layout):
    rates = {"mfu": 0.4, "model_flop_per_s_per_gpu": 1e14}
    return {"world_size": size, "advised_layout_name": layout, **rates}


@pytest.mark.parametrize(
    ("layouts", "said"),
    [
        ("aa", " and with its name"),
        ("ab", "; a dotted line leads from each to the next"),
        ("aab", "; a line joins points of one layout, a dotted one leads to the next"),
    ],
)
def test_a_curve_of_one_layout_has_no_dotted_lines(layouts, said):
    rows = [best(2**number, layout) for number, layout in enumerate(layouts)]
    assert caption_words(tables(best=rows), "")["changes"].endswith(said)


@pytest.mark.parametrize(
    ("series", "hidden", "said"),
    [
        (["measured"], None, ""),
        (["predicted"], None, ""),
        (["measured", "predicted"], None, " Paler: predicted."),
        (["measured"], 0.1, " A thin line below is communication hidden behind compute"),
    ],
)
def test_a_step_is_called_paler_or_underlined_only_where_it_is(series, hidden, said):
    rows = [{"series": one, "hidden_share": hidden} for one in series]
    words = caption_words(tables(time_split=rows), "")["split"]
    assert words.startswith(said)
    assert bool(words) == bool(said)


def test_grey_marks_are_named_where_they_can_be_seen():
    other = contender(1.0, 10, position=2)
    hidden, seen = ({"share_of_best": share} for share in (0.99, 0.9))
    assert caption_words(tables(), "")["grey"] == ""
    assert caption_words(tables(contenders=[other]), "")["grey"] == " Grey dots: other layouts."
    both = {"contenders": [other], "fixed_layout": [hidden, seen]}
    assert "grey squares" in caption_words(tables(**both), "")["grey"]
    assert caption_words(tables(fixed_layout=[hidden]), "")["grey"] == ""


def test_open_circles_are_named_where_a_choice_depends_on_another():
    assert caption_words(tables(interactions=[{"shown": False}]), "")["circles"] == ""
    assert "Open circles" in caption_words(tables(interactions=[{"shown": True}]), "")["circles"]


@pytest.mark.parametrize(
    ("cells", "hatched", "dashed", "empty"),
    [
        ([cell(1, 1), cell(2, 1)], False, False, False),
        ([cell(1, 1), cell(2, 1, "oom")], True, False, False),
        ([cell(1, 1), cell(2, 1, series="predicted")], False, True, False),
        ([cell(1, 1), cell(2, 2)], False, False, True),
    ],
)
def test_the_map_explains_the_cells_it_has(cells, hatched, dashed, empty):
    words = caption_words_at(tables(map=cells), 8)["cells"]
    assert ("Hatched" in words, "Dashed" in words, "Empty" in words) == (hatched, dashed, empty)
    assert words.startswith("Each cell is the best")


def test_a_map_of_failures_has_no_best_cell():
    words = caption_words_at(tables(map=[cell(1, 1, "oom")]), 8)["cells"]
    assert words == "Hatched: everything there failed, was refused or skipped."


def test_failures_of_another_size_are_not_hatched_at_this_one():
    failed = tables(contenders=[contender(None, None, "oom")])
    assert caption_words_at(failed, 8)["failed"] == " Hatched: tried and failed."
    assert caption_words_at(failed, 16)["failed"] == ""


def test_a_front_of_memory_and_time_needs_two_layouts():
    fast, small = contender(1.0, 20), contender(2.0, 10)
    assert "line joins" in caption_words_at(tables(contenders=[fast, small]), 8)["front"]
    equal = [fast, contender(2.0, 20)]
    assert caption_words_at(tables(contenders=equal), 8)["front"] == ""
