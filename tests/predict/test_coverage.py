"""How often intervals hold is told beside how often right ones would, and odds beside outcomes."""

import numpy as np
import pytest

from scaling.foreign.columns import Columns
from scaling.predict.cost.model import predict
from scaling.predict.fit.coverage import (
    expected_coverage,
    odds_calibration,
    ratios_covered,
)
from scaling.predict.fit.rivals import layout_numbers, pairs_of, settings_of
from scaling.predict.read.calibration import Z_80
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from tests.predict.conftest import table_of


def made(steps, *, own=0.1, common=0.0, measured=None):
    """Layouts of one setting predicted at these steps, with errors of these parts."""
    measured = steps if measured is None else measured
    rows = [
        {"dp": 8, "vocab_size": 32000 + i, "outcome": "ok", "step_time_s": float(step)}
        for i, step in enumerate(measured)
    ]
    columns = Columns(table_of(*rows), "t")
    points = points_of(columns)
    prediction = predict(points)
    reach = Z_80 * np.hypot(0.9 * own, common)
    prediction.step_time_s[:] = steps
    prediction.low[:], prediction.high[:] = steps * np.exp(-reach), steps * np.exp(reach)
    prediction.own_sigma[:], prediction.size_sigma[:] = own, 0.0
    observed = observed_of(columns)
    settings = settings_of(points, layout_numbers(points), observed.step_time_s, observed.timed)
    return points, observed, prediction, pairs_of(settings)


def expected(count, calibrated_rows=0, **parts):
    points, observed, prediction, pairs = made(np.linspace(1, 2, count), **parts)
    found = expected_coverage(
        points, prediction, np.flatnonzero(observed.timed), pairs, calibrated_rows
    )
    assert found["steps"] is not None
    assert found["ratios"] is not None
    return tuple(found["steps"]), tuple(found["ratios"])


def test_independent_rows_are_covered_as_a_binomial_has_it():
    steps, _ = expected(80)
    # 8 in 10 lie within 1.28 standard deviations of sqrt(0.8 x 0.2 / 80)
    assert steps == pytest.approx((0.8 - 0.057, 0.8 + 0.057), abs=0.02)


def test_what_all_layouts_share_may_put_all_or_none_inside_and_moves_no_ratio():
    alone, alone_ratios = expected(80)
    steps, ratios = expected(80, common=0.3)
    assert steps[0] < 0.5 < 0.99 < steps[1]
    assert ratios == pytest.approx(alone_ratios)
    assert steps[0] < alone[0]


def test_a_width_learned_of_few_rows_covers_less_surely():
    spans = [np.ptp(expected(300, rows)[0]) for rows in (0, 1000, 20)]
    assert spans[0] < spans[1] < spans[2]


def test_rows_without_a_rival_have_no_ratios():
    points, observed, prediction, pairs = made(np.array([1.0]))
    found = expected_coverage(points, prediction, np.flatnonzero(observed.timed), pairs, 0)
    assert found["ratios"] is None
    assert ratios_covered(observed, prediction, pairs) is None
    assert odds_calibration(observed, prediction, pairs) == []
    nothing = expected_coverage(points, prediction, np.empty(0, dtype=np.int64), pairs, 0)
    assert nothing == {"steps": None, "ratios": None}


def test_odds_are_held_to_which_layout_was_faster():
    # 13 % apart is 90 % sure at sqrt(2) 0.07; layouts that are predicted alike are no bet
    steps = np.array([1.0, 1.14, 1.0])
    _, observed, prediction, pairs = made(steps, own=0.07, measured=[1.1, 1.15, 1.2])
    (line,) = odds_calibration(observed, prediction, pairs)
    assert (line["from"], line["pairs"], line["held"]) == (0.9, 2, 0.5)
    assert line["said"] == pytest.approx(0.905, abs=0.01)
