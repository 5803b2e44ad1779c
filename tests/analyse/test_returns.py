"""Marginal returns: worked by hand, and what must hold for every curve."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyse.conftest import run_sql


def curve(rates: list[float], noise: float | None = 0.0) -> list[dict]:
    """Best layouts at 1, 2, 4, ... GPUs with these rates, intervals ± noise (tokens/s)."""
    return [
        {
            "setting_id": 1, "series": "measured", "world_size": 2**step, "layout": "a",
            "stack_fingerprint": "s", "tokens_per_s": rate,
            "tokens_per_s_low": None if noise is None else rate - noise,
            "tokens_per_s_high": None if noise is None else rate + noise,
            "speed_up": rate / rates[0], "efficiency": rate / rates[0] / 2**step,
        }
        for step, rate in enumerate(rates)
    ]  # fmt: skip


def test_a_step_by_hand():
    first, second = run_sql("returns", best=curve([100.0, 180.0, 300.0], noise=3.0))
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
    (step,) = run_sql("returns", best=curve([100.0, 180.0], noise=None))
    assert step["share"] == pytest.approx(0.8)
    assert (step["share_low"], step["share_high"], step["marginal_low"]) == (None, None, None)


def test_one_size_returns_nothing():
    assert run_sql("returns", best=curve([100.0])) == []


def test_a_step_between_stacks_is_marked():
    best = curve([100.0, 180.0])
    best[1]["stack_fingerprint"] = "other"
    assert run_sql("returns", best=best)[0]["same_stack"] is False


def test_predicted_and_measured_sizes_make_no_common_step():
    best = curve([100.0, 180.0])
    best[1]["series"] = "predicted"
    assert run_sql("returns", best=best) == []


rates = st.floats(1.0, 1e7)


@settings(max_examples=25, deadline=None)
@given(rates, st.integers(2, 8))
def test_perfect_scaling_returns_its_whole_share(rate, sizes):
    steps = run_sql("returns", best=curve([rate * 2**step for step in range(sizes)]))
    assert [step["share"] for step in steps] == pytest.approx([1.0] * (sizes - 1))
    assert [step["efficiency"] for step in steps] == pytest.approx([1.0] * (sizes - 1))


@settings(max_examples=25, deadline=None)
@given(rates, st.integers(2, 8))
def test_a_flat_curve_returns_nothing(rate, sizes):
    steps = run_sql("returns", best=curve([rate] * sizes))
    assert [step["marginal_tokens_per_s"] for step in steps] == [0.0] * (sizes - 1)


@settings(max_examples=25, deadline=None)
@given(st.lists(rates, min_size=2, max_size=6), st.floats(0.0, 0.5))
def test_an_interval_holds_its_value_and_steps_add_up(curve_rates, noise):
    steps = run_sql("returns", best=curve(curve_rates, noise=noise))
    for step in steps:
        assert step["marginal_low"] <= step["marginal_tokens_per_s"] <= step["marginal_high"]
        assert step["share_low"] <= step["share"] <= step["share_high"]
    gained = sum(
        step["marginal_tokens_per_s"] * (step["to_world_size"] - step["from_world_size"])
        for step in steps
    )
    assert gained == pytest.approx(curve_rates[-1] - curve_rates[0], abs=1e-6 * max(curve_rates))
