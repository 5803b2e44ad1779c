"""Matched pairs: equal in everything but one choice, worked by hand."""

import pytest

from tests.analyse.conftest import some_point
from tests.analyse.test_tables import ran

pytestmark = pytest.mark.slow


def effects(tabulated, layouts):
    points = [some_point(**choices) for choices, _ in layouts]
    rows = [ran(one, rate) for one, (_, rate) in zip(points, layouts, strict=True)]
    return {row["name"]: row for row in tabulated(points, rows)("effects")}


def test_pairs_are_counted_and_averaged_as_ratios(tabulated):
    found = effects(
        tabulated,
        [
            ({"world_size": 2, "zero_stage": 1}, 100.0),
            ({"world_size": 2, "zero_stage": 3}, 80.0),
            ({"world_size": 4, "zero_stage": 1}, 200.0),
            ({"world_size": 4, "zero_stage": 3}, 90.0),
        ],
    )
    (one,) = found.values()
    assert (one["name"], one["pairs"]) == ("ZeRO 3, against 1", 2)
    assert one["mean_ratio"] == pytest.approx((0.8 * 0.45) ** 0.5)
    assert (one["lowest"], one["highest"]) == (pytest.approx(0.45), pytest.approx(0.8))


def test_layouts_that_differ_in_two_choices_are_no_pair(tabulated):
    layouts = [
        ({"world_size": 4, "zero_stage": 1, "fused_norm": False}, 100.0),
        ({"world_size": 4, "zero_stage": 3, "fused_norm": True}, 90.0),
        ({"world_size": 4, "tp": 2, "zero_stage": 1, "fused_norm": True}, 80.0),
        ({"world_size": 4, "tp": 1, "zero_stage": 2, "micro_batch_size": 2}, 70.0),
    ]
    assert effects(tabulated, layouts) == {}


def test_an_axis_that_is_null_for_all_ranks_has_a_level_of_its_own(tabulated):
    """zero_shard_size null: one copy over all four."""
    layouts = [
        ({"world_size": 4, "zero_stage": 3, "zero_shard_size": size, "compile": compiled},
         100.0 * (1.2 if size else 1) * (1.1 if compiled else 1))
        for size in (None, 2) for compiled in (False, True)
    ]  # fmt: skip
    found = effects(tabulated, layouts)
    assert {name: row["pairs"] for name, row in found.items()} == {
        "ZeRO shard all, against 2": 2, "compile on, against off": 2,
    }  # fmt: skip
    assert found["ZeRO shard all, against 2"]["mean_ratio"] == pytest.approx(1 / 1.2)
