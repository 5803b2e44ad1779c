"""The estimates of layouts at their sizes, and the decision among them: worked by hand."""

import math
from dataclasses import replace

import pyarrow as pa
import pytest

from scaling.record.files import write_table
from scaling.study.paths import StudyPaths
from tests.analyse.conftest import layout, read, some_point
from tests.analyse.test_tables import ran
from tests.report.synthetic_study import point, row

pytestmark = pytest.mark.slow

SURE = {
    "predicted_common_sigma": 0.05, "predicted_layout_sigma": 0.01, "predicted_size_sigma": 0.01,
    "predicted_rest_sigma": 0.01, "fits": True, "fits_chance": 1.0,
}  # fmt: skip


def predict(folder, points, rates, **facts):
    """Write predictions of these rates (tokens/s)."""
    records = [
        {"point_id": one.point_id, "predicted_step_time_s": at, "low": at / 1.1, "high": at * 1.1,
         **SURE, **facts}
        for one, at in ((one, 1024 / rate) for one, rate in zip(points, rates, strict=True))
    ]  # fmt: skip
    write_table(StudyPaths(folder).predictions, pa.Table.from_pylist(records))


def stages(*numbers, size=2):
    return [some_point(size, zero_stage=number) for number in numbers]


@pytest.fixture
def measured(tabulated):
    """Tables of points that ran at these rates (tokens/s)."""
    return lambda points, rates: tabulated(
        points, [ran(one, rate) for one, rate in zip(points, rates, strict=True)]
    )


def test_a_single_run_has_its_own_rate_and_the_usual_noise(tabulated):
    (found,) = tabulated([some_point()], [ran(some_point(), 200)])("estimates")
    assert found["tokens_per_s"] == pytest.approx(200)
    assert found["step_time_s"] == pytest.approx(1024 / 200)
    assert found["ln_rate"] == pytest.approx(math.log(200))
    assert 0.012 < found["ln_rate_sigma"] < 0.02
    assert found["tokens_per_s_low"] < 197 < 203 < found["tokens_per_s_high"]
    assert (found["level"], found["single_run"], found["runs"]) == (0.95, True, 1)


def test_repeats_are_joined_in_their_geometric_mean(measured):
    points = [some_point(repeat=repeat) for repeat in range(2)]
    (found,) = measured(points, (100, 144))("estimates")
    assert found["tokens_per_s"] == pytest.approx(120)
    assert (found["runs"], found["ok_runs"], found["outcome"]) == (2, 2, "ok")
    assert found["single_run"] is False


def test_rows_of_different_stacks_are_never_averaged(tabulated):
    points = [some_point(repeat=repeat) for repeat in range(3)]
    rows = [ran(one, 100) for one in points[:2]]
    rows.append(ran(points[2], 300, stack_fingerprint="stack-b"))
    table = tabulated(points, rows)
    found = {one["stack_fingerprint"]: one for one in table("estimates")}
    rates = {stack: one["tokens_per_s"] for stack, one in found.items()}
    assert rates == {"stack-a": pytest.approx(100), "stack-b": pytest.approx(300)}
    assert [found[stack]["speaks"] for stack in ("stack-a", "stack-b")] == [True, False]
    (size,) = table("sizes")
    assert (size["tokens_per_s"], size["runner_up_layout_name"]) == (pytest.approx(100), None)


def test_a_layout_that_failed_in_every_repeat_keeps_its_commonest_outcome(tabulated):
    points = [some_point(repeat=repeat) for repeat in range(3)]
    outcomes = ("oom", "timeout", "oom")
    rows = [row(one, what, error_message=what) for one, what in zip(points, outcomes, strict=True)]
    table = tabulated(points, rows)
    (found,) = table("estimates")
    assert (found["outcome"], found["ok_runs"], found["tokens_per_s"]) == ("oom", 0, None)
    assert (found["peak_memory_bytes"], found["candidate"]) == (None, False)
    assert table("sizes") == []


def test_failures_come_behind_what_ran_and_have_no_share(tabulated):
    points = stages(0, 1, 3)
    rows = [row(points[0], "oom"), ran(points[1], 100), ran(points[2], 200)]
    *some, failed = tabulated(points, rows)("estimates")
    assert [(one["position"], one["outcome"]) for one in some] == [(1, "ok"), (2, "ok")]
    assert [one["p_best"] for one in some] == pytest.approx([1, 0], abs=1e-3)
    assert [one["share_of_best"] for one in some] == pytest.approx([1, 0.5], abs=5e-4)
    assert (failed["position"], failed["outcome"]) == (3, "oom")
    assert (failed["p_best"], failed["share_of_best"]) == (None, None)


def test_equal_layouts_are_too_close_to_call_and_a_slower_one_is_not(measured):
    table = measured(stages(0, 1, 3), (100, 100.1, 80))
    assert {one["zero_stage"]: one["close"] for one in table("estimates")} == {
        0: True, 1: True, 3: False,
    }  # fmt: skip
    (size,) = table("sizes")
    assert (size["close_layouts"], len(size["close_names"])) == (2, 2)
    losses = {one["zero_stage"]: one["expected_loss"] for one in table("estimates")}
    assert 0 < losses[0] < 0.02 < losses[3]
    assert losses[3] == pytest.approx(0.2, abs=0.02)


def test_a_layout_is_kept_where_another_one_gains_less_than_2_per_cent(measured):
    """ZeRO-1 leads at 1 and 4 GPUs, ZeRO-3 by 1 % at 2."""
    points = [one for size in (1, 2, 4) for one in stages(1, 3, size=size)]
    table = measured(points, (100, 80, 198, 200, 400, 300))
    sizes = table("sizes")
    assert [one["layout_name"] for one in sizes] == ["ZeRO-1"] * 3
    assert [one["fastest_layout_name"] for one in sizes] == ["ZeRO-1", "ZeRO-3", "ZeRO-1"]
    # what stands beside an advised layout is its own
    assert [one["tokens_per_s"] for one in sizes] == pytest.approx([100, 198, 400])
    assert sizes[1]["hours_per_token"] == pytest.approx(1 / 198 / 3600)
    assert [one["faster"] for one in table("returns")] == pytest.approx([1.98, 400 / 198])
    assert table("crossovers") == []


def test_a_change_of_layout_has_its_gain_and_where_the_lines_cross(measured):
    points = [*stages(1, 3, size=1), *stages(1, 3, size=4)]
    table = measured(points, (100, 80, 200, 250))
    (found,) = table("crossovers")
    assert (found["before_name"], found["after_name"]) == ("ZeRO-1", "ZeRO-3")
    assert found["gain"] == pytest.approx(1.25)
    assert found["gain_low"] < 1.25 < found["gain_high"]
    assert found["crossing"] == pytest.approx(2, rel=0.02)  # equal leads at both ends
    assert found["crossing_probability"] > 0.99


def test_the_advised_layout_has_its_runner_up_and_its_share_of_ideal(measured):
    small, large = measured([some_point(1), *stages(1, 3)], (100, 150, 120))("sizes")
    assert (small["efficiency"], small["runner_up_layout_name"]) == (pytest.approx(1), None)
    assert large["runner_up_layout_name"] == "ZeRO-3"
    assert large["runner_up_share"] == pytest.approx(0.8)
    assert large["ideal_tokens_per_s"] == pytest.approx(200)
    assert (large["speed_up"], large["efficiency"]) == (pytest.approx(1.5), pytest.approx(0.75))
    assert (large["candidates"], large["tried"], large["failed"]) == (2, 2, 0)


def test_colours_go_to_the_advised_layouts_then_to_the_likeliest_others(measured):
    points = [*stages(0, 1, 2, 3, size=1), *stages(0, 1, 2, 3)]
    found = measured(points, (90, 100, 70, 80, 110, 100, 99, 90))("estimates")
    slots = {one["zero_stage"]: one["slot"] for one in found}
    assert (slots[1], slots[0]) == (1, 2)
    assert sorted(slots.values()) == [1, 2, 3, 4]


def test_what_ran_speaks_before_its_prediction_which_stays_as_it_was_made(tabulated, tmp_path):
    points = stages(1, 3)
    predict(tmp_path, points, (130, 120))
    table = tabulated(points, [ran(points[0], 100)])
    found = {(one["zero_stage"], one["source"]): one for one in table("estimates")}
    assert {key: one["speaks"] for key, one in found.items()} == {
        (1, "measured"): True, (1, "predicted"): False, (3, "predicted"): True,
    }  # fmt: skip
    assert found[1, "measured"]["tokens_per_s"] == pytest.approx(100)
    assert found[1, "predicted"]["tokens_per_s"] == pytest.approx(130)
    # the prediction of another layout is corrected by what this one was off by
    assert 90 < found[3, "predicted"]["tokens_per_s"] < 97
    assert found[3, "predicted"]["level"] == 0.8
    # beside layouts that ran a predicted one is no candidate
    assert [found[key]["candidate"] for key in sorted(found)] == [True, False, False]
    (size,) = table("sizes")
    assert (size["source"], size["layout_name"]) == ("measured", "ZeRO-1")


def test_a_size_that_did_not_run_is_predicted_with_80_per_cent(tabulated, tmp_path):
    points = [some_point(size) for size in (1, 2, 4)]
    predict(tmp_path, points, (100, 200, 400))
    table = tabulated(points, [ran(points[0], 95), ran(points[1], 190)])
    sizes = table("sizes")
    assert [one["source"] for one in sizes] == ["measured", "measured", "predicted"]
    assert sizes[2]["tokens_per_s"] == pytest.approx(380, rel=0.01)  # 5 % less, as at 1 and 2
    assert [(one["source"], one["level"]) for one in table("returns")] == [
        ("measured", 0.95), ("predicted", 0.8),
    ]  # fmt: skip


@pytest.mark.parametrize(("chance", "advised"), [(0.96, "ZeRO-1"), (0.94, "ZeRO-3")])
def test_a_layout_with_less_than_95_per_cent_to_fit_is_not_advised(
    tabulated, tmp_path, chance, advised
):
    points = stages(1, 3)
    predict(tmp_path, points[1:], (100,))
    rows = StudyPaths(tmp_path).predictions
    (sure,) = read(rows)
    risky = sure | {"point_id": points[0].point_id}
    risky |= {"predicted_step_time_s": 1024 / 150, "low": 6.0, "high": 7.5, "fits_chance": chance}
    write_table(rows, pa.Table.from_pylist([sure, risky]))
    (size,) = tabulated(points)("sizes")
    assert size["layout_name"] == advised


def test_where_nothing_surely_fits_nothing_is_advised(tabulated, tmp_path):
    points = [some_point(2)]
    predict(tmp_path, points, (100,), fits_chance=0.5)
    table = tabulated(points)
    assert table("sizes") == []
    (found,) = table("estimates")
    assert (found["fits_probability"], found["candidate"]) == (0.5, False)
    assert found["tokens_per_s"] == pytest.approx(100)


def test_the_health_of_its_runs_stands_beside_an_estimate(tabulated):
    slow = [some_point(2, zero_stage=stage, repeat=n) for stage in (0, 1, 2, 3) for n in (0, 1)]
    rows = [
        ran(
            one, 100 * math.exp(-0.2 * one.repeat), hosts=[f"node-{one.repeat}"],
            slowdown_share=0.1 * one.repeat, suspended_s=30.0 * one.repeat,
        )
        for one in slow
    ]  # fmt: skip
    steps = [[one.step_time_s, one.step_time_s, 3 * one.step_time_s] for one in rows]
    rows = [replace(one, step_times_s=of) for one, of in zip(rows, steps, strict=True)]
    table = tabulated(slow, rows)
    (host,) = table("hosts")
    assert (host["host"], host["named_by"], host["runs"]) == ("node-1", "runs", 4)
    assert host["effect"] == pytest.approx(math.expm1(0.2), abs=0.02)
    for one in table("estimates"):
        assert one["slow_hosts"] == ["node-1"]
        assert one["tokens_per_s"] == pytest.approx(100, rel=0.02)
        assert (one["slowdown_share"], one["suspended_s"]) == (0.1, 30.0)
        assert one["longest_step"] == pytest.approx(3.0)


def test_a_layout_with_allocator_retries_is_marked_and_never_advised(tabulated):
    fast, slow = some_point(2, zero_stage=0), some_point(2, zero_stage=1)
    table = tabulated([fast, slow], [ran(fast, 200, num_alloc_retries=3), ran(slow, 100)])
    found = {one["layout"]: one for one in table("estimates")}
    retried = next(one for one in found.values() if one["num_alloc_retries"])
    assert (retried["candidate"], retried["advised"]) == (False, False)
    assert retried["tokens_per_s"] == pytest.approx(200)
    (size,) = table("sizes")
    assert size["tokens_per_s"] == pytest.approx(100)


def test_a_cpu_that_somebody_else_used_has_a_load_above_one(tabulated):
    one = point(layout(2), model="tiny", cluster="laptop", gpu="cpu")
    (found,) = tabulated([one], [ran(one, 100, load_average=5.0)])("estimates")
    assert found["load"] == pytest.approx(2.5)


def test_a_tie_of_predictions_is_priced_as_the_runs_that_gain_most(tabulated, tmp_path):
    """A run of 1,024 tokens a step at 100 tokens/s starts in 60 s and takes 13 steps."""
    points = [some_point(8, zero_stage=stage) for stage in (0, 1, 2)]
    unsure = {"predicted_layout_sigma": 0.1}
    predict(tmp_path, points, (100, 100, 60), **unsure)
    table = tabulated(points)
    (size,) = table("sizes")
    assert (size["close_layouts"], size["next_points"]) == (2, 1)  # which may decide already
    assert size["next_gpu_hours"] == pytest.approx(8 * (60 + 13 * 1024 / 100) / 3600)
    (chosen,) = [one for one in table("estimates") if one["measure_next"]]
    assert chosen["close"]
