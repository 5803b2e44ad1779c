import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.analyse.interval import median_interval

times = st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=30)


def test_equal_steps_leave_no_doubt() -> None:
    found = median_interval([0.25] * 10)
    assert (found.low, found.median, found.high) == (0.25, 0.25, 0.25)


@given(times)
def test_the_interval_holds_the_median_and_stays_within_the_values(values: list[float]) -> None:
    found = median_interval(values)
    assert found.low is not None
    assert found.high is not None
    assert min(values) <= found.low <= found.median <= found.high <= max(values)


@given(times)
def test_the_same_values_give_the_same_interval(values: list[float]) -> None:
    assert median_interval(values) == median_interval(values)


def test_one_value_says_nothing_about_its_spread() -> None:
    found = median_interval([3.0])
    assert (found.median, found.low, found.high) == (3.0, None, None)


def test_no_values_have_no_median() -> None:
    with pytest.raises(ValueError, match="no values"):
        median_interval([])


def test_it_covers_the_true_median_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    found = [median_interval(list(random.normal(10, 1, size=25))) for _ in range(200)]
    covered = [i.low is not None and i.high is not None and i.low <= 10 <= i.high for i in found]
    assert 0.88 <= np.mean(covered) <= 0.99
