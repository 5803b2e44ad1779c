"""Only what is alike is compared, and only what differs significantly is ranked: tables by hand."""

import math

import pytest

from tests.analyse.conftest import run_sql, some_point
from tests.analyse.test_tables import ran
from tests.report.synthetic_study import timed_row

pytestmark = pytest.mark.slow


def test_layouts_that_meet_other_traffic_among_experts_never_compete(tabulated):
    points = [some_point(1, routing=routing) for routing in ("balanced", "learned")]
    table = tabulated(points, [ran(points[0], 100), ran(points[1], 50)])
    assert [row["kept_choices"] for row in table("comparison_groups")] == ["", "learned routing"]
    assert [row["tokens_per_s"] for row in table("sizes")] == pytest.approx([100, 50])
    assert [row["share_of_best"] for row in table("estimates")] == [1, 1]
    assert table("pairs") == []


def matched(*layouts, factor="tp", stacks="s"):
    """Pairs of layouts that differ in one factor: (place, rate, bytes) each; all ran at 8."""
    cells = [
        {
            "group_id": 1, "class": 1, "world_size": 8, "leads": True,
            "stack_fingerprint": stacks[number % len(stacks)],
            "layout": str(number), "cell_id": number, "mean_log_rate": math.log(rate),
            "peak_memory_bytes": memory, "predicted_memory_bytes": None,
        }
        for number, (_, rate, memory) in enumerate(layouts)
    ]  # fmt: skip
    names = [
        {"group_id": 1, "layout": str(number), "layout_id": number}
        for number in range(len(layouts))
    ]
    factors = [
        {
            "layout_id": number, "factor_id": 1, "factor": factor, "others": number // 2,
            "place": place, "rank": number,
        }
        for number, (place, *_) in enumerate(layouts)
    ]  # fmt: skip
    return run_sql("inner/matched_pairs", cells=cells, names=names, factors=factors)


def test_a_pair_is_near_where_both_are_within_30_per_cent_of_the_fastest():
    pairs = matched((1, 100.0, 8), (2, 80.0, 6), (1, 100.0, 8), (2, 60.0, 9), (1, 5.0, 1))
    assert sorted((row["ratio"], row["near"], row["memory_ratio"]) for row in pairs) == [
        (pytest.approx(0.6), False, pytest.approx(9 / 8)),
        (pytest.approx(0.8), True, pytest.approx(0.75)),
    ]


def test_only_engines_are_compared_across_software_stacks():
    layouts = ((1, 100.0, 8), (2, 80.0, 6))
    assert matched(*layouts, stacks="ab") == []
    (pair,) = matched(*layouts, factor="engine", stacks="ab")
    assert (pair["ratio"], pair["stack_fingerprint"]) == (pytest.approx(0.8), "b")


def test_the_parts_of_a_step_add_up_to_the_step_that_was_timed(tabulated):
    one = some_point(2)
    profiled = {"compute_s": 0.15, "comm_s": 0.1, "exposed_comm_s": 0.06, "idle_s": 0.024}
    parts = tabulated([one], [timed_row(one, 0.2, **profiled)])("time_split")
    assert sum(row["seconds"] for row in parts) == pytest.approx(0.2)
    assert all(row["profiled_s"] == pytest.approx(0.234) for row in parts)
    assert max(row["share_to"] for row in parts) == pytest.approx(1)


@pytest.mark.parametrize(("step_time_s", "parts"), [(0.19, 3), (0.18, 0)])  # 1.23 and 1.3 times
def test_a_step_that_the_profiler_slowed_down_is_not_split(tabulated, step_time_s, parts):
    one = some_point(2)
    profiled = {"compute_s": 0.15, "comm_s": 0.1, "exposed_comm_s": 0.06, "idle_s": 0.024}
    assert len(tabulated([one], [timed_row(one, step_time_s, **profiled)])("time_split")) == parts


def test_no_part_of_a_step_is_negative_where_repeats_disagree(tabulated):
    points = [some_point(2, repeat=repeat) for repeat in range(2)]
    profiled = {"compute_s": 0.5, "comm_s": 0.3, "idle_s": 0.2}
    rows = [
        timed_row(one, 1.0, **profiled, exposed_comm_s=exposed, pipeline_bubble_s=bubble)
        for one, exposed, bubble in zip(points, (0.1, 0.1), (0.1, 0.3), strict=True)
    ]
    parts = tabulated(points, rows)("time_split")
    assert {row["part"] for row in parts} == {"compute", "pipeline bubble", "idle and rest"}
    assert min(row["seconds"] for row in parts) > 0
    assert sum(row["seconds"] for row in parts) == pytest.approx(1.0)
