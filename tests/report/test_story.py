"""The layouts of a size, and the matrix, as the page shows them."""

import pytest

from scaling.report.sections.story import COPIED, SHOWN_LAYOUTS, layouts_of, story

pytestmark = pytest.mark.slow


def test_the_advised_layout_stands_first_and_titles_its_size(full_tables):
    told = story(full_tables.of(2))
    for row in full_tables.of(2)["sizes"]:
        size = told["sizes"][row["world_size"]]
        assert size["rows"][0]["advised"]
        assert size["rows"][0]["name"] == row["layout_name"]
        assert size["title"].startswith(f"{row['world_size']} GPU")
        assert row["layout_name"] in size["title"]


def test_a_layout_that_ran_says_how_often_its_allocator_retried(full_tables):
    mine = full_tables.of(2)
    rows = [row | {"num_alloc_retries": 3} for row in mine["estimates"]]
    assert all(row["fits"] == "3 allocator retries" for row in layouts_of(mine, rows)["rows"])


def test_of_many_layouts_the_first_are_shown_and_the_others_counted(full_tables):
    mine = full_tables.of(1)
    rows = [row for row in mine["estimates"] if row["world_size"] == 2]
    told = layouts_of(mine, rows * 3)
    assert len(told["rows"]) + told["more"] == 3 * len(rows)
    assert len(told["rows"]) <= SHOWN_LAYOUTS + 4
    assert sum(bool(row["runs"]) for row in told["rows"]) == COPIED


def test_runs_to_copy_are_of_layouts_that_surely_fit(full_tables):
    mine = full_tables.of(1)
    size_2 = [row for row in mine["estimates"] if row["world_size"] == 2]
    rows = [row | {"candidate": place != 1} for place, row in enumerate(size_2)]
    copied = [bool(row["runs"]) for row in layouts_of(mine, rows)["rows"]]
    assert copied[: COPIED + 2] == [True, False, True, True, False]
