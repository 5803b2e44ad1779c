"""Draws of a comparison group: exact where they can be worked out by hand."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.analyse.posterior import (
    PARTS,
    Cells,
    Runs,
    best_of,
    posterior,
    return_of,
    shares_of_best,
)


def all_ran(count):
    numbers = np.arange(count)
    return Cells(numbers, numbers, np.full(count, np.nan), np.zeros((count, len(PARTS))))


def runs_of(*cells, own=0.0, host=None):
    """Runs by cell: ln rates."""
    flat = [(cell, rate) for cell, rates in enumerate(cells) for rate in rates]
    cell, rate = np.array(flat).T
    hosts = np.full(len(cell), -1) if host is None else np.array(host)
    return Runs(rate, np.full(len(cell), own), cell.astype(int), hosts)


def cells_of(layouts, sizes, predicted=np.nan, errors=(0.0, 0.0, 0.0, 0.0)):
    """Cells of every layout at every size, all with the same prediction and errors."""
    count = layouts * sizes
    return Cells(
        np.repeat(np.arange(layouts), sizes), np.tile(np.arange(sizes), layouts),
        np.full(count, predicted), np.tile(errors, (count, 1)),
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.floats(-5, 20), min_size=1, max_size=2), min_size=1, max_size=6))
def test_the_mean_of_the_draws_is_the_mean_of_one_run_or_two(rates):
    drawn = posterior(runs_of(*rates), all_ran(len(rates))).rates
    assert drawn.mean(axis=1) == pytest.approx([np.mean(cell) for cell in rates], abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_probabilities_add_up_and_a_share_is_at_most_one(rates):
    drawn = posterior(runs_of(*[[rate] for rate in rates]), all_ran(len(rates)))
    assert best_of(drawn.rates).sum() == pytest.approx(1)
    shares = shares_of_best(
        drawn.rates, np.zeros(len(drawn.rates)), np.full(len(drawn.rates), True)
    )
    assert (shares <= 1).all()
    assert shares.max(axis=0) == pytest.approx(1)


def test_noise_follows_from_repeats_and_is_the_usual_one_without_them():
    random = np.random.default_rng(1)
    repeated = [list(random.normal(5, 0.03, 4)) for _ in range(40)]
    assert np.median(posterior(runs_of(*repeated), all_ran(40)).noise) == (
        pytest.approx(0.03, rel=0.15)
    )
    single = posterior(runs_of([1.0], [2.0]), all_ran(2))
    assert np.median(single.noise) == pytest.approx(0.012, rel=0.1)


def test_two_noisy_repeats_outweigh_the_usual_noise():
    noisy = runs_of([10.0, 10.2], [9.0, 9.2], [8.0, 8.2])
    drawn = posterior(noisy, all_ran(3))
    assert np.median(drawn.noise) > 0.1  # 0.14 as they differ, 0.012 as usual
    assert drawn.disturbed.max() < 0.05


def test_a_few_equal_runs_are_not_without_noise():
    drawn = posterior(runs_of([10.0] * 3, [9.999] * 3), all_ran(2))
    assert 0.001 < np.median(drawn.noise) < 0.012
    assert best_of(drawn.rates).min() > 0.05


def simulated(random, layouts, repeats, factors):
    """The truth, and runs with 0.9 % of noise; so many of them are slower by these factors."""
    truth = 10 + random.normal(0, 0.06, layouts)
    runs = runs_of(*(truth[:, None] + random.normal(0, 0.009, (layouts, repeats))).tolist())
    bad = random.choice(layouts, len(factors), replace=False)  # the first run of each
    runs.log_rate[bad * repeats] -= np.log(factors)
    return truth, runs, bad


@pytest.mark.parametrize("factor", [1.2, 2.0, 5.0])
def test_either_of_two_repeats_that_disagree_may_be_the_sound_one(factor):
    random = np.random.default_rng(5)
    for _ in range(5):
        truth, runs, (bad,) = simulated(random, 36, 2, [factor])
        drawn = posterior(runs, all_ran(36))
        assert np.median(drawn.noise) == pytest.approx(0.009, rel=0.3)
        assert drawn.disturbed[[2 * bad, 2 * bad + 1]] == pytest.approx([0.5] * 2, abs=0.01)
        low, high = np.quantile(drawn.rates, [0.025, 0.975], axis=1)
        assert low[bad] < truth[bad] - np.log(factor) + 0.03
        assert high[bad] > truth[bad] - 0.03
        others = np.arange(36) != bad
        assert (high - low)[others].max() < 0.04
        assert np.mean((low <= truth) & (truth <= high)) > 0.85


def test_a_run_beside_many_repeats_of_its_layout_is_left_out():
    rates = np.random.default_rng(6).normal(5, 0.01, 1000)
    rates[[3, 30]] = 4.0, 3.0
    drawn = posterior(runs_of(list(rates)), all_ran(1))
    assert drawn.rates.mean() == pytest.approx(5.0, abs=0.001)
    assert set(np.flatnonzero(drawn.disturbed > 0.5)) == {3, 30}


def test_a_slow_host_is_no_disturbance():
    """Each layout ran on a slow node and elsewhere; one run elsewhere was disturbed."""
    random = np.random.default_rng(7)
    rates = np.array([5.0, 4.9, 5.0]) + random.normal(0, 0.005, (12, 3))
    rates[4, 0] -= 0.5
    runs = runs_of(*rates, host=[-1, 0, -1] * 12)
    drawn = posterior(runs, all_ran(12), np.array([-0.07]))
    assert drawn.hosts.mean() == pytest.approx(-0.1, abs=0.01)
    assert set(np.flatnonzero(drawn.disturbed > 0.1)) == {12}
    assert drawn.rates.mean(axis=1) == pytest.approx([5.0] * 12, abs=0.015)


def test_a_run_is_at_least_as_uncertain_as_its_own_steps_say():
    for own in (0.05, 0.2):
        drawn = posterior(runs_of([1.0], [2.0], own=own), all_ran(2))
        assert (drawn.rates.std(axis=1) > 0.98 * own).all()
    unstated = posterior(runs_of([1.0], own=np.nan), all_ran(1))
    assert unstated.rates.std() > 0.0176


def test_a_slow_host_is_no_layout_of_its_own():
    """Three layouts ran on both nodes, one on the slow one only: it is corrected by the others."""
    true, slow = 5.0, -0.1
    rates = [[true, true + slow]] * 3 + [[true + slow]]
    host = [-1, 0] * 3 + [0]
    found = posterior(runs_of(*rates, host=host), all_ran(4), np.zeros(1))
    assert found.hosts.mean() == pytest.approx(slow, abs=0.005)
    assert found.rates.mean(axis=1) == pytest.approx([true] * 4, abs=0.01)


def test_predictions_never_move_what_ran():
    runs = runs_of([1.0, 1.02], [3.0])
    without = posterior(runs, all_ran(2)).rates
    cells = cells_of(2, 1, predicted=9.0, errors=(0.01, 0.01, 0.01, 0.01))
    assert posterior(runs, cells).rates == pytest.approx(without)


def test_a_prediction_alone_has_the_spread_of_its_four_parts():
    nothing = Runs(*(np.zeros(0, dtype) for dtype in (float, float, int, int)))
    errors = (0.04, 0.03, 0.02, 0.01)
    drawn = posterior(nothing, cells_of(3, 2, predicted=2.0, errors=errors)).rates
    assert drawn.mean(axis=1) == pytest.approx([2.0] * 6)
    assert drawn.std(axis=1) == pytest.approx([np.linalg.norm(errors)] * 6, rel=0.05)
    # of one size: the layouts' own; of one layout: the sizes'; both share the common error
    assert (drawn[0] - drawn[2]).std() == pytest.approx(np.sqrt(2) * np.hypot(0.03, 0.01), rel=0.05)
    assert (drawn[0] - drawn[1]).std() == pytest.approx(np.sqrt(2) * np.hypot(0.02, 0.01), rel=0.05)


def test_what_a_layout_is_off_by_at_one_size_corrects_it_at_the_next():
    """Layout 0 ran at size 0, 20 % above its prediction; layout errors explain nearly all of it."""
    cells = cells_of(2, 2, predicted=1.0, errors=(0.01, 0.2, 0.01, 0.01))
    drawn = posterior(runs_of([1.2]), cells).rates.mean(axis=1)
    assert drawn[0] == pytest.approx(1.2)
    assert drawn[1] == pytest.approx(1.2, abs=0.01)  # the same layout
    assert drawn[2:] == pytest.approx([1.0, 1.0], abs=0.01)


def test_a_common_error_is_learned_from_what_ran():
    cells = cells_of(6, 1, predicted=1.0, errors=(0.3, 0.01, 0.01, 0.02))
    found = posterior(runs_of(*[[1.25 + 0.01 * n] for n in range(5)]), cells).rates[5]
    assert found.mean() == pytest.approx(1.27, abs=0.01)
    assert found.std() < 0.06


def test_a_return_is_one_where_rates_grow_as_sizes_do():
    assert return_of(np.log([10.0, 10.0]), np.log([40.0, 10.0]), 4) == pytest.approx([1, 0])


def test_a_hundred_groups_of_32_cells_take_a_few_seconds():
    random = np.random.default_rng(2)
    groups = [runs_of(*random.normal(5, 0.1, (32, 2)).tolist(), own=0.002) for _ in range(100)]
    start = time.process_time()
    for runs in groups:
        posterior(runs, all_ran(32))
    assert time.process_time() - start < 5  # under one on an idle core
