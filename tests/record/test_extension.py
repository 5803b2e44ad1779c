"""A line through short steps, on source whose truth is known."""

import numpy as np
import pytest

from scaling.record.extension import estimate_full_step
from scaling.study.short_steps import shuffled_rounds

COUNTS = [4, 6, 8]
Steps = tuple[list[int], list[float]]


def steps(rounds, *, fixed=0.3, each=0.1, noise=0.0, seed=0, bend=0.0) -> Steps:
    random = np.random.default_rng(seed)
    counts = COUNTS * rounds
    times = [
        (fixed + each * count + bend * count**2) * (1 + noise * random.standard_normal())
        for count in counts
    ]
    return counts, times


def test_steps_on_a_line_say_exactly_what_the_full_step_lasts():
    found = estimate_full_step(*steps(5), 64)
    assert found.step_time_s == pytest.approx(0.3 + 6.4)
    assert found.fixed_s == pytest.approx(0.3)
    assert found.micro_batch_s == pytest.approx(0.1)
    assert found.linear


def test_an_80_percent_interval_holds_the_truth_in_four_of_five():
    held = 0
    for seed in range(200):
        found = estimate_full_step(*steps(10, noise=0.01, seed=1000 + seed), 32)
        held += found.low_s <= 0.3 + 3.2 <= found.high_s
    assert 0.72 <= held / 200 <= 0.9


def alike_steps(seed, *, rounds=12, alike=0.7, noise=0.02) -> Steps:
    """Rounds in the turns that points take, and seconds whose noise outlasts a step (AR(1))."""
    random = np.random.default_rng(seed)
    counts = shuffled_rounds(COUNTS, rounds, seed)
    off = np.zeros(len(counts))
    for place in range(1, len(counts)):
        fresh = random.standard_normal() * np.sqrt(1 - alike**2)
        off[place] = alike * off[place - 1] + fresh
    return counts, list(0.3 + 0.1 * np.array(counts) + noise * off)


def test_the_interval_holds_with_correlated_steps():
    found = [estimate_full_step(*alike_steps(seed), 32) for seed in range(200)]
    held = sum(one.low_s <= 0.3 + 3.2 <= one.high_s for one in found)
    # of medians, each round in the same order, it holds in 97 of 100
    assert 0.75 <= held / 200 <= 0.9


def test_accumulations_that_lie_on_no_line_are_told_from_noise():
    assert not estimate_full_step(*steps(8, noise=0.002, bend=0.004), 32).linear
    straight = [
        estimate_full_step(*steps(8, noise=0.01, seed=seed), 32).linear for seed in range(60)
    ]
    assert sum(straight) >= 57


def test_too_few_rounds_or_kinds_say_nothing():
    assert estimate_full_step([4, 6, 8], [1.0, 2.0, 3.0], 32) is None
    assert estimate_full_step([4, 4, 4, 4], [1.0] * 4, 32) is None
    assert estimate_full_step([], [], 32) is None
