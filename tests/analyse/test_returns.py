"""Returns of a step between sizes: worked by hand, at layouts without noise of their own."""

import pytest

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


@pytest.fixture
def stepped_models(tabulated):
    """Tables of one layout of each of several models at 1, 2, 4, ... GPUs with their rates."""

    def run(rates_of):
        points = {
            some_point(2**step, model=model): rate
            for model, rates in rates_of.items()
            for step, rate in enumerate(rates)
        }
        return tabulated([*points], [ran(one, rate) for one, rate in points.items()])

    return run


def test_the_knee_ends_where_a_doubling_first_returns_too_little(stepped_models):
    rates = {
        "paid": (100, 190, 300, 330),  # 1.9, 1.58, 1.1 times
        "still": (100, 190, 300),
        "first": (100, 140, 270),  # the first doubling fails, though the second pays
        "flip": (100, 150),  # a step at the threshold
    }
    table = stepped_models(rates)
    models = {row["group_id"]: row["model"] for row in table("comparison_groups")}
    found = {models[row["group_id"]]: row for row in table("knees")}
    knees = {name: (row["knee_world_size"], row["beyond_data"]) for name, row in found.items()}
    del knees["flip"]
    assert knees == {"paid": (4, False), "still": (4, True), "first": (1, False)}
    assert all(found[name]["probability"] > 0.5 for name in knees)
    for group, name in models.items():
        sizes = [row for row in table("sizes") if row["group_id"] == group]
        assert sum(row["knee_probability"] for row in sizes) == pytest.approx(1), name
    assert 0.4 < found["flip"]["probability"] < 0.6
    (step,) = [row for row in table("returns") if models[row["group_id"]] == "flip"]
    assert 0.4 < step["pays_probability"] < 0.6
