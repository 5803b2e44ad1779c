"""The layouts that are trained hold every two values of the axes."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.layout.engines import ENGINES
from tests.train.covering import covering, pairs, product
from tests.train.test_parity import PAIRWISE, VALUES, possible

pytestmark = pytest.mark.slow

axes = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.integers(0, 3), min_size=1, unique=True)
)


@given(axes)
def test_every_two_values_meet(drawn: dict[str, list[int]]) -> None:
    possible = list(product(drawn))
    met = set().union(*(pairs(case) for case in covering(possible)))
    assert met == set().union(*(pairs(case) for case in possible))


def test_two_values_of_seven_axes_need_far_fewer_cases_than_there_are() -> None:
    possible = list(product(dict.fromkeys("abcdefg", (0, 1))))
    assert len(possible) == 128
    assert len(covering(possible)) <= 10


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
