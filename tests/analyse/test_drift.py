"""Drift over time and slow nodes are told from noise."""

import numpy as np
import pyarrow as pa
import pytest

from scaling.analyse import drift
from scaling.analyse.drift import residual_tests
from tests.analyse.conftest import some_point
from tests.report.synthetic_study import timed_row

NOISE = 0.003 * np.random.default_rng(3).standard_normal(24)
DAYS = np.arange(24) / 10
HOSTS = pa.array([[f"n{place % 4}"] for place in range(24)])


def by_test(residuals):
    return {(one["test"], one["host"]): one for one in residual_tests(residuals, DAYS, HOSTS)}


def test_noise_is_no_drift():
    found = by_test(NOISE)
    assert found.keys() == {("time", None), ("hour", None), *(("node", f"n{i}") for i in range(4))}
    assert all(one["p_value"] > 0.02 for one in found.values())


def test_a_slope_over_days_is_seen_with_its_size():
    found = by_test(NOISE + 0.02 * DAYS)["time", None]
    assert found["p_value"] < 0.01
    assert 0.015 < found["effect"] < 0.025
    assert found["change"] == pytest.approx((1 + found["effect"]) ** 2.3 - 1)


def test_the_slow_node_is_named_and_its_neighbours_are_not():
    slow = NOISE + 0.05 * (np.arange(24) % 4 == 2)
    found = by_test(slow)
    assert found["node", "n2"]["p_value"] < 0.01
    assert 0.04 < found["node", "n2"]["effect"] < 0.06
    assert found["node", "n1"]["p_value"] > 0.1


def test_the_drift_of_repeats_is_a_table(tabulated):
    points = [some_point(2, zero_stage=z, repeat=r) for z in (0, 1, 3) for r in range(3)]
    rows = [
        timed_row(
            point, (1 + point.layout.zero_stage) * (1 + 0.1 * point.repeat),
            started_at=f"2026-11-2{point.repeat}T0{point.layout.zero_stage}:00:00+00:00",
            hosts=[f"n{point.repeat}"],
        )
        for point in points
    ]  # fmt: skip
    found = {(one["test"], one["host"]): one for one in tabulated(points, rows)("drift")}
    assert found["time", None]["residual_of"] == "repeats"
    assert 0.05 < found["time", None]["effect"] < 0.15
    assert found["time", None]["p_value"] < 0.01
    assert found["node", "n2"]["effect"] > 0.05


def test_of_many_runs_the_shuffles_are_drawn_from_what_they_are_distributed_as(monkeypatch):
    random = np.random.default_rng(5)
    runs = 600
    residuals, days = 0.003 * random.standard_normal(runs), np.arange(runs) / 10
    residuals += 1e-6 * days
    hosts = pa.array([[f"n{place % 4}", f"m{place % 3}"] for place in range(runs)])
    shuffled = residual_tests(residuals, days, hosts)
    monkeypatch.setattr(drift, "_MOST_SHUFFLED_RUNS", 0)
    drawn = residual_tests(residuals, days, hosts)
    for one, other in zip(shuffled, drawn, strict=True):
        assert (one["test"], one["host"], one["effect"]) == (
            other["test"], other["host"], other["effect"],
        )  # fmt: skip
        assert other["p_value"] == pytest.approx(one["p_value"], abs=0.06)
    assert {one["test"] for one in drawn} == {"time", "hour", "node"}


def test_runs_of_a_few_seconds_are_not_extrapolated_to_a_day():
    seconds = np.arange(8.0)
    found = residual_tests(0.02 * seconds, seconds / 86400, pa.array([["n0"]] * 8))
    (one,) = found  # in seconds no hour of the day is told from the time
    assert (one["test"], one["effect"]) == ("time", None)
    assert one["change"] == pytest.approx(np.expm1(0.14))
    assert one["p_value"] < 0.01
