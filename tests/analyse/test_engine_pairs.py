"""The same layout under two engines, and what the page says of it."""

from typing import Any

import pytest

from scaling.report.sections.study import engine_section
from scaling.report.tables import Tables
from tests.analyse.conftest import refusal_of, some_point
from tests.analyse.test_tables import ran

pytestmark = pytest.mark.slow

SETTINGS = [{"setting_id": 1, "model": "llama-8b"}]


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


def test_the_section_says_who_is_faster_and_what_is_refused(pairs: Any) -> None:
    section = engine_section(Tables({"engines": pairs, "settings": SETTINGS}))
    assert section is not None
    assert section["headline"] == (
        "Of 2 layouts that ran under both engines, torch is faster in 1 and deepspeed in 1 "
        "(1 under torch alone)"
    )
    said = [pair["says"] for pair in section["pairs"]]
    assert said[0].startswith("×1.50 [")
    assert said[-1] == "deepspeed: refused, it cannot"
    assert section["more"] == 0


BARE = dict.fromkeys(("step_time_low_s", "step_time_high_s"))


@pytest.mark.parametrize(
    ("rates", "changes", "verdict"),
    [
        ((101.5, 98.5), {"noise": 0.001}, "deepspeed and torch are told apart in none"),
        ((110, 90), {"noise": 0.1}, "deepspeed and torch are told apart in none"),
        (
            (110, 97),  # margins of 5 % each; opposite ends of these intervals overlap
            {"noise": 0.05},
            "torch is faster in 1 and deepspeed in 0; the others are within the noise",
        ),
        (
            (150, 96),
            BARE,
            "torch is faster in 1 and deepspeed in 0; the others are within the noise",
        ),
    ],
)
def test_engines_are_told_apart_by_the_rule_of_the_ranking(
    tabulated: Any, rates: tuple[float, float], changes: Any, verdict: str
) -> None:
    first = [asked("deepspeed", zero_stage=stage) for stage in (1, 3)]
    second = [asked("torch", zero_stage=stage) for stage in (1, 3)]
    rows = [ran(one, 100, **changes) for one in first]
    rows += [ran(one, rate, **changes) for one, rate in zip(second, rates, strict=True)]
    table = tabulated([*first, *second], rows)("engines")
    section = engine_section(Tables({"engines": table, "settings": SETTINGS}))
    assert section is not None
    assert section["headline"] == f"Of 2 layouts that ran under both engines, {verdict}"


def test_predicted_pairs_do_not_count_as_pairs_that_ran(pairs: Any) -> None:
    foretold = [{**pair, "series": "predicted"} for pair in pairs]
    section = engine_section(Tables({"engines": pairs + foretold, "settings": SETTINGS}))
    assert section is not None
    assert section["headline"].startswith("Of 2 layouts that ran under both engines")
    alone = engine_section(Tables({"engines": foretold, "settings": SETTINGS}))
    assert alone is not None
    assert alone["headline"].startswith("Predicted: of 2 layouts that fit under both engines")


def test_a_study_of_one_engine_has_no_section() -> None:
    assert engine_section(Tables({"engines": []})) is None
