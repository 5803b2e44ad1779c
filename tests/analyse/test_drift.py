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


def drifts(logs, days=DAYS, hosts=HOSTS, groups=None, sizes=None):
    """The tests of runs, by default all of one group and size."""
    days, hosts = days[: len(logs)], hosts[: len(logs)]
    groups = np.zeros(len(logs)) if groups is None else groups
    return residual_tests(logs, days, hosts, groups, groups if sizes is None else sizes)


def by_test(logs, *more, **others):
    return {(one["test"], one["host"]): one for one in drifts(logs, *more, **others)}


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
    points = [some_point(2, zero_stage=z, repeat=r) for z in (0, 1, 2, 3) for r in range(3)]
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
    shuffled = drifts(residuals, days, hosts)
    monkeypatch.setattr(drift, "_MOST_SHUFFLED_RUNS", 0)
    drawn = drifts(residuals, days, hosts)
    for one, other in zip(shuffled, drawn, strict=True):
        assert (one["test"], one["host"], one["effect"]) == (
            other["test"], other["host"], other["effect"],
        )  # fmt: skip
        assert other["p_value"] == pytest.approx(one["p_value"], abs=0.06)
    assert {one["test"] for one in drawn} == {"time", "hour", "node"}


def test_runs_of_a_few_seconds_are_not_extrapolated_to_a_day():
    seconds = np.arange(8.0)
    found = drifts(0.02 * seconds, seconds / 86400, pa.array([["n0"]] * 8))
    (one,) = found  # in seconds no hour of the day is told from the time
    assert (one["test"], one["effect"]) == ("time", None)
    assert one["change"] == pytest.approx(np.expm1(0.14))
    assert one["p_value"] < 0.01


def test_what_a_prediction_gets_wrong_about_a_size_is_no_drift_and_makes_no_node_slow():
    """Small sizes run first and on n0 alone; predictions of larger ones are 10 % too fast."""
    sizes = np.repeat([8, 16, 32], 8)
    hosts = [[f"n{node}" for node in range(size // 8)] for size in sizes]
    wrong = NOISE + 0.1 * np.log2(sizes / 8)
    found = by_test(wrong, hosts=pa.array(hosts), groups=sizes)
    assert found["time", None]["p_value"] > 0.01
    assert not [test for test, _ in found if test == "node"]  # all runs of a size share their nodes


def test_a_layout_that_ran_twice_shows_the_whole_effect_of_a_slow_node():
    layouts = np.repeat(np.arange(12), 2)
    hosts = [["n2"] if place % 4 == 2 else [f"n{place % 2}"] for place in range(24)]
    slow = NOISE + 0.06 * (np.arange(24) % 4 == 2)
    found = by_test(slow, hosts=pa.array(hosts), groups=layouts, sizes=np.zeros(24))
    assert found["node", "n2"]["effect"] == pytest.approx(0.06, abs=0.01)
    assert found["node", "n2"]["p_value"] < 0.01


def test_a_node_is_not_slow_for_runs_that_it_shared_with_a_slow_one():
    hosts = [["n0", "n1"] if place % 3 == 0 else [f"n{place % 3}"] for place in range(24)]
    slow = NOISE + 0.1 * np.array(["n0" in names for names in hosts])
    found = by_test(slow, hosts=pa.array(hosts))
    assert found["node", "n0"]["p_value"] < 0.01
    assert found["node", "n1"]["p_value"] > 0.01


def test_a_slope_is_no_wave_and_a_wave_no_slope():
    wave = 0.02 * np.sin(2 * np.pi * DAYS)
    found = by_test(NOISE + wave)
    assert found["hour", None]["p_value"] < 0.01 < found["time", None]["p_value"]
    found = by_test(NOISE + 0.02 * DAYS)
    assert found["time", None]["p_value"] < 0.01 < found["hour", None]["p_value"]


def test_the_wave_of_runs_at_night_is_as_high_as_their_hours_differ():
    nights = np.concatenate([day + np.linspace(0.0, 0.4, 12) for day in range(2)])
    found = by_test(NOISE + 0.05 * np.cos(2 * np.pi * nights), nights)
    height = 0.05 * (1 - np.cos(0.8 * np.pi))
    assert found["hour", None]["effect"] == pytest.approx(np.expm1(height), abs=0.01)


def test_runs_of_too_few_orders_are_not_said_to_show_no_drift():
    assert drifts(NOISE[:5]) == []
    assert drifts(NOISE[:8], groups=np.repeat(np.arange(4), 2)) == []


def test_a_run_of_full_and_short_steps_counts_once(tabulated):
    points = [some_point(2, zero_stage=z, repeat=r) for z in (0, 1, 2, 3) for r in range(3)]
    rows = [
        timed_row(
            point, 1 + 0.1 * point.repeat, started_at=f"2026-11-2{point.repeat}T00:00:00+00:00",
            step_time_kind="measured", short_step_times_s=[0.2, 0.4] * 3,
            short_accumulations=[2, 4] * 3, extended_step_time_s=1 + 0.1 * point.repeat,
            extended_low_s=0.9, extended_high_s=1.3, extension_is_linear=True,
        )
        for point in points
    ]  # fmt: skip
    assert {one["series"] for one in tabulated(points, rows)("drift")} == {"extended"}
