"""What short steps derive stands beside what full ones measured, and is never mixed with it."""

import dataclasses

import pytest

from tests.analyse.conftest import some_point
from tests.report.synthetic_study import in_short_steps, row, timed_row

pytestmark = pytest.mark.slow

SHORT = {
    "short_step_times_s": [0.2, 0.4, 0.6] * 5,
    "short_accumulations": [2, 4, 6] * 5,
    "extended_step_time_s": 0.8,
    "extended_low_s": 0.79,
    "extended_high_s": 0.82,
    "extension_is_linear": True,
}
FAST, SLOW, FAILED = some_point(2, zero_stage=1), some_point(2, tp=2), some_point(2, zero_stage=3)


@pytest.fixture
def table(tabulated):
    """One point ran in full too and took 1 s, the short one 0.8 s at half its tokens."""
    both = timed_row(SLOW, 1.0, step_time_kind="measured", **SHORT)
    short = in_short_steps(timed_row(FAST, 1.0), **SHORT)
    failed = row(FAILED, "oom", step_time_kind="extended")
    return tabulated([FAST, SLOW, FAILED], [both, short, failed])


def test_an_extended_step_is_a_series_of_its_own(table):
    times = {(one["point_id"], one["series"]): one["step_time_s"] for one in table("measurements")}
    assert times == {
        (SLOW.point_id, "measured"): 1.0,
        (SLOW.point_id, "extended"): 0.8,
        (FAST.point_id, "extended"): 0.8,
        (FAILED.point_id, "extended"): None,
    }
    ranked = {(one["series"], one["layout"]): one["position"] for one in table("ranking")}
    assert {series for series, _ in ranked} == {"measured", "extended"}
    assert len(ranked) == 3  # layouts of both kinds are never compared


def test_of_both_kinds_the_report_speaks_of_the_extended_one(table):
    (decided,) = {one["world_size"] for one in table("decision")}
    assert decided == 2
    rows = {one["layout_name"]: one["place"] for one in table("decision") if one["outcome"] == "ok"}
    assert len(rows) == 2  # measured alone would be one layout
    assert {one["series"] for one in table("effects")} == {"extended"}


def test_a_point_of_both_kinds_is_counted_once(table):
    assert sum(one["points"] for one in table("outcomes")) == 3
    assert len(table("statistics")) == 3


def test_the_error_of_the_extension_is_a_number(table):
    (found,) = table("extension")
    assert found["point_id"] == SLOW.point_id
    assert found["error"] == pytest.approx(-0.2)
    assert found["covered"] is False
    assert found["accumulations"] == [2, 4, 6]
    assert found["seconds_of_short"] == pytest.approx(6.0)


def test_a_layout_that_ran_in_full_only_is_ranked_among_the_extended_ones(tabulated):
    short = in_short_steps(timed_row(FAST, 1.0), **SHORT)
    full = timed_row(
        SLOW, 0.5, step_time_kind="measured", step_time_low_s=0.45, step_time_high_s=0.55
    )
    failed = row(FAILED, "oom", step_time_kind="measured")
    table = tabulated([FAST, SLOW, FAILED], [short, full, failed])
    extended = {
        one["point_id"]: one for one in table("measurements") if one["series"] == "extended"
    }
    assert {point: one["outcome"] for point, one in extended.items()} == {
        FAST.point_id: "ok", SLOW.point_id: "ok", FAILED.point_id: "oom",
    }  # fmt: skip
    copied = extended[SLOW.point_id]
    assert copied["step_time_s"] == 0.5
    assert copied["step_time_low_s"] == pytest.approx(0.5 * 0.9 ** (1.2816 / 1.9600), rel=1e-4)
    assert copied["step_time_high_s"] == pytest.approx(0.5 * 1.1 ** (1.2816 / 1.9600), rel=1e-4)
    ranked = [one for one in table("ranking") if one["series"] == "extended"]
    rates = [one["tokens_per_s"] for one in sorted(ranked, key=lambda one: one["position"])]
    assert rates[0] == pytest.approx(rates[1] * 0.8 / 0.5)
    assert len(table("statistics")) == 3
    assert sum(one["points"] for one in table("outcomes")) == 3


def test_where_no_step_was_extended_full_steps_are_measured_only(tabulated):
    full = timed_row(SLOW, 0.5, step_time_kind="measured")
    assert {one["series"] for one in tabulated([SLOW], [full])("measurements")} == {"measured"}


PROFILE = {
    "compute_s": 0.5, "comm_s": 0.3, "exposed_comm_s": 0.2, "idle_s": 0.1, "dp_comm_s": 0.3,
    "all_reduce_s": 0.3,
}  # fmt: skip


def test_extended_steps_are_ranked_before_full_ones_of_slower_layouts(tabulated):
    other = some_point(2, tp=2, zero_stage=0)
    steps = {"extended_step_time_s": 1.1, "extended_low_s": 1.0, "extended_high_s": 1.2}
    rows = [
        in_short_steps(timed_row(FAST, 1.0), **SHORT),
        timed_row(SLOW, 1.0, step_time_kind="measured", **(SHORT | steps)),
        in_short_steps(timed_row(other, 1.0), **SHORT | {"extended_step_time_s": 0.81}),
    ]
    table = tabulated([FAST, SLOW, other], rows)
    places = [(one["place"], one["layout"], one["series"]) for one in table("contenders")]
    assert sorted(places) == [
        (1, FAST.layout.label, "extended"),
        (2, other.layout.label, "extended"),
        (3, SLOW.layout.label, "extended"),
        (4, SLOW.layout.label, "measured"),
    ]


def test_a_step_is_split_only_where_the_layout_that_is_advised_was_profiled(tabulated):
    full = timed_row(SLOW, 1.0, step_time_kind="measured", **SHORT, **PROFILE)
    slower = dataclasses.replace(full, extended_step_time_s=2.0, extended_high_s=2.1)
    short = in_short_steps(timed_row(FAST, 1.0), **SHORT)
    both = timed_row(FAST, 1.0, step_time_kind="measured", **SHORT, **PROFILE)
    for fastest, parts in ((short, set()), (both, {"tp 1"})):
        table = tabulated([FAST, SLOW], [fastest, slower])
        assert {one["layout_name"] for one in table("time_split")} == parts


def test_full_steps_beside_short_ones_are_no_second_curve(tabulated):
    """At one size the fastest ran in full too, at the other a slower layout did."""
    small, large = (some_point(size, zero_stage=3) for size in (1, 4))
    slower = some_point(4, tp=2)
    slow = {"extended_step_time_s": 1.6, "extended_low_s": 1.5, "extended_high_s": 1.7}
    rows = [
        timed_row(small, 1.0, step_time_kind="measured", **SHORT),
        in_short_steps(timed_row(large, 1.0), **SHORT),
        timed_row(slower, 1.5, step_time_kind="measured", **(SHORT | slow)),
    ]
    table = tabulated([small, large, slower], rows)
    best = {(one["series"], one["world_size"]): one for one in table("best")}
    assert {at for at, one in best.items() if one["drawn"]} == {
        ("extended", 1), ("extended", 4),
    }  # fmt: skip
    assert {one["series"] for one in table("returns") if one["drawn"]} == {"extended"}


def test_a_layout_that_ran_in_full_is_the_answer_where_all_short_ones_failed(tabulated):
    full = timed_row(SLOW, 0.5, step_time_kind="measured")
    failed = row(FAILED, "oom", step_time_kind="extended")
    table = tabulated([FAST, SLOW, FAILED], [full, failed])
    assert {one["series"] for one in table("decision")} == {"extended"}
    advised = {one["series"]: one["layout"] for one in table("advised")}
    assert advised["extended"] == SLOW.layout.label
