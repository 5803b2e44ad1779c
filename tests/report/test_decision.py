"""The decision as the template asks for it: shades, words, times, the line of a selection."""

import pytest

from scaling.report.page.decision import (
    cell_words,
    duration,
    kinds,
    legend,
    overview_title,
    shade,
    steps_by_size,
    summary,
)
from scaling.report.page.page import opening_selection


def told(number, model, cluster, **advice):
    step = {"from_size": 8, "to_size": 16, "returned": 0.5, "low": None, "high": None}
    return {
        "setting_id": number,
        "model": model,
        "cluster": cluster,
        "batch_short": "strong 64 × 4096",
        "basis": "measured",
        "tokens": 2e9,
        "words": {"GPU": "GPU", "GPUs": "GPUs"},
        "advice": {
            "sizes": [8, 16],
            "stretches": [{"from_size": 8, "to_size": 8}, {"from_size": 16, "to_size": 16}],
            "steps": [step],
            "at_size": {"8": {"gpu_hours_per_token": 1e-9}, "16": {"gpu_hours_per_token": 2e-9}},
            **advice,
        },
    }


@pytest.mark.parametrize(
    ("share", "expected"), [(1.0, "s6"), (0.96, "s5"), (0.5, "s2"), (0.0, "s1"), (None, "")]
)
def test_a_cell_is_the_darker_the_closer_to_the_fastest(share, expected):
    assert shade(share) == expected


def test_a_cell_says_its_state_and_its_interval():
    tied = {"state": "tied", "share": 0.98, "low": 0.95, "high": 1.01}
    assert cell_words(tied).replace("\u202f", " ") == (
        "not told apart, 98 % of the fastest [95 %–101 %]"
    )
    assert cell_words({"state": "does_not_fit", "share": None}) == "does not fit"


@pytest.mark.parametrize(
    ("hours", "expected"), [(480, "20.0 d"), (30, "30.0 h"), (0.2, "12.0 min"), (0.004, "14.4 s")]
)
def test_a_time_has_the_unit_that_suits_it(hours, expected):
    assert duration(hours).replace("\u202f", " ") == expected


def test_the_page_opens_with_the_selection_of_most_sizes():
    one_size = told(1, "m", "c", at_size={"8": {}})
    foretold = told(4, "p", "c", at_size={"8": {}, "16": {}, "32": {}}) | {"basis": "predicted"}
    assert opening_selection([foretold, one_size, told(2, "n", "c"), told(3, "o", "c")]) == 2
    nothing = told(5, "q", "c", at_size={})  # all of it refused, in a study that is predicted
    assert opening_selection([nothing, foretold]) == 4


def test_a_return_stands_at_the_size_it_leads_to():
    by_size = steps_by_size(told(1, "m", "c")["advice"])
    assert by_size[8] is None
    assert by_size[16]["returned"] == 0.5


def test_a_selection_is_summed_up_by_change_return_and_cost():
    assert summary(told(1, "m", "c")) == ["8→16", "0.50", "16", "4.00"]


def test_the_legend_explains_the_marks_that_are_there_and_no_other():
    cells = {"a": {"8": {"state": "advised"}, "16": {"state": "slower"}}}
    assert legend({"cells": cells}) == [("advised", "advised")]
    cells["b"] = {"8": {"state": "failed"}, "16": {"state": "tied"}}
    assert [look for look, _ in legend({"cells": cells})] == ["advised", "tied", "nofit"]


def test_a_selection_without_a_result_is_not_called_measured():
    ran, waiting = told(1, "m", "c"), told(2, "n", "c", at_size={})
    assert overview_title([ran, ran]).startswith("2 selections, all measured: ")
    assert overview_title([ran, waiting]).startswith("2 selections: ")
    assert overview_title([waiting, waiting]) == "2 selections, none with a layout to use"


def test_an_overview_of_several_kinds_of_values_marks_each():
    ran, short = told(1, "m", "c"), told(2, "n", "c") | {"basis": "extended"}
    waiting = told(3, "o", "c", at_size={}) | {"basis": "predicted"}
    assert kinds([ran, short, waiting]) == {"measured", "extended"}
    assert overview_title([ran, short]).startswith("2 selections: ")
    assert overview_title([short, short]).startswith("2 selections, all measured in short steps: ")


def test_where_nothing_ran_the_overview_has_no_numbers():
    assert summary(told(1, "m", "c", at_size={}, steps=[], stretches=[])) == [""] * 4


def test_one_size_has_neither_change_nor_return_in_the_overview():
    one = told(1, "m", "c", steps=[], stretches=[])
    assert summary(one)[:2] == ["", "–"]
