"""Two studies of known truth: the truth lies inside what the tables say."""

import math

import pytest

from tests.analyse.conftest import read, tabulate_only
from tests.analyse.known_truth import (
    LAYOUTS,
    RETURNS,
    SHARES,
    SIZES,
    best_rate,
    write_known_truth,
)
from tests.analyse.simulated_study import placed

pytestmark = pytest.mark.slow
TABLES = (
    "comparison_groups", "estimates", "sizes", "returns", "noise", "hosts", "crossovers", "knees",
)  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The tables of both studies; `of(table, model)` has the rows of one."""
    folder = tmp_path_factory.mktemp("known")
    write_known_truth(folder)
    tabulate_only(folder, folder / "sql", *TABLES)
    tables = {name: read(folder / "tables" / f"{name}.parquet") for name in TABLES}
    settings = {row["model"]: row["group_id"] for row in tables["comparison_groups"]}

    def of(table, model):
        return [row for row in tables[table] if row["group_id"] == settings[model]]

    return of


def labels(size):
    """Names of the layouts by their labels."""
    return {placed(size, "m", 0, **c).layout.label: name for name, c in LAYOUTS.items()}


@pytest.mark.parametrize("model", SHARES)
def test_rates_and_shares_lie_inside_their_intervals(told, model):
    inside = []
    for one in told("estimates", model):
        size = one["world_size"]
        share = SHARES[model][labels(size)[one["layout"]]][SIZES.index(size)]
        if one["outcome"] == "ok":
            rate = share * best_rate(size)
            inside.append(one["tokens_per_s_low"] <= rate <= one["tokens_per_s_high"])
            inside.append(one["share_low"] <= share <= one["share_high"])
    assert len(inside) == 2 * 17
    assert sum(inside) >= 0.9 * len(inside)


def test_returns_and_the_share_of_ideal_lie_inside_their_intervals(told):
    for step, returned in zip(told("returns", "first"), RETURNS, strict=True):
        assert step["step_return_low"] <= returned <= step["step_return_high"]
    last = told("sizes", "first")[-1]
    assert last["efficiency_low"] <= 0.926 <= last["efficiency_high"]


def test_a_tie_is_too_close_to_call_and_the_advice_is_one_of_both(told):
    for size in told("sizes", "first"):
        assert size["close_layouts"] == 2
        assert size["expected_loss"] < 0.01
        assert size["next_points"] == 2  # one more run of each, of 30 s
        assert size["next_gpu_hours"] == pytest.approx(2 * size["world_size"] * 30 / 3600)
    assert len({size["layout"] for size in told("sizes", "first")}) == 1


def test_advice_changes_to_the_better_layout_where_lines_cross(told):
    advised = [labels(one["world_size"])[one["layout"]] for one in told("sizes", "second")]
    assert advised == ["best", "best", "tp 2"]
    (change,) = told("crossovers", "second")
    assert change["gain_low"] <= 1 / 0.9 <= change["gain_high"]
    lead, gain = math.log(1 / 0.95), math.log(1 / 0.9)
    assert change["crossing_low"] <= 16 * 2 ** (lead / (lead + gain)) <= change["crossing_high"]


def test_the_slow_node_is_named_once_with_what_it_loses(told):
    for model in SHARES:
        (host,) = told("hosts", model)
        assert host["host"] == "node-3"
        assert host["effect_low"] <= math.expm1(0.08) <= host["effect_high"]


def test_failures_keep_their_outcome_and_are_no_candidates(told):
    failed = {
        (model, one["outcome"]): one["candidate"]
        for model in SHARES
        for one in told("estimates", model)
        if one["outcome"] != "ok"
    }
    assert failed == {("first", "oom"): False, ("second", "timeout"): False}


def test_every_doubling_pays_so_the_knee_is_beyond_the_data(told):
    (knee,) = told("knees", "first")
    assert (knee["knee_world_size"], knee["beyond_data"]) == (32, True)
    assert knee["probability"] > 0.95
