"""The same layout under two engines."""

from typing import Any

import pytest

from tests.analyse.conftest import refusal_of, some_point
from tests.analyse.test_tables import ran

pytestmark = pytest.mark.slow


def asked(engine: str, world_size: int = 2, **choices: Any) -> Any:
    return some_point(world_size, engine=engine, **choices)


@pytest.fixture
def pairs(tabulated: Any) -> list[dict[str, Any]]:
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
    table: list[dict[str, Any]] = tabulated(points, rows, refusals)("engines")
    return table


def test_layouts_are_paired_across_engines_whatever_their_stacks(pairs: Any) -> None:
    ratios = {row["layout_name"]: row["ratio"] for row in pairs if row["ratio"] is not None}
    assert sorted(ratios.values()) == [pytest.approx(0.75), pytest.approx(1.5)]
    for row in pairs:
        if row["ratio"] is not None:
            assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]


def test_what_one_engine_refuses_stands_beside_what_the_other_ran(pairs: Any) -> None:
    (row,) = [row for row in pairs if row["ratio"] is None]
    assert (row["from_engine"], row["from_outcome"]) == ("deepspeed", "refused")
    assert (row["to_engine"], row["to_outcome"], row["reason"]) == ("torch", "ok", "it cannot")
    assert row["to_tokens_per_s"] == pytest.approx(40)


def test_a_layout_that_one_engine_alone_was_asked_for_is_no_pair(pairs: Any) -> None:
    assert len(pairs) == 3
