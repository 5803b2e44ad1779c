"""Captions name the marks that are drawn, and no other."""

import pytest

from scaling.report.sections.captions import caption_words, caption_words_at
from scaling.report.tables import Tables

NAMES = (
    "best", "contenders", "memory_parts", "fixed_layout", "time_split",
)  # fmt: skip


def tables(**rows):
    return Tables({"settings": [{"gpu_memory_bytes": None}], **{one: [] for one in NAMES}, **rows})


def contender(seconds, gib, outcome="ok", **more):
    return {
        "world_size": 8, "place": 1, "position": 1, "outcome": outcome, "step_time_s": seconds,
        "peak_memory_bytes": gib, "predicted_memory_bytes": None, **more,
    }  # fmt: skip


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


def test_failures_of_another_size_are_not_hatched_at_this_one():
    failed = tables(contenders=[contender(None, None, "oom")])
    assert caption_words_at(failed, 8)["failed"] == " Hatched: tried and failed."
    assert caption_words_at(failed, 16)["failed"] == ""
