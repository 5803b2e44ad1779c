"""Intervals hold the truth as often as they say: simulated rows, written, tabulated, read."""

from collections import defaultdict

import numpy as np
import pytest

from tests.analyse.conftest import read, tabulate_only
from tests.analyse.simulated_study import SIZES, simulate, write_simulated

pytestmark = pytest.mark.slow
KINDS = {"rates", "shares", "returns", "effects"}
TABLES = (
    "estimates", "returns", "effects", "noise", "hosts", "comparison_groups", "pairs", "sizes",
)  # fmt: skip


@pytest.fixture
def told(tmp_path):
    """Simulate studies and read what the tables say of them."""

    def run(studies=30, **facts):
        simulated = simulate(studies, **facts)
        write_simulated(tmp_path, simulated)
        tabulate_only(tmp_path, tmp_path / "sql", *TABLES)
        tables = {name: read(tmp_path / "tables" / f"{name}.parquet") for name in TABLES}
        models = {row["group_id"]: row["model"] for row in tables["comparison_groups"]}
        truth = {
            (setting, layout, size): rate
            for setting, model in models.items()
            for (of, layout, size), rate in simulated.truth.items()
            if of == model
        }
        run.disturbed = simulated.disturbed  # type: ignore[attr-defined]
        return tables, truth

    return run


def held(tables, truth):
    """By kind the share of the intervals that hold the truth, and how many there are."""
    holds = defaultdict(list)
    best = defaultdict(float)
    for (setting, _, size), rate in truth.items():
        best[setting, size] = max(best[setting, size], rate)
    for row in tables["estimates"]:
        key = row["group_id"], row["layout"], row["world_size"]
        share = truth[key] / best[key[0], key[2]]
        holds["rates"].append(row["tokens_per_s_low"] <= truth[key] <= row["tokens_per_s_high"])
        holds["shares"].append(row["share_low"] - 1e-9 <= share <= row["share_high"] + 1e-9)
    for row in tables["returns"]:
        small, large = row["from_world_size"], row["to_world_size"]
        before = truth[row["group_id"], row["from_layout"], small]
        after = truth[row["group_id"], row["to_layout"], large]
        returned = (after / before - 1) / (large / small - 1)
        holds["returns"].append(row["step_return_low"] <= returned <= row["step_return_high"])
    ratios = defaultdict(list)
    for row in tables["pairs"]:
        from_key, to_key = (
            (row["group_id"], row[f"{end}_layout"], row["world_size"]) for end in ("from", "to")
        )
        effect = row["group_id"], row["factor"], row["from_level"], row["to_level"]
        ratios[effect].append(np.log(truth[to_key] / truth[from_key]))
    for row in tables["effects"]:
        effect = row["group_id"], row["factor"], row["from_level"], row["to_level"]
        if row["near_pairs"] == row["pairs"]:
            mean = np.exp(np.mean(ratios[effect]))
            holds["effects"].append(row["near_low"] <= mean <= row["near_high"])
    return {name: (float(np.mean(values)), len(values)) for name, values in holds.items()}


def as_said(tables, truth):
    """The kinds of intervals that hold 95 % within two points and what so few of them can show."""
    return {
        name
        for name, (share, count) in held(tables, truth).items()
        if abs(share - 0.95) <= 0.02 + 2 * np.sqrt(0.05 * 0.95 / count)
    }


def regret(tables, truth):
    """The loss of the advised layouts against the truly best of their sizes, on average."""
    lost = []
    for row in tables["sizes"]:
        setting, size = row["group_id"], row["world_size"]
        best = max(rate for (of, _, at), rate in truth.items() if (of, at) == (setting, size))
        lost.append(1 - truth[setting, row["layout"], size] / best)
    return float(np.mean(lost))


@pytest.mark.parametrize("noise", [0.005, 0.04])
def test_95_per_cent_intervals_hold_93_to_97_per_cent_with_repeats(told, noise):
    tables, truth = told(noise=noise, repeats=(2, 3))
    assert as_said(tables, truth) == KINDS
    assert {row["level"] for row in tables["estimates"]} == {0.95}
    inside = [row["sigma_low"] <= noise <= row["sigma_high"] for row in tables["noise"]]
    assert np.mean(inside) > 0.8


def test_probabilities_of_being_the_best_come_true_within_5_points(told):
    tables, truth = told(studies=120)
    assert tables["hosts"] == []  # none is slow
    said, was = [], []
    best = {}
    for (setting, layout, size), rate in truth.items():
        if rate > best.get((setting, size), (0.0, ""))[0]:
            best[setting, size] = rate, layout
    for row in tables["estimates"]:
        said.append(row["p_best"])
        was.append(best[row["group_id"], row["world_size"]][1] == row["layout"])
    bins = np.digitize(said, [0.1, 0.35, 0.65, 0.9])
    for number in range(5):
        chosen = bins == number
        assert abs(np.mean(np.array(said)[chosen]) - np.mean(np.array(was)[chosen])) < 0.05
    for size in SIZES:
        of_size = [row["p_best"] for row in tables["estimates"] if row["world_size"] == size]
        assert sum(of_size) == pytest.approx(120)


def test_a_node_8_per_cent_slow_is_named_and_changes_no_interval(told):
    tables, truth = told(slow=0.08)
    assert {row["host"] for row in tables["hosts"]} == {"node-3"}
    assert as_said(tables, truth) == KINDS
    slower = np.mean([row["effect"] for row in tables["hosts"]])
    assert slower == pytest.approx(np.expm1(0.08), abs=0.01)
    assert regret(tables, truth) < 0.004


@pytest.mark.parametrize("factor", [1.2, 5.0])
@pytest.mark.parametrize("disturbed", [1, 3])
def test_disturbed_runs_among_three_are_named_and_change_no_interval(told, disturbed, factor):
    tables, truth = told(10, noise=0.009, repeats=(3,), disturbed=disturbed, factor=factor)
    assert as_said(tables, truth) == KINDS
    assert all(0.006 < row["sigma"] < 0.013 for row in tables["noise"])
    named = [row["disturbed_points"] for row in tables["estimates"] if row["disturbed_points"]]
    assert sorted(named) == sorted([one] for one in told.disturbed)
    assert regret(tables, truth) < 0.004


def test_two_repeats_one_of_them_disturbed_are_wide_and_repeated(told):
    tables, truth = told(noise=0.009, repeats=(2,), disturbed=1)
    assert as_said(tables, truth) == KINDS
    assert all(0.006 < row["sigma"] < 0.013 for row in tables["noise"])
    wide = [row for row in tables["estimates"] if row["disturbed_points"]]
    assert len(wide) == len(told.disturbed) == 30
    for row in wide:
        assert len(row["disturbed_points"]) == 2
        assert told.disturbed & set(row["disturbed_points"])
        assert row["tokens_per_s_high"] > 1.9 * row["tokens_per_s_low"]
    undecided = [row for row in wide if row["close"]]
    assert undecided
    for row in undecided:
        at = row["group_id"], row["world_size"]
        again = [one for one in tables["estimates"] if one["measure_next"]]
        again = [one["layout"] for one in again if (one["group_id"], one["world_size"]) == at]
        assert again == [row["layout"]]


def test_single_runs_say_that_their_noise_is_assumed(told):
    tables, _ = told(studies=2, repeats=(1,))
    assert {(row["assumed"], row["repeated_layouts"]) for row in tables["noise"]} == {(True, 0)}
    tables, _ = told(studies=2, repeats=(2,))
    assert {(row["assumed"], row["single_runs"]) for row in tables["noise"]} == {(False, 0)}
