import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.layout.axes import AXES
from scaling.layout.engines import ENGINES
from tests.train.covering import covering, pairs, product
from tests.train.test_parity import ELSEWHERE, PAIRWISE, POSSIBLE, VALUES

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


def test_axes_left_to_other_tests_are_axes() -> None:
    assert set(ELSEWHERE) <= set(AXES)
    assert {*VALUES, *ELSEWHERE} >= set(AXES)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_two_values_that_an_engine_runs_together_are_trained(engine: str) -> None:
    met = set().union(*(pairs(case) for case in PAIRWISE if case["engine"] == engine))
    assert met == set().union(*(pairs(case) for case in POSSIBLE if case["engine"] == engine))


def test_of_every_axis_each_value_is_trained_under_some_engine() -> None:
    for name, values in VALUES.items():
        assert {case[name] for case in PAIRWISE} == set(values), name
