"""A full step that is derived from short ones is an estimate like a measured one."""

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


def test_full_steps_speak_for_a_point_that_ran_both(table):
    times = {(one["point_id"], one["source"]): one["step_time_s"] for one in table("measurements")}
    assert times == {
        (SLOW.point_id, "measured"): 1.0,
        (FAST.point_id, "extended"): 0.8,
        (FAILED.point_id, "extended"): None,
    }


def test_layouts_of_short_and_of_full_steps_are_compared(table):
    ranked = {one["layout"]: one for one in table("estimates")}
    assert {name: one["source"] for name, one in ranked.items()} == {
        FAST.layout.label: "extended", SLOW.layout.label: "measured",
        FAILED.layout.label: "extended",
    }  # fmt: skip
    assert [one["position"] for one in ranked.values() if one["candidate"]] == [1, 2]
    assert {one["source"] for one in table("effects")} == {"measured"}


def test_repeats_in_short_and_in_full_steps_are_one_estimate(tabulated):
    points = [some_point(2, repeat=repeat) for repeat in range(2)]
    rows = [
        in_short_steps(timed_row(points[0], 1.0), **SHORT),
        timed_row(points[1], 0.8, step_time_kind="measured"),
    ]
    (found,) = tabulated(points, rows)("estimates")
    assert (found["source"], found["ok_runs"]) == ("measured", 2)
    assert found["step_time_s"] == pytest.approx(0.8)


def test_the_error_of_the_extension_is_a_number(table):
    (found,) = table("extension")
    assert found["point_id"] == SLOW.point_id
    assert found["error"] == pytest.approx(-0.2)
    assert found["covered"] is False
    assert found["accumulations"] == [2, 4, 6]
    assert found["seconds_of_short"] == pytest.approx(6.0)


PROFILE = {
    "compute_s": 0.5, "comm_s": 0.3, "exposed_comm_s": 0.2, "idle_s": 0.1, "dp_comm_s": 0.3,
    "all_reduce_s": 0.3,
}  # fmt: skip


def test_a_step_is_split_only_if_the_advised_layout_was_profiled(tabulated):
    slower = timed_row(SLOW, 2.0, step_time_kind="measured", **PROFILE)
    short = in_short_steps(timed_row(FAST, 1.0), **SHORT)
    full = timed_row(FAST, 1.0, step_time_kind="measured", **PROFILE)
    for fastest, parts in ((short, set()), (full, {"ZeRO-1"})):
        table = tabulated([FAST, SLOW], [fastest, slower])
        assert {one["layout_name"] for one in table("time_split")} == parts
