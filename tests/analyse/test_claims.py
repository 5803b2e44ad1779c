"""What docs/method.md states of intervals and ties, on simulated studies."""

import numpy as np
import pytest

from benchmarks.claims import rates, simulated


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_intervals_of_repeats_hold_the_truth_as_often_as_they_say(repeats):
    holds, apart = rates(simulated(0.014, 0.0, repeats, np.random.default_rng(0)))
    assert 93 <= holds <= 97
    assert apart <= 7
