"""Returns of a step between sizes: worked by hand, at layouts without noise of their own."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.analyse.conftest import some_point
from tests.analyse.test_tables import ran

pytestmark = pytest.mark.slow


@pytest.fixture
def stepped(tabulated):
    """Tables of one layout at 1, 2, 4, ... GPUs with these rates."""

    def run(*rates, **facts):
        points = [some_point(2**step) for step in range(len(rates))]
        rows = [
            ran(one, rate, **{name: values[step] for name, values in facts.items()})
            for step, (one, rate) in enumerate(zip(points, rates, strict=True))
        ]
        return tabulated(points, rows)

    return run


def test_a_step_by_hand(stepped):
    first, second = stepped(100.0, 180.0, 300.0)("returns")
    assert (first["from_world_size"], first["to_world_size"]) == (1, 2)
    assert first["faster"] == pytest.approx(1.8)
    assert first["step_return"] == pytest.approx(0.8)
    assert first["marginal_tokens_per_s"] == pytest.approx(80)
    assert second["marginal_tokens_per_s"] == pytest.approx(60)
    assert second["share"] == pytest.approx(0.6)
    assert second["efficiency"] == pytest.approx(0.75)
    assert second["returned"] == pytest.approx(300 / 180 / 2)
    assert (first["pays"], second["pays"]) == (True, True)
    for name in ("faster", "step_return", "share", "elasticity", "efficiency"):
        assert first[f"{name}_low"] < first[name] < first[f"{name}_high"]
    assert {row["level"] for row in (first, second)} == {0.95}


def test_measured_watts_are_those_of_both_ends(stepped):
    joules = [300.0 * 1024 / 100, 500.0 * 1024 / 180]  # 300 W and 500 W
    table = stepped(100.0, 180.0, energy_j=joules)
    (step,) = table("returns")
    assert (step["per_watt"], step["watt_from"]) == (pytest.approx(80 / 200), "measured")
    assert step["yardstick_per_watt"] == pytest.approx(100 / 300)
    assert [row["joules_from"] for row in table("sizes")] == ["measured", "measured"]


def test_without_a_meter_watts_are_the_data_sheets(stepped):
    table = stepped(100.0, 180.0)
    (step,), (setting,) = table("returns"), table("comparison_groups")
    assert step["per_watt"] == pytest.approx(80 / setting["gpu_tdp_w"])
    assert (step["watt_from"], step["per_usd"]) == ("tdp", None)


@pytest.mark.parametrize(
    ("rates", "knee", "beyond"),
    [
        ((100, 190, 300, 330), 4, False),  # 1.9, 1.58, 1.1 times
        ((100, 190, 300), 4, True),
        ((100, 140, 270), 1, False),  # the first doubling fails, though the second pays
    ],
)
def test_the_knee_ends_where_a_doubling_first_returns_too_little(stepped, rates, knee, beyond):
    table = stepped(*rates)
    (found,) = table("knees")
    assert (found["knee_world_size"], found["beyond_data"]) == (knee, beyond)
    assert found["probability"] > 0.5
    assert sum(row["knee_probability"] for row in table("sizes")) == pytest.approx(1)


def test_where_a_step_is_at_the_threshold_the_knee_is_a_coin_flip(stepped):
    (found,) = stepped(100.0, 150.0)("knees")
    assert 0.4 < found["probability"] < 0.6
    (step,) = stepped(100.0, 150.0)("returns")
    assert 0.4 < step["pays_probability"] < 0.6


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.floats(1.0, 1e7), min_size=2, max_size=4))
def test_added_rates_add_up_to_the_last_one(stepped, rates):
    steps = stepped(*rates)("returns")
    gained = sum(
        step["marginal_tokens_per_s"] * (step["to_world_size"] - step["from_world_size"])
        for step in steps
    )
    assert gained == pytest.approx(rates[-1] - rates[0], abs=1e-6 * max(rates))
    for step, (before, after) in zip(steps, itertools.pairwise(rates), strict=True):
        assert step["faster"] == pytest.approx(after / before)
