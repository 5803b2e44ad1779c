"""Marginal returns: worked by hand, and what must hold for every curve."""

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.analyse.resampling import SCHEMA
from tests.analyse.conftest import run_sql

pytestmark = pytest.mark.slow


def curve(
    rates: list[float], noise: float | None = 0.0, watts: list[float] | None = None
) -> list[dict]:
    """Best layouts at 1, 2, 4, ... GPUs with these rates, intervals ± noise (tokens/s)."""
    return [
        {
            "setting_id": 1, "series": "measured", "world_size": 2**step, "layout": "a",
            "stack_fingerprint": "s", "tokens_per_s": rate,
            "tokens_per_s_low": None if noise is None else rate - noise,
            "tokens_per_s_high": None if noise is None else rate + noise,
            "speed_up": rate / rates[0], "efficiency": rate / rates[0] / 2**step,
            "energy_j": None if watts is None else watts[step] * 1000 / rate,
            "step_time_s": 1000 / rate, "drawn": True,
            "predicted_own_sigma": None, "predicted_size_sigma": None,
        }
        for step, rate in enumerate(rates)
    ]  # fmt: skip


def returns(best, *, price=None, tdp_w=None, resampled=(), knee_share=0.75):
    """The steps between these sizes on GPUs of this price (USD an hour) and power (W)."""
    settings = pa.table(
        {
            "setting_id": pa.array([1], pa.int64()),
            "usd_per_gpu_hour": pa.array([price], pa.float64()),
            "gpu_tdp_w": pa.array([tdp_w], pa.float64()),
        }
    )
    rows = [{**dict.fromkeys(SCHEMA.names), **row} for row in resampled]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    tables = {"best": best, "settings": settings, "resampled": table}
    return run_sql("returns", knee_share=knee_share, **tables)


def test_a_step_buys_what_its_growth_is_of_what_it_costs():
    first, second = returns(curve([100.0, 180.0, 180.0], noise=0.9))
    assert first["step_return"] == pytest.approx(0.8)
    assert second["step_return"] == 0
    assert second["step_return_low"] == pytest.approx(math.exp(-math.hypot(0.005, 0.005)) - 1)


def test_what_a_prediction_is_wrong_about_at_every_size_alike_cancels_in_its_returns():
    best = curve([100.0, 180.0], noise=30.0)
    (alone,) = returns(best)
    sigma = {"series": "predicted", "predicted_own_sigma": 0.03, "predicted_size_sigma": 0.04}
    (step,) = returns([row | sigma for row in best])
    half = 1.2815515655446004 * 0.05
    assert step["marginal_high"] == alone["marginal_high"]
    assert step["share_high"] == pytest.approx(
        0.8 + 1.8 * math.hypot(math.expm1(half), -math.expm1(-half))
    )
    assert step["share_high"] < alone["share_high"] - 0.2
    assert step["efficiency_low"] > alone["efficiency_low"] + 0.1
    assert step["step_return_low"] > alone["step_return_low"] + 0.2


def test_a_step_by_hand():
    first, second = returns(curve([100.0, 180.0, 300.0], noise=3.0))
    assert (first["from_world_size"], first["to_world_size"]) == (1, 2)
    assert first["marginal_tokens_per_s"] == 80
    assert first["marginal_low"] == pytest.approx(80 - math.sqrt(18))
    assert first["share"] == pytest.approx(0.8)
    # share = T2 / T1 - 1: relative errors of both, 1.8 = T2 / T1
    assert first["share_high"] == pytest.approx(0.8 + math.hypot(3, 1.8 * 3) / 100)
    assert second["marginal_tokens_per_s"] == 60
    assert second["share"] == pytest.approx(0.6)
    # (T4 - T2) / (2 T1): both ends, and the yardstick weighted with (300 - 180) / 100
    assert second["share_low"] == pytest.approx(0.6 - math.hypot(3, 3, 1.2 * 3) / 200)
    assert second["efficiency"] == pytest.approx(0.75)


def test_without_intervals_the_return_has_none():
    (step,) = returns(curve([100.0, 180.0], noise=None))
    assert step["share"] == pytest.approx(0.8)
    assert (step["share_low"], step["share_high"], step["marginal_low"]) == (None, None, None)


def test_one_size_returns_nothing():
    assert returns(curve([100.0])) == []


def test_a_step_between_stacks_is_marked():
    best = curve([100.0, 180.0])
    best[1]["stack_fingerprint"] = "other"
    assert returns(best)[0]["same_stack"] is False


def test_predicted_and_measured_sizes_make_no_common_step():
    best = curve([100.0, 180.0])
    best[1]["series"] = "predicted"
    assert returns(best) == []


def test_dollars_and_data_sheet_watts_by_hand():
    (step,) = returns(curve([100.0, 180.0], noise=3.0), price=2.0, tdp_w=400.0)
    # 80 tokens/s for one more GPU: 3600 x 80 tokens an hour for 2 dollars, 400 W
    assert step["per_usd"] == pytest.approx(144_000)
    assert step["yardstick_per_usd"] == pytest.approx(180_000)
    assert (step["per_watt"], step["watt_from"]) == (pytest.approx(0.2), "tdp")
    assert step["per_usd_low"] == pytest.approx(1800 * (80 - math.sqrt(18)))


def test_measured_watts_go_before_the_data_sheet():
    (step,) = returns(curve([100.0, 180.0], watts=[300.0, 500.0]), tdp_w=400.0)
    assert (step["per_watt"], step["watt_from"]) == (pytest.approx(80 / 200), "measured")
    assert step["yardstick_per_watt"] == pytest.approx(100 / 300)


def test_without_price_or_power_nothing_is_said_of_them():
    (step,) = returns(curve([100.0, 180.0]))
    assert (step["per_usd"], step["per_watt"], step["watt_from"]) == (None, None, None)


def test_a_bootstrap_interval_goes_before_a_propagated_one():
    drawn = {
        "setting_id": 1, "series": "measured", "from_world_size": 1, "to_world_size": 2,
        "marginal_low": 70.0, "marginal_high": 90.0, "share_low": 0.7, "share_high": 0.9,
    }  # fmt: skip
    (step,) = returns(curve([100.0, 180.0], noise=3.0), resampled=[drawn])
    assert (step["marginal_low"], step["share_high"]) == (70.0, 0.9)
    assert step["interval_from"] == "bootstrap"


@pytest.mark.parametrize(
    ("rates", "knee", "beyond"),
    [
        ([100, 190, 300, 330], 4, False),  # 1.9, 1.58, 1.1 times
        ([100, 190, 300], 4, True),
        ([100, 140, 270], 1, False),  # the first doubling fails, though the second pays
    ],
)
def test_the_knee_ends_where_a_doubling_first_returns_too_little(rates, knee, beyond):
    steps = returns(curve([float(rate) for rate in rates]))
    (found,) = run_sql("knees", returns=steps)
    assert (found["knee_world_size"], found["beyond_data"]) == (knee, beyond)


def test_a_study_sets_the_share_of_its_knee():
    best = curve([100.0, 190.0, 300.0, 390.0])
    (low,), (high,) = (
        run_sql("knees", knee_share=share, returns=returns(best, knee_share=share))
        for share in (0.6, 0.9)
    )
    assert low["beyond_data"] is True
    assert high["knee_world_size"] == 2


rates = st.floats(1.0, 1e7)


@settings(max_examples=25, deadline=None)
@given(rates, st.integers(2, 8))
def test_perfect_scaling_has_elasticity_one_and_a_flat_curve_none(rate, sizes):
    perfect = returns(curve([rate * 2**step for step in range(sizes)]))
    assert [step["elasticity"] for step in perfect] == pytest.approx([1.0] * (sizes - 1))
    flat = returns(curve([rate] * sizes))
    assert [step["elasticity"] for step in flat] == pytest.approx([0.0] * (sizes - 1))


@settings(max_examples=25, deadline=None)
@given(rates, st.integers(2, 8))
def test_perfect_scaling_returns_its_whole_share(rate, sizes):
    steps = returns(curve([rate * 2**step for step in range(sizes)]))
    assert [step["share"] for step in steps] == pytest.approx([1.0] * (sizes - 1))
    assert [step["efficiency"] for step in steps] == pytest.approx([1.0] * (sizes - 1))


@settings(max_examples=25, deadline=None)
@given(rates, st.integers(2, 8))
def test_a_flat_curve_returns_nothing(rate, sizes):
    steps = returns(curve([rate] * sizes))
    assert [step["marginal_tokens_per_s"] for step in steps] == [0.0] * (sizes - 1)


@settings(max_examples=25, deadline=None)
@given(st.lists(rates, min_size=2, max_size=6), st.floats(0.0, 0.5))
def test_an_interval_holds_its_value_and_steps_add_up(curve_rates, noise):
    steps = returns(curve(curve_rates, noise=noise))
    for step in steps:
        assert step["marginal_low"] <= step["marginal_tokens_per_s"] <= step["marginal_high"]
        assert step["share_low"] <= step["share"] <= step["share_high"]
    gained = sum(
        step["marginal_tokens_per_s"] * (step["to_world_size"] - step["from_world_size"])
        for step in steps
    )
    assert gained == pytest.approx(curve_rates[-1] - curve_rates[0], abs=1e-6 * max(curve_rates))
