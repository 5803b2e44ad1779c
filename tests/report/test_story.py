"""The layouts of a size, and the matrix, as the page shows them."""

import pytest

from scaling.report.sections.story import COPIED, SHOWN_LAYOUTS, layouts_of, matrix, story

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def told(full_tables):
    return story(full_tables.of(2))


def test_the_advised_layout_stands_first_and_titles_its_size(told, full_tables):
    for row in full_tables.of(2)["sizes"]:
        size = told["sizes"][row["world_size"]]
        assert size["rows"][0]["advised"]
        assert size["rows"][0]["name"] == row["layout_name"]
        assert size["title"].startswith(f"{row['world_size']} GPU")
        assert row["layout_name"] in size["title"]


def test_a_bar_is_the_share_of_the_best_and_lies_in_its_interval(told):
    for size in told["sizes"].values():
        for row in size["rows"]:
            if row["bar"] is not None:
                assert 0 < row["low"] <= row["bar"] <= row["high"] <= 100


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


def test_the_matrix_has_selections_as_rows_and_sizes_as_columns(full_tables):
    selections = [full_tables.of(setting) for setting in (1, 2, 3)]
    stories = [story(tables) for tables in selections]
    found = matrix(stories, selections)
    assert found["sizes"] == [1, 2, 4, 8]
    assert [row["story"]["model"] for row in found["rows"]] == ["tiny", "llama-1b", "llama-8b"]
    assert found["rows"][2]["cells"].keys() == {4, 8}  # it fits on no less
