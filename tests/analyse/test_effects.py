"""Matched pairs: equal in everything but one choice, or but the engine; worked by hand."""

import duckdb
import pyarrow as pa
import pytest

from scaling.analyse import catalogue
from scaling.layout.axes import AXES
from tests.analyse.conftest import SQL, refusal_of, some_point
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


def test_each_word_of_others_is_a_level_of_its_own():
    defaults = {name: str(axis.default) for name, axis in AXES.items()}
    words = [f"their kernel {number}" for number in range(300)]
    with duckdb.connect() as connection:
        catalogue.attach_catalogue(connection, {})
        catalogue.set_variables(connection)
        chosen = [
            {"group_id": 1, "layout": word, "name": name, "value": value}
            for word in words
            for name, value in (defaults | {"attention": word}).items()
        ]
        connection.register("choices_by_axis", pa.Table.from_pylist(chosen))
        query = (SQL / "inner/differing_choices.sql").read_text(encoding="utf-8")
        places = connection.sql(query).select("level, place").fetchall()
    assert sorted(level for level, _ in places) == sorted(words)
    assert len({place for _, place in places}) == len(words)


def asked(engine, world_size=2, **choices):
    return some_point(world_size, engine=engine, **choices)


@pytest.fixture
def pairs(tabulated):
    """Two layouts under both engines, one that a refusal keeps from one, one that runs alone."""
    points = [
        asked("deepspeed", zero_stage=1), asked("torch", zero_stage=1),
        asked("deepspeed", zero_stage=3), asked("torch", zero_stage=3),
        asked("torch", zero_stage=2, tp=2),
        asked("deepspeed", zero_stage=0),
    ]  # fmt: skip
    rates = [100.0, 150.0, 80.0, 60.0, 40.0, 90.0]
    rows = [
        ran(point, rate, stack_fingerprint=point.layout.engine)
        for point, rate in zip(points, rates, strict=True)
    ]
    refusals = [refusal_of(asked("deepspeed", zero_stage=2, tp=2), "it cannot")]
    return tabulated(points, rows, refusals)("engines")


def test_layouts_are_paired_across_engines_whatever_their_stacks(pairs):
    ratios = {row["layout_name"]: row["ratio"] for row in pairs if row["ratio"] is not None}
    assert sorted(ratios.values()) == [pytest.approx(0.75), pytest.approx(1.5)]
    for row in pairs:
        if row["ratio"] is not None:
            assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]


def test_what_one_engine_refuses_stands_beside_what_the_other_ran(pairs):
    (row,) = [row for row in pairs if row["ratio"] is None]
    assert (row["from_engine"], row["from_outcome"]) == ("deepspeed", "refused")
    assert (row["to_engine"], row["to_outcome"], row["reason"]) == ("torch", "ok", "it cannot")
    assert row["to_tokens_per_s"] == pytest.approx(40)


def test_a_layout_that_one_engine_alone_was_asked_for_is_no_pair(pairs):
    assert len(pairs) == 3
