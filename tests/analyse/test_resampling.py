"""Bootstrap of the steps: it holds its value, and repeats widen it."""

import numpy as np
import pytest

from scaling.analyse.resampling import resampled_rates, step_values
from tests.analyse.conftest import some_point
from tests.analyse.test_tables import ran
from tests.report.synthetic_study import timed_row


def test_steps_that_do_not_vary_have_an_interval_of_no_width():
    drawn = resampled_rates([np.full(9, 100.0)], np.random.default_rng(1))
    assert drawn.min() == drawn.max() == 100.0


def test_repeats_that_differ_widen_what_steps_that_do_not_would_leave():
    drawn = resampled_rates([np.full(9, 90.0), np.full(9, 110.0)], np.random.default_rng(1))
    assert (drawn.min(), drawn.max()) == (90.0, 110.0)
    assert drawn.mean() == pytest.approx(100, abs=1)


def test_a_step_is_worked_out_from_its_ends():
    one = np.ones(1)
    found = step_values(100 * one, 1, 180 * one, 2, 300 * one, 4)
    assert found["marginal"][0] == 60
    assert found["share"][0] == pytest.approx(0.6)
    assert found["elasticity"][0] == pytest.approx(np.log(300 / 180) / np.log(2))
    assert found["efficiency"][0] == pytest.approx(0.75)


def test_the_interval_of_a_real_step_comes_from_its_steps_and_holds_it(tabulated):
    points = [some_point(size) for size in (1, 2)]
    rows = [timed_row(one, t, noise=0.02) for one, t in zip(points, (8.0, 4.5), strict=True)]
    (step,) = tabulated(points, rows)("returns")
    assert step["interval_from"] == "bootstrap"
    assert step["marginal_low"] < step["marginal_tokens_per_s"] < step["marginal_high"]
    assert step["elasticity_low"] < step["elasticity"] < step["elasticity_high"]


def test_rows_without_their_steps_fall_back_to_propagation(tabulated):
    points = [some_point(size) for size in (1, 2)]
    rows = [ran(one, rate, noise=0.01) for one, rate in zip(points, (100, 180), strict=True)]
    (step,) = tabulated(points, rows)("returns")
    assert step["interval_from"] == "propagated"
