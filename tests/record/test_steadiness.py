"""When to stop: rules on series that settle, drift, or only make noise."""

import numpy as np
import pytest

from scaling.record.bootstrap import is_check_due, judge_steps, warm_up

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
