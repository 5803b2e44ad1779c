"""The interval of a median, against values whose true median is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.record import bootstrap
from scaling.record.bootstrap import block_length, median_interval

times = st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=30)


@given(times)
def test_the_interval_holds_the_median_and_stays_within_the_values(values):
    found = median_interval(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)


def test_one_value_says_nothing_about_its_spread():
    found = median_interval([3.0])
    assert (found.median, found.low, found.high) == (3.0, None, None)


def test_no_values_have_no_median():
    with pytest.raises(ValueError, match="no values"):
        median_interval([])


def test_it_covers_the_true_median_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    found = [median_interval(list(random.normal(10, 1, size=25))) for _ in range(200)]
    covered = [i.low is not None and i.high is not None and i.low <= 10 <= i.high for i in found]
    assert 0.88 <= np.mean(covered) <= 0.99


def autocorrelated(random, steps, correlation):
    """Step times around 10 s, each by `correlation` like the one before: AR(1)."""
    noise = random.normal(size=steps + 100)
    values = [noise[0]]
    for one in noise[1:]:
        values.append(correlation * values[-1] + one)
    return [10 + 0.1 * value for value in values[100:]]


def covers(random, steps, correlation):
    found = median_interval(autocorrelated(random, steps, correlation))
    return found.low is not None and found.high is not None and found.low <= 10 <= found.high


@pytest.mark.parametrize(
    ("correlation", "least", "single"), [(0.0, 0.9, 0.9), (0.7, 0.8, 0.5)], ids=str
)
def test_steps_that_are_alike_are_covered_where_single_ones_would_not_do(
    monkeypatch, correlation, least, single
):
    monkeypatch.setattr(bootstrap, "_RESAMPLES", 200)
    random = np.random.default_rng(4)
    assert np.mean([covers(random, 100, correlation) for _ in range(200)]) >= least
    monkeypatch.setattr(bootstrap, "block_length", lambda _values: 1)
    random = np.random.default_rng(4)
    shares = np.mean([covers(random, 100, correlation) for _ in range(200)])
    assert single <= shares <= (0.7 if correlation else 1)


def test_blocks_are_as_long_as_steps_are_alike():
    random = np.random.default_rng(2)
    lengths = [
        np.median([block_length(np.asarray(autocorrelated(random, 200, c))) for _ in range(50)])
        for c in (0.0, 0.5, 0.9)
    ]
    assert lengths[0] == 1
    assert lengths[0] < lengths[1] < lengths[2] <= 200 // 3


def test_a_hundred_thousand_steps_take_little_memory_at_once(monkeypatch):
    drawn: list[int] = []
    median = np.median

    def counted(values, **named):
        drawn.append(np.size(values))
        return median(values, **named)

    monkeypatch.setattr(bootstrap, "_RESAMPLES", 40)
    monkeypatch.setattr(np, "median", counted)
    median_interval(list(np.random.default_rng(3).normal(10, 1, size=100_000)))
    assert max(drawn) <= 2**20
    assert sum(drawn) == 41 * 100_000
