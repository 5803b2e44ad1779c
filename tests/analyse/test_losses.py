"""Losses of one training agree, or the odd one wins nothing; worked out by hand."""

import numpy as np
import pytest

from scaling.analyse.losses import group_medians
from tests.analyse.conftest import some_point
from tests.analyse.test_tables import ran

pytestmark = pytest.mark.slow

CURVE = [8.0, 4.0, 2.0]
OTHER = [8.0, 4.0, 2.2]  # a tenth off at the third step


def judged(tabulated, *curves, precision="bf16"):
    """Whether each of these curves, one a layout, agrees with the others; null: nothing to say."""
    points = [some_point(1, zero_stage=stage, precision=precision) for stage in range(len(curves))]
    rows = [
        ran(one, 100 + n, losses=c) for n, (one, c) in enumerate(zip(points, curves, strict=True))
    ]
    table = tabulated(points, rows)
    found = {row["point_id"]: row for row in table("losses")}
    return [found[one.point_id]["agrees"] for one in points], table


def test_the_odd_one_of_three_is_told_by_the_median_and_does_not_win(tabulated):
    agree, table = judged(tabulated, CURVE, CURVE, OTHER)
    assert agree == [True, True, False]
    gap = max(row["largest_gap"] for row in table("losses"))
    assert gap == pytest.approx(0.1)  # |2.2 - 2.0| / 2.0
    assert {row["at_step"] for row in table("losses") if not row["agrees"]} == {3}
    (odd,) = [row for row in table("measurements") if row["losses_agree"] is False]
    assert (odd["outcome"], odd["tokens_per_s"]) == ("error", None)
    assert odd["error_message"].startswith(
        "its losses differ by 10 % at step 3 from the median of 3"
    )
    (best,) = table("best")
    assert best["tokens_per_s"] == pytest.approx(101)  # the odd one was faster, at 102


def test_layouts_that_stopped_after_different_numbers_of_steps_are_compared_where_both_ran(
    tabulated,
):
    agree, table = judged(tabulated, CURVE, [*CURVE, 1.0], [*OTHER, 1.0, 0.5])
    assert agree == [True, True, False]
    assert {row["layouts"] for row in table("losses")} == {3}
    assert {row["at_step"] for row in table("losses") if not row["agrees"]} == {3}


def test_of_two_that_differ_neither_is_known_to_be_right(tabulated):
    agree, table = judged(tabulated, CURVE, OTHER)
    assert agree == [False, False]
    assert table("best") == []


def test_a_layout_alone_has_nothing_to_agree_with_and_may_win(tabulated):
    agree, table = judged(tabulated, OTHER)
    assert agree == [None]
    assert len(table("best")) == 1


@pytest.mark.parametrize(
    ("precision", "off", "agrees"),
    [
        ("fp32", 0.0009, True), ("fp32", 0.002, False), ("bf16", 0.009, True),
        ("bf16", 0.02, False), ("fp16", 0.02, False),
    ],
)  # fmt: skip
def test_rounding_is_allowed_by_precision(tabulated, precision, off, agrees):
    apart = [value * (1 + off) for value in CURVE]
    found, _ = judged(tabulated, CURVE, CURVE, apart, precision=precision)
    assert found == [True, True, agrees]


def test_another_routing_of_tokens_among_experts_is_another_training(tabulated):
    points = [
        *(some_point(1, zero_stage=stage) for stage in (0, 1)),
        some_point(1, routing="learned"),
    ]
    rows = [
        ran(one, 100, losses=curve)
        for one, curve in zip(points, (CURVE, CURVE, OTHER), strict=True)
    ]
    agree = {row["point_id"]: row["agrees"] for row in tabulated(points, rows)("losses")}
    assert [agree[one.point_id] for one in points] == [True, True, None]


def test_repeats_of_one_layout_do_not_outvote_the_others(tabulated):
    points = [some_point(1, zero_stage=3, repeat=repeat) for repeat in range(5)]
    others = [some_point(1, zero_stage=stage) for stage in (0, 1)]
    rows = [
        *(ran(one, 100, losses=OTHER) for one in points),
        *(ran(one, 100, losses=CURVE) for one in others),
    ]
    found = {
        row["point_id"]: row["agrees"] for row in tabulated([*points, *others], rows)("losses")
    }
    assert [found[one.point_id] for one in points] == [False] * 5
    assert [found[one.point_id] for one in others] == [True] * 2


def test_other_seeds_precisions_and_lengths_are_other_trainings(tabulated):
    points = [
        some_point(1, precision="bf16"), some_point(1, precision="fp32"),
        some_point(1, precision="bf16", seq_length=256, repeat=1), some_point(1, zero_stage=2),
    ]  # fmt: skip
    curves = (CURVE, OTHER, OTHER, OTHER)
    rows = [ran(one, 100, losses=curve) for one, curve in zip(points, curves, strict=True)]
    rows[3] = ran(points[3], 100, losses=OTHER, seed=2)
    assert [row["agrees"] for row in tabulated(points, rows)("losses")] == [None] * 4


def test_medians_of_groups_of_unequal_sizes_are_those_of_each_group_alone():
    random = np.random.default_rng(4)
    groups = random.permutation(np.repeat(np.arange(5, dtype=np.uint64), [1, 2, 3, 3, 6]))
    rows = random.random((len(groups), 2))
    found, firsts, counts = group_medians(rows, groups)
    assert counts.tolist() == [1, 2, 3, 3, 6]
    assert groups[firsts].tolist() == list(range(5))
    assert found == pytest.approx(
        np.array([np.median(rows[groups == n], axis=0) for n in range(5)])
    )


def test_an_earlier_attempt_of_a_point_is_not_judged_beside_its_last_one(tabulated):
    points = [some_point(1, zero_stage=stage) for stage in (0, 1)]
    first = ran(points[0], 90, losses=OTHER)
    last = [ran(one, 100, losses=CURVE, attempt=2) for one in points]
    table = tabulated(points, [first, *last])
    assert [row["agrees"] for row in table("losses")] == [True, True]
    assert [row["attempt"] for row in table("measurements")] == [2, 2]
