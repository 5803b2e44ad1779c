"""The interval of a median, on values with a known one; when to stop, on series that settle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.record import bootstrap
from scaling.record.bootstrap import (
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


@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.9), (0.7, 0.8)])
def test_steps_that_are_alike_are_covered_too(monkeypatch, correlation, least):
    monkeypatch.setattr(bootstrap, "_RESAMPLES", 200)
    random = np.random.default_rng(4)
    assert np.mean([covers(random, 100, correlation) for _ in range(200)]) >= least


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
