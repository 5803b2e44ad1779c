"""The layouts that are trained hold every two values of the axes."""

import json
from collections.abc import Callable

import pytest

from scaling.layout.engines import ENGINES
from tests.train.covering import covering
from tests.train.test_parity import PAIRWISE, VALUES, possible

pytestmark = pytest.mark.slow


def test_the_cases_kept_are_those_that_the_table_of_axes_gives(
    golden: Callable[[str, str], None],
) -> None:
    every = list(possible())  # the layouts that each engine can run
    by_engine = [[case for case in every if case["engine"] == engine] for engine in ENGINES]
    chosen = [json.dumps(case) for cases in by_engine for case in covering(cases)]
    golden("pairwise.json", "[\n" + ",\n".join(chosen) + "\n]\n")


def test_of_every_axis_each_value_is_trained_under_some_engine() -> None:
    for name, values in VALUES.items():
        assert {case[name] for case in PAIRWISE} == set(values), name
