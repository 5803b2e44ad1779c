"""The price of a study, and which of its points cannot fit."""

import pytest

from scaling.predict.advise.spend import memory_refusals, spend_of
from scaling.predict.cost.model import predict
from tests.predict.conftest import checked
from tests.predict.test_recommendations import SITE


def test_what_a_study_spends_is_gpus_times_steps_of_what_fits():
    points = checked({"dp": 8, "zero_stage": 3}, {"dp": 1}, {"pp": 64})
    prediction = predict(points)
    assert prediction.fits.tolist() == [True, False, False]
    spend = spend_of(points, prediction, run_s=60 + 10 * prediction.step_time_s)
    seconds = 8 * (10 * prediction.step_time_s[0] + 60)
    assert spend.points == 1
    assert spend.unpredicted == 1
    assert spend.gpu_hours == pytest.approx(seconds / 3600)
    assert spend.energy_j == pytest.approx(seconds * 400)
    assert spend.usd is None


def test_money_needs_a_price():
    points = checked({"dp": 8, "cluster": "site", "tp": 2}, clusters=SITE)
    prediction = predict(points)
    spend = spend_of(points, prediction, run_s=prediction.step_time_s)
    assert spend.usd == pytest.approx(spend.gpu_hours * 3.6)


def test_hopeless_points_are_refused_with_the_memory_term_by_term(points):
    found = points({"dp": 8, "zero_stage": 3}, {"dp": 1})
    prediction = predict(found)
    refused = memory_refusals(prediction)
    assert list(refused) == [1]
    assert prediction.likely_oom.tolist() == [False, True]
    assert "GiB is" in refused[1]
    assert "optimizer 75.3" in refused[1]  # 12 bytes x 6.74 billion parameters
