"""What is said of one layout against another: odds, shares, returns, crossovers."""

import numpy as np
import pytest

from scaling.predict.cost.model import predict
from scaling.predict.cost.ratios import (
    chance_faster,
    crossover_of,
    ratio_sigma,
    return_of,
    share_of,
)
from scaling.predict.cost.tables import prediction_table


def test_errors_of_two_layouts_of_a_size_add_in_squares():
    assert ratio_sigma(0.03, 0.04) == pytest.approx(0.05)
    assert ratio_sigma(0.03, 0.04, size_a=0.12, size_b=0.0) == pytest.approx(0.13)


def test_neighbours_are_compared_more_surely_than_strangers():
    sigmas = [float(ratio_sigma(0.1, 0.1, axes_apart=axes)) for axes in (1, 2, 3, 7)]
    assert sigmas == sorted(sigmas)
    assert sigmas[-1] == sigmas[-2] == pytest.approx(ratio_sigma(0.1, 0.1))


def test_the_odds_of_a_tie_are_even_and_one_sigma_is_five_in_six():
    assert chance_faster(2.0, 2.0, np.array(0.1)) == pytest.approx(0.5)
    # 84.13 % of a normal error lie below one standard deviation
    assert chance_faster(1.0, np.exp(0.1), np.array(0.1)) == pytest.approx(0.8413, abs=1e-4)
    assert chance_faster(np.exp(0.1), 1.0, np.array(0.1)) == pytest.approx(0.1587, abs=1e-4)


def test_a_share_is_the_ratio_of_the_times_with_its_interval():
    share = share_of(2.5, 2.0, 0.1)
    assert share.value == pytest.approx(0.8)
    assert (share.low, share.high) == (
        pytest.approx(0.8 * np.exp(-0.12816)),
        pytest.approx(0.8 * np.exp(0.12816)),
    )


def test_a_return_of_one_is_twice_the_rate_for_twice_the_gpus():
    found = return_of((100.0, 200.0), (64, 128), 0.05)
    assert found.value == pytest.approx(1.0)
    assert found.high - found.low == pytest.approx(2 * 1.2816 * 0.05 / np.log(2))
    assert return_of((100.0, 300.0), (64, 256), 0.05).value == pytest.approx(np.log(3) / np.log(4))


GPUS = [8, 16, 32, 64, 128]


def test_a_crossover_lies_where_the_lines_meet_and_its_interval_where_they_may():
    a, b = [1.2, 1.1, 1.0, 0.9, 0.8], [1.0] * 5
    found = crossover_of(GPUS, a, b, [0.05] * 5)
    assert found.value == pytest.approx(32)
    assert 16 < found.low < 32 < found.high < 64
    other_way = crossover_of(GPUS, b, a, [0.05] * 5)
    assert (other_way.low, other_way.high) == pytest.approx((found.low, found.high))


def test_a_crossover_that_may_lie_beyond_the_sizes_has_no_bound_there():
    found = crossover_of(GPUS, [1.2, 1.1, 1.0, 0.9, 0.8], [1.0] * 5, [0.16] * 5)
    assert (found.low, found.high) == (None, pytest.approx(128, rel=0.2))
    assert crossover_of(GPUS, [1.2] * 5, [1.0] * 5, [0.16] * 5) is None


def test_every_prediction_says_what_of_its_error_is_its_own(points):
    asked = points({"tp": 8, "dp": 1}, {"tp": 1, "dp": 8}, {"tp": 16, "dp": 4, "seq_length": 512})
    table = prediction_table(asked, predict(asked)).to_pylist()
    for row in table:
        assert 0 < row["predicted_own_sigma"] < np.log(row["high"] / row["low"])
        assert 0 < row["predicted_size_sigma"] < np.log(row["high"] / row["low"])
    # over nodes its tensor-parallel ranks wait most of the step
    assert table[2]["predicted_own_sigma"] > table[0]["predicted_own_sigma"]
    assert table[0]["predicted_own_sigma"] > table[1]["predicted_own_sigma"]


def test_a_stall_that_may_come_widens_what_is_its_own(points):
    shared = {"framework": "nanotron", "cluster": "h100-80gb-efa", "world_size": 32, "dp": 16}
    shared |= {"pp": 2, "gradient_accumulation_steps": 16}
    prediction = predict(points({**shared, "zero_stage": 0}, {**shared, "zero_stage": 1}))
    stalls, calm = prediction.own_sigma
    assert stalls > 2 * calm
    assert prediction.high[0] / prediction.step_time_s[0] > 1.5
