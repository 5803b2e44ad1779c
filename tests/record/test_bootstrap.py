"""The interval of a median, on values with a known one; when to stop, on series that settle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.record import bootstrap
from scaling.record.bootstrap import (
    block_length,
    is_check_due,
    judge_steps,
    median_interval,
    warm_up,
)

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


NOISE = np.random.default_rng(7).standard_normal(60)


def test_steps_that_settle_lose_what_came_before_they_did():
    settling = 1 + 0.5 * np.exp(-np.arange(60) / 4) + 0.01 * NOISE
    assert 8 <= warm_up(settling) <= 20
    assert warm_up([9.0, *(1 + 0.01 * NOISE)]) >= 1


def test_steps_that_only_make_noise_lose_few():
    kept = [
        warm_up(1 + 0.01 * np.random.default_rng(seed).standard_normal(30)) for seed in range(50)
    ]
    assert np.median([dropped for dropped in kept if dropped is not None]) <= 2
    assert sum(dropped is None for dropped in kept) <= 3


@pytest.mark.parametrize("slope", [0.01, -0.01])
def test_steps_that_drift_are_never_steady(slope):
    drifting = 1 + slope * np.arange(40) + 0.005 * NOISE[:40]
    assert warm_up(drifting) is None
    assert not judge_steps(list(drifting), at_least=5, until=0.5).enough


def test_steps_suffice_once_half_their_interval_is_narrow_enough():
    times = 1 + 0.01 * NOISE
    assert judge_steps(list(times), at_least=5, until=0.01).enough
    assert not judge_steps(list(times), at_least=5, until=0.001).enough
    assert not judge_steps(list(times[:4]), at_least=5, until=0.5).enough


def test_the_ranks_ask_at_the_least_and_then_ever_more_rarely():
    looks = [steps for steps in range(1, 60) if is_check_due(steps, 20)]
    assert looks == [20, 22, 24, 26, 28, 30, 33, 36, 39, 42, 46, 50, 55]
