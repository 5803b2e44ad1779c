"""Who may be the best, and by how much the winner of many is flattered."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from scaling.analyse.being_best import (
    USUAL_SIGMA,
    Odds,
    Runs,
    between_run_sigma,
    odds_of_best,
)
from scaling.analyse.ties import Z95
from tests.analyse.conftest import some_point
from tests.report.synthetic_study import timed_row


def once(*times, error=0.0):
    return Runs.of([[(seconds, error)] for seconds in times])


def test_a_lead_beyond_the_noise_is_resolved_and_one_within_it_is_not():
    assert odds_of_best(once(1.0, 1.2)).contenders == ()
    close = odds_of_best(once(1.0, 1.002, 1.2))
    assert close.contenders == (0, 1)
    assert sum(close.probabilities) == pytest.approx(1)
    assert close.probabilities[2] == 0


def test_one_beside_many_that_are_each_improbable_has_nobody_to_be_told_from():
    probabilities = np.array([0.9, *[0.02] * 5])
    assert Odds(probabilities=probabilities, sigma=0.007, optimism=0.0).contenders == ()


def test_repeats_resolve_what_one_run_left_open():
    repeated = Runs.of(
        [[(t * f, 0.0) for f in (0.999, 1.0, 1.001, 1.0, 1.0)] for t in (1.0, 1.012)]
    )
    assert odds_of_best(once(1.0, 1.012)).contenders == (0, 1)
    assert odds_of_best(repeated).contenders == ()


def test_errors_of_single_runs_shrink_in_their_mean_as_the_root_of_the_runs():
    four = Runs.of([[(seconds, 0.02)] * 4 for seconds in (1.0, 1.01)])
    one = once(1.0, 1.01, error=0.01)
    expected = odds_of_best(one, sigma=0.0).probabilities
    assert odds_of_best(four, sigma=0.0).probabilities == pytest.approx(expected)
    assert 0.6 < expected[0] < 0.9


def test_the_spread_between_runs_is_the_usual_one_until_repeats_say_otherwise():
    assert between_run_sigma(once(1.0, 2.0)) == pytest.approx(USUAL_SIGMA)
    random = np.random.default_rng(1)
    noisy = Runs.of(
        [[(t, 0.0) for t in np.exp(0.03 * random.standard_normal(5))] for _ in range(20)]
    )
    assert between_run_sigma(noisy) == pytest.approx(0.03, rel=0.15)


def test_the_winner_of_many_is_flattered_as_much_as_it_is_on_average():
    random = np.random.default_rng(2)
    flattered, said = [], []
    for _ in range(100):
        times = np.exp(0.007 * random.standard_normal(10))  # ten equals
        flattered.append(-float(np.log(times.min())))
        said.append(odds_of_best(once(*times)).optimism)
    assert np.mean(said) == pytest.approx(np.mean(flattered), rel=0.35)
    assert odds_of_best(once(1.0)).optimism == pytest.approx(0, abs=1e-3)


def test_a_single_run_that_states_no_noise_is_as_uncertain_as_the_tie_rule_says(tabulated):
    """A lead of 5 % is 1.96 errors of the ratio, and a little less with the spread of runs."""
    points = [some_point(2, zero_stage=1), some_point(2, zero_stage=3)]
    rows = [
        timed_row(point, seconds, step_time_low_s=None, step_time_high_s=None)
        for point, seconds in zip(points, (1.0, 1.05), strict=True)
    ]
    best = max(one["probability_best"] for one in tabulated(points, rows)("odds"))
    sigma = math.sqrt(USUAL_SIGMA**2 + (math.log(1.05) / math.sqrt(2) / Z95) ** 2)
    assert sigma == pytest.approx(0.019, abs=0.0005)  # as the page says
    assert best == pytest.approx(NormalDist().cdf(math.log(1.05) / math.sqrt(2) / sigma), abs=1e-3)


def test_odds_are_a_table(tabulated):
    points = [some_point(2, zero_stage=1), some_point(2, zero_stage=0), some_point(2, zero_stage=3)]
    rows = [timed_row(p, t, noise=0.002) for p, t in zip(points, (1.0, 1.003, 2.0), strict=True)]
    table = tabulated(points, rows)
    odds = {one["layout"]: one for one in table("odds")}
    assert [one["contender"] for one in odds.values()] == [True, True, False]
