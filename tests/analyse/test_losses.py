"""Losses of one training agree, or the odd one is marked; worked out by hand."""

import pyarrow.parquet as pq
import pytest

from scaling.record.files import write_rows
from scaling.record.row import Row
from tests.analyse.conftest import read, some_point, tabulate_only
from tests.analyse.test_tables import ran
from tests.h100 import h100_study

pytestmark = pytest.mark.slow

CURVE = [8.0, 4.0, 2.0]
OTHER = [8.0, 4.0, 2.2]  # a tenth off at the third step


def judged(tabulated, *curves):
    """Whether each of these curves, one a layout, agrees with the others; null: nothing to say."""
    points = [some_point(1, zero_stage=stage, precision="bf16") for stage in range(len(curves))]
    rows = [
        ran(one, 100 + n, losses=c) for n, (one, c) in enumerate(zip(points, curves, strict=True))
    ]
    table = tabulated(points, rows)
    found = {row["point_id"]: row for row in table("losses")}
    return [found[one.point_id]["agrees"] for one in points], table


def test_a_layout_with_other_losses_is_marked_and_stays_measured(tabulated):
    agree, table = judged(tabulated, CURVE, CURVE, OTHER)
    assert agree == [True, True, False]
    (odd,) = [row for row in table("losses") if not row["agrees"]]
    assert odd["gap"] == pytest.approx(0.1)  # |2.2 - 2.0| / 2.0
    assert (odd["differs_in"], odd["at_step"]) == ("loss", 3)
    (odd,) = [row for row in table("measurements") if row["losses_agree"] is False]
    assert (odd["outcome"], odd["error_message"]) == ("ok", None)
    assert odd["tokens_per_s"] == pytest.approx(102)
    (best,) = table("sizes")
    assert best["tokens_per_s"] == pytest.approx(102)


def test_losses_are_compared_over_the_steps_that_both_ran(
    tabulated,
):
    agree, table = judged(tabulated, CURVE, [*CURVE, 1.0], [*OTHER, 1.0, 0.5])
    assert agree == [True, True, False]
    assert {row["layouts"] for row in table("losses")} == {3}
    assert {row["at_step"] for row in table("losses") if not row["agrees"]} == {3}


BOUNDS = (
    ("fp32", 0.0003, True), ("fp32", 0.0005, False), ("bf16", 0.003, True),
    ("bf16", 0.005, False), ("fp16", 0.005, False), ("fp8", 0.03, True), ("fp8", 0.05, False),
)  # fmt: skip


def test_the_bound_of_a_loss_follows_precision_and_doubles_each_step(tabulated):
    rows, points = [], []
    for precision, off, _ in BOUNDS:
        apart = [*CURVE[:2], CURVE[2] * (1 + off)]  # at step 3 four times the bound of the first
        for stage, curve in enumerate((CURVE, CURVE, apart)):
            one = some_point(1, model=f"{off}", zero_stage=stage, precision=precision)
            points.append(one)
            rows.append(ran(one, 100, losses=curve))
    found = {row["point_id"]: row["agrees"] for row in tabulated(points, rows)("losses")}
    judged = [found[one.point_id] for one in points]
    assert judged == [each for *_, agrees in BOUNDS for each in (True, True, agrees)]


def test_the_first_gradient_norm_must_agree_where_it_is_kept(tabulated):
    last = {4.0: True, 4.04: True, 4.2: False, 8.0: False, None: True}
    rows = []
    for norm in last:
        for stage, norms in enumerate([[4.0, 1.0], [4.0, 9.0], None, norm and [norm, 2.0]]):
            one = some_point(1, model=f"{norm}", zero_stage=stage, precision="bf16")
            rows.append((one, ran(one, 100, losses=CURVE, grad_norms=norms)))
    points = [one for one, _ in rows]
    table = tabulated(points, [row for _, row in rows])("losses")
    found = {row["point_id"]: row for row in table}
    assert [found[one.point_id]["agrees"] for one in points] == [
        each for agrees in last.values() for each in (True, True, True, agrees)
    ]
    odd = [found[one.point_id] for one in points[3::4][2:4]]
    assert {(row["differs_in"], row["at_step"]) for row in odd} == {("grad_norm", 1)}
    assert [row["gap"] for row in odd] == pytest.approx([4.2 / 4 - 1, 8 / 4 - 1])


def test_a_layout_whose_replicas_are_unequal_is_marked_even_alone(tabulated):
    points = [some_point(1, zero_stage=stage) for stage in range(2)]
    rows = [
        ran(one, 100, losses=CURVE, replicas_agree=agree)
        for one, agree in zip(points, (False, True), strict=True)
    ]
    (alone,) = tabulated(points[:1], rows[:1])("losses")
    assert (alone["agrees"], alone["differs_in"], alone["gap"]) == (False, "replicas", None)
    found = {row["point_id"]: row["agrees"] for row in tabulated(points, rows)("losses")}
    assert [found[one.point_id] for one in points] == [False, True]


def test_repeats_that_differ_widen_the_bound_of_all_layouts(tabulated):
    repeated = [some_point(8, zero_stage=3, repeat=repeat) for repeat in range(2)]
    others = [some_point(8, zero_stage=stage) for stage in (0, 1)]
    curves = ([*CURVE[:2], 1.99], [*CURVE[:2], 2.01], CURVE, [*CURVE[:2], 2.08])
    points = [*repeated, *others]
    rows = [ran(one, 100, losses=curve) for one, curve in zip(points, curves, strict=True)]
    found = {row["point_id"]: row for row in tabulated(points, rows)("losses")}
    assert all(row["agrees"] for row in found.values())
    # repeats lie 0.01 from their layout: ten times that, over 2
    assert found[others[1].point_id]["bound"] == pytest.approx(0.05)
    alone = {row["point_id"]: row["agrees"] for row in tabulated(others, rows[2:])("losses")}
    assert set(alone.values()) == {False}


def test_no_row_of_a_real_gpu_is_marked(tmp_path):
    study = h100_study(tmp_path)
    tabulate_only(study, tmp_path / "sql", "losses", "measurements")
    marks = [row["agrees"] for row in read(study / "tables" / "losses.parquet")]
    assert (marks.count(True), marks.count(None)) == (10, 3)  # three trainings of one layout
    assert {row["outcome"] for row in read(study / "tables" / "measurements.parquet")} == {"ok"}


@pytest.mark.parametrize(("kept", "factor"), [("grad_norms", 2.0), ("losses", 1.002)])
def test_a_wrong_row_among_those_of_a_real_gpu_is_marked_at_once(tmp_path, kept, factor):
    study = h100_study(tmp_path)
    for path in sorted((study / "rows").iterdir()):
        row = pq.read_table(path).to_pylist()[0]
        if row["attention"] == "cudnn":
            wrong = {kept: [value * factor for value in row[kept]]}
            write_rows(path, [Row(**row | wrong)])
    tabulate_only(study, tmp_path / "sql", "losses")
    (odd,) = [row for row in read(study / "tables" / "losses.parquet") if row["agrees"] is False]
    assert ("cudnn" in odd["layout"], odd["at_step"]) == (True, 1)


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


def test_three_layouts_of_one_process_widen_the_bound_and_two_do_not(tabulated):
    def agrees(alone):
        layouts = [some_point(1, zero_stage=stage) for stage in range(alone)]
        far = some_point(8, zero_stage=0)
        curves = [[*CURVE[:1], *(loss * (1 + 0.002 * n) for loss in CURVE[1:])] for n in range(3)]
        rows = [ran(one, 100, losses=curve) for one, curve in zip(layouts, curves, strict=False)]
        rows.append(ran(far, 100, losses=[*CURVE[:1], *(loss * 1.02 for loss in CURVE[1:])]))
        found = {
            row["point_id"]: row["agrees"] for row in tabulated([*layouts, far], rows)("losses")
        }
        return found[far.point_id]

    assert (agrees(3), agrees(2)) == (True, False)
