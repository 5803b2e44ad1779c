"""One number of a kind on a page: its noise, its P(best) and its ties, in all sections."""

import json
import re

import pytest

from scaling.analyse.posterior import CLOSE
from scaling.analyse.warehouse import tabulate
from scaling.report.sections.story import story
from scaling.report.tables import Tables, read_tables
from scaling.report.text import percent
from tests.analyse.simulated_study import simulate, write_simulated
from tests.report.conftest import REPORTS


@pytest.fixture(scope="module")
def selections(tmp_path_factory):
    """Studies of close layouts with repeats, as the page selects them."""
    folder = tmp_path_factory.mktemp("simulated")
    write_simulated(folder, simulate(6, repeats=(1, 2)))
    tabulate(folder, REPORTS / "sql")
    tables = read_tables(folder)
    return [tables.of(group["group_id"]) for group in tables["comparison_groups"]]


def test_all_sections_state_one_noise(selections: list[Tables]):
    for tables in selections:
        said = json.dumps(story(tables), ensure_ascii=False)
        found = re.findall(r"(?:noise of|[Rr]epeats (?:of others )?differ by) ([^ ,;]+%)", said)
        assert {*found} == {percent(tables["noise"][0]["sigma"], 1)}


def test_all_sections_state_one_probability_and_the_same_ties(selections: list[Tables]):
    ties = 0
    for tables in selections:
        told = story(tables)
        for option in told["options"]:
            rows = told["sizes"][option["size"]]["rows"]
            shown = {row["name"]: row["p_best"] for row in rows}
            likely = [row for row in tables["estimates"] if row["world_size"] == option["size"]]
            close = {row["layout_name"] for row in likely if (row["p_best"] or 0) >= CLOSE}
            if len(close) < 2:
                assert not option["close"]
                continue
            ties += 1
            named = {
                name: probability
                for name, probability in shown.items()
                if f"{name} ({probability})" in option["close"]
            }
            assert named.keys() <= close
            assert len(named) == min(3, len(close))
            assert {row["layout_name"] for row in likely if row["close"]} == close
    assert ties > 2
