"""Ratios of layouts: how sure a ratio is."""

import numpy as np
import pytest

from scaling.predict.cost.interval import chance_faster, ratio_sigma
from scaling.predict.cost.model import predict
from scaling.predict.cost.prediction_tables import prediction_table


def test_errors_of_two_layouts_of_a_size_add_in_squares():
    assert ratio_sigma(0.03, 0.04) == pytest.approx(0.05)


def test_the_odds_of_a_tie_are_even_and_one_in_ten_lies_beyond_an_interval():
    assert chance_faster(2.0, 2.0, np.array(0.1)) == pytest.approx(0.5)
    # an 80 % interval ends 1.2816 standard deviations away, on both sides
    ahead = np.exp(0.12816)
    assert chance_faster(1.0, ahead, np.array(0.1)) == pytest.approx(0.9, abs=1e-4)
    assert chance_faster(ahead, 1.0, np.array(0.1)) == pytest.approx(0.1, abs=1e-4)


def test_every_prediction_says_what_of_its_error_is_its_own(points):
    asked = points(
        {"tp": 8, "dp": 1},
        {"tp": 1, "dp": 8},
        {"tp": 16, "dp": 4, "seq_length": 512, "cluster": "h100-80gb-efa"},
    )
    table = prediction_table(asked, predict(asked)).to_pylist()
    own = [
        float(np.hypot(row["predicted_layout_sigma"], row["predicted_rest_sigma"])) for row in table
    ]
    for row, sigma in zip(table, own, strict=True):
        assert 0 < sigma < np.log(row["high"] / row["low"])
        assert 0 < row["predicted_size_sigma"] < np.log(row["high"] / row["low"])
    # over nodes its tensor-parallel ranks wait most of the step
    assert own[2] > own[0] > own[1]


def test_a_stall_that_may_come_widens_what_is_its_own(points):
    shared = {"framework": "nanotron", "cluster": "h100-80gb-efa", "world_size": 32, "dp": 16}
    shared |= {"pp": 2, "gradient_accumulation_steps": 16}
    prediction = predict(points({**shared, "zero_stage": 0}, {**shared, "zero_stage": 1}))
    stalls, calm = prediction.own_sigma
    assert stalls > 2 * calm
    assert prediction.high[0] / prediction.step_time_s[0] > 1.5
