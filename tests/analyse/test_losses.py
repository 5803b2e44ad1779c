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


@pytest.fixture
def judged(tabulated):
    """Whether the losses of each point agree with the others; null: nothing to say."""

    def run(points, curves, **facts):
        """A curve a point, and of each fact a value a point."""
        facts = {"tokens_per_s": [100] * len(points), "losses": curves, **facts}
        rows = [
            ran(one, **dict(zip(facts, values, strict=True)))
            for one, *values in zip(points, *facts.values(), strict=True)
        ]
        run.table = tabulated(points, rows)  # type: ignore[attr-defined]
        run.found = {row["point_id"]: row for row in run.table("losses")}  # type: ignore[attr-defined]
        return [run.found[one.point_id]["agrees"] for one in points]  # type: ignore[attr-defined]

    return run


def layouts(count, **choices):
    return [some_point(1, zero_stage=stage, **choices) for stage in range(count)]


def test_a_layout_with_other_losses_is_marked_and_stays_measured(judged):
    points = layouts(3, precision="bf16")
    rates = (100, 101, 102)
    assert judged(points, (CURVE, CURVE, OTHER), tokens_per_s=rates) == [True, True, False]
    (odd,) = [row for row in judged.found.values() if not row["agrees"]]
    assert odd["gap"] == pytest.approx(0.1)  # |2.2 - 2.0| / 2.0
    assert (odd["differs_in"], odd["at_step"]) == ("loss", 3)
    (odd,) = [row for row in judged.table("measurements") if row["losses_agree"] is False]
    assert (odd["outcome"], odd["error_message"]) == ("ok", None)
    assert odd["tokens_per_s"] == pytest.approx(102)
    (best,) = judged.table("sizes")
    assert best["tokens_per_s"] == pytest.approx(102)


def test_losses_are_compared_over_the_steps_that_both_ran(judged):
    curves = (CURVE, [*CURVE, 1.0], [*OTHER, 1.0, 0.5])
    assert judged(layouts(3, precision="bf16"), curves) == [True, True, False]
    assert {row["layouts"] for row in judged.found.values()} == {3}
    assert {row["at_step"] for row in judged.found.values() if not row["agrees"]} == {3}


BOUNDS = (
    ("fp32", 0.0003, True), ("fp32", 0.0005, False), ("bf16", 0.003, True),
    ("bf16", 0.005, False), ("fp16", 0.005, False), ("fp8", 0.03, True), ("fp8", 0.05, False),
)  # fmt: skip


def test_the_bound_of_a_loss_follows_precision_and_doubles_each_step(judged):
    points, curves = [], []
    for precision, off, _ in BOUNDS:
        points += layouts(3, model=f"{off}", precision=precision)
        # at step 3 four times the bound of the first
        curves += [CURVE, CURVE, [*CURVE[:2], CURVE[2] * (1 + off)]]
    agrees = [each for *_, agrees in BOUNDS for each in (True, True, agrees)]
    assert judged(points, curves) == agrees


def test_the_first_gradient_norm_must_agree_where_it_is_kept(judged):
    last = {4.0: True, 4.04: True, 4.2: False, 8.0: False, None: True}
    points, norms = [], []
    for norm in last:
        points += layouts(4, model=f"{norm}", precision="bf16")
        norms += [[4.0, 1.0], [4.0, 9.0], None, norm and [norm, 2.0]]
    assert judged(points, [CURVE] * len(points), grad_norms=norms) == [
        each for agrees in last.values() for each in (True, True, True, agrees)
    ]
    odd = [judged.found[one.point_id] for one in points[3::4][2:4]]
    assert {(row["differs_in"], row["at_step"]) for row in odd} == {("grad_norm", 1)}
    assert [row["gap"] for row in odd] == pytest.approx([4.2 / 4 - 1, 8 / 4 - 1])


def test_a_layout_whose_replicas_are_unequal_is_marked_even_alone(judged):
    points = layouts(2)
    judged(points[:1], [CURVE], replicas_agree=[False])
    (alone,) = judged.found.values()
    assert (alone["agrees"], alone["differs_in"], alone["gap"]) == (False, "replicas", None)
    assert judged(points, [CURVE] * 2, replicas_agree=[False, True]) == [False, True]


def test_repeats_that_differ_widen_the_bound_of_all_layouts(judged):
    repeated = [some_point(8, zero_stage=3, repeat=repeat) for repeat in range(2)]
    others = [some_point(8, zero_stage=stage) for stage in (0, 1)]
    curves = ([*CURVE[:2], 1.99], [*CURVE[:2], 2.01], CURVE, [*CURVE[:2], 2.08])
    assert judged([*repeated, *others], curves) == [True] * 4
    # repeats lie 0.01 from their layout: ten times that, over 2
    assert judged.found[others[1].point_id]["bound"] == pytest.approx(0.05)
    assert judged(others, curves[2:]) == [False] * 2


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


def test_another_routing_of_tokens_among_experts_is_another_training(judged):
    points = [*layouts(2), some_point(1, routing="learned")]
    assert judged(points, (CURVE, CURVE, OTHER)) == [True, True, None]


def test_repeats_of_one_layout_do_not_outvote_the_others(judged):
    points = [some_point(1, zero_stage=3, repeat=repeat) for repeat in range(5)]
    curves = [OTHER] * 5 + [CURVE] * 2
    assert judged([*points, *layouts(2)], curves) == [False] * 5 + [True] * 2


def test_other_seeds_precisions_and_lengths_are_other_trainings(judged):
    points = [
        some_point(1, precision="bf16"), some_point(1, precision="fp32"),
        some_point(1, precision="bf16", seq_length=256, repeat=1), some_point(1, zero_stage=2),
    ]  # fmt: skip
    curves = (CURVE, OTHER, OTHER, OTHER)
    assert judged(points, curves, seed=[1, 1, 1, 2]) == [None] * 4


@pytest.mark.parametrize(("alone", "agrees"), [(3, True), (2, False)])
def test_three_layouts_of_one_process_widen_the_bound_and_two_do_not(judged, alone, agrees):
    points = [*layouts(alone), some_point(8, zero_stage=0)]
    factors = [*(1 + 0.004 * n / (alone - 1) for n in range(alone)), 1.02]
    curves = [[CURVE[0], *(loss * factor for loss in CURVE[1:])] for factor in factors]
    assert judged(points, curves)[-1] == agrees
