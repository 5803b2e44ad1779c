"""Every SQL file on tables small enough to work out by hand."""

import dataclasses
import math
import statistics

import pyarrow as pa
import pytest

from scaling.analyse.ties import NOISE_FLOOR, PREDICTED_FLOOR, UNSTATED_FLOOR, Z80, Z95
from scaling.record.files import point_columns, write_table
from scaling.record.row import Row, fields_of
from scaling.study.grid import Refusal
from tests.analyse.conftest import SQL, refusal_of, run_sql, some_point
from tests.report.synthetic_study import row

pytestmark = pytest.mark.slow


def ran(point, tokens_per_s: float, *, noise: float = 0.0, **changes) -> Row:
    """The point's tokens at this rate, interval of the rate ± noise (ratio)."""
    low, high = tokens_per_s * (1 - noise), tokens_per_s * (1 + noise)
    tokens = point_columns(point)["tokens_per_step"]
    times = {
        "step_time_s": tokens / tokens_per_s,
        "step_time_low_s": tokens / high,
        "step_time_high_s": tokens / low,
    }
    return dataclasses.replace(row(point, **times), **changes)


@pytest.mark.parametrize("path", sorted(SQL.rglob("*.sql")), ids=lambda path: path.stem)
def test_every_sql_file_starts_with_its_grain(path):
    first, second = path.read_text(encoding="utf-8").splitlines()[:2]
    assert first.startswith("-- Grain: one row per ")
    assert second.startswith("-- Needs: ")


def test_rates_follow_from_the_step_time_and_mfu_from_the_peak(tabulated):
    point = some_point(2)
    facts = {
        "model_flops_per_token": 3_000_000_000,
        "hardware_flops_per_token": 4_000_000_000,
        "peak_flop_per_s": 1e13,
    }
    (found,) = tabulated([point], [ran(point, 2000, noise=0.25, **facts)])("measurements")
    assert found["tokens_per_s"] == 2000
    assert found["tokens_per_s_low"] == pytest.approx(1500)
    assert found["tokens_per_s_high"] == pytest.approx(2500)
    assert found["tokens_per_s_per_gpu"] == 1000
    assert found["model_flop_per_s_per_gpu"] == 3e12
    assert found["hardware_flop_per_s_per_gpu"] == 4e12
    assert found["mfu"] == pytest.approx(0.3)
    assert found["hfu"] == pytest.approx(0.4)
    assert found["series"] == "measured"


def test_without_a_published_peak_there_is_no_mfu(tabulated):
    point = some_point()
    (found,) = tabulated([point], [ran(point, 2000, peak_flop_per_s=None)])("measurements")
    assert found["mfu"] is None
    assert found["hfu"] is None
    assert found["model_flop_per_s_per_gpu"] > 0


def test_a_failure_that_claims_to_have_steps_is_left_out_and_said(tabulated):
    point = some_point()
    table = tabulated([point], [ran(point, 2000, outcome="timeout")])
    assert table("measurements") == []
    (said,) = table("left_out")
    assert said == {
        "reason": "rows/all.parquet: outcome=timeout with step_time_s: only ok has numbers",
        "rows_left_out": 1,
    }


def test_the_last_attempt_counts_and_the_first_is_counted_as_left_out(tabulated):
    point = some_point()
    table = tabulated([point], [row(point, "node_failed"), ran(point, 10, attempt=2)])
    assert [found["outcome"] for found in table("measurements")] == ["ok"]
    assert table("left_out") == [
        {"reason": "a later attempt at the point replaced it", "rows_left_out": 1}
    ]


def test_rows_of_points_the_study_no_longer_has_are_left_out_and_counted(tabulated):
    kept, dropped = some_point(1), some_point(2)
    table = tabulated([kept], [ran(kept, 10), ran(dropped, 20)])
    assert [found["world_size"] for found in table("measurements")] == [1]
    assert table("left_out") == [
        {"reason": "the point is no longer in the study", "rows_left_out": 1}
    ]


def test_repeats_are_joined_in_their_median_with_students_interval(tabulated):
    points = [some_point(repeat=repeat) for repeat in range(3)]
    rates = (100, 220, 200)
    rows = [ran(one, rate, noise=0.1) for one, rate in zip(points, rates, strict=True)]
    (found,) = tabulated(points, rows)("layouts")
    assert found["tokens_per_s"] == pytest.approx(200)
    assert found["step_time_s"] == pytest.approx(1024 / 200)
    half = 4.302653 * statistics.stdev(map(math.log, rates)) / math.sqrt(3)  # two degrees
    middle = statistics.geometric_mean(rates)
    assert found["tokens_per_s_low"] == pytest.approx(middle / math.exp(half))
    assert found["tokens_per_s_high"] == pytest.approx(middle * math.exp(half))
    assert (found["runs"], found["ok_runs"], found["outcome"]) == (3, 3, "ok")


def test_the_interval_of_two_repeats_counts_the_spread_of_other_layouts_too(tabulated):
    """Two other pairs are two degrees of freedom: (2 s^2 + own squares) / 3, and t of three."""
    points = [some_point(zero_stage=stage, repeat=one) for stage in (0, 1, 2) for one in (0, 1)]
    logs = {0: 0.01, 1: 0.02, 2: 0.03}  # half the distance of two repeats
    bare = dict.fromkeys(("step_time_low_s", "step_time_high_s"))
    rows = [
        ran(one, 100 * math.exp((2 * one.repeat - 1) * logs[one.layout.zero_stage]), **bare)
        for one in points
    ]
    of = {row["zero_stage"]: row for row in tabulated(points, rows)("layouts")}
    pooled = math.sqrt(2) * 0.02 / (7 / 9) ** 1.5
    for stage, half in logs.items():
        error = math.sqrt((2 * pooled**2 + 2 * half**2) / 3 / 2)
        ends = of[stage]["tokens_per_s_low"], of[stage]["tokens_per_s_high"]
        grown = math.exp(3.182446 * error)
        assert ends == pytest.approx((100 / grown, 100 * grown))


def test_repeats_are_at_least_as_uncertain_as_their_own_steps_say(tabulated):
    points = [some_point(repeat=repeat) for repeat in range(2)]
    (found,) = tabulated(points, [ran(one, 100, noise=0.1) for one in points])("layouts")
    own = math.log(1.1 / 0.9) / 2 / 1.959964
    low = 100 / math.exp(12.706205 * own / math.sqrt(2))
    assert found["tokens_per_s_low"] == pytest.approx(low)


def test_rows_of_different_stacks_are_never_averaged(tabulated):
    points = [some_point(repeat=repeat) for repeat in range(2)]
    rows = [ran(points[0], 100), ran(points[1], 300, stack_fingerprint="stack-b")]
    found = tabulated(points, rows)("layouts")
    assert [(one["stack_fingerprint"], one["tokens_per_s"]) for one in found] == [
        ("stack-b", 300),
        ("stack-a", 100),
    ]


def test_a_layout_that_failed_in_every_repeat_keeps_its_commonest_outcome(tabulated):
    points = [some_point(repeat=repeat) for repeat in range(3)]
    outcomes = ("oom", "timeout", "oom")
    rows = [row(one, what, error_message=what) for one, what in zip(points, outcomes, strict=True)]
    (found,) = tabulated(points, rows)("layouts")
    assert (found["outcome"], found["ok_runs"], found["tokens_per_s"]) == ("oom", 0, None)
    assert found["peak_memory_bytes"] is None


def test_ranking_is_by_rate_and_knows_who_lies_within_the_noise(tabulated):
    points = [some_point(2, zero_stage=stage) for stage in (0, 1, 3)]
    rates = (1000, 950, 700)
    rows = [ran(one, rate, noise=0.04) for one, rate in zip(points, rates, strict=True)]
    found = tabulated(points, rows)("ranking")
    assert [one["position"] for one in found] == [1, 2, 3]
    assert [one["share_of_best"] for one in found] == pytest.approx([1, 0.95, 0.7])
    assert [one["within_noise"] for one in found] == [True, True, False]


def ranked(*rates, series="measured", low=None, high=None, own=None, spread=None):
    layouts = [
        {
            "setting_id": 1,
            "series": series,
            "world_size": 1,
            "layout": name,
            "layout_name": name,
            "layout_lines": name,
            "stack_fingerprint": "s",
            "ok_runs": 1,
            "tokens_per_s": rate,
            "tokens_per_s_low": low,
            "tokens_per_s_high": high,
            "predicted_own_sigma": own,
            "predicted_size_sigma": own,
        }
        for name, rate in zip("abc", rates, strict=False)
    ]  # fmt: skip
    noise = [{"setting_id": 1, "series": series, "repeat_sigma": spread}]
    return [one["within_noise"] for one in run_sql("ranking", layouts=layouts, noise=noise)]


@pytest.mark.parametrize(
    ("facts", "floor"),
    [
        ({}, UNSTATED_FLOOR),
        ({"spread": 0.05}, math.expm1(0.05 * Z95 * math.sqrt(2))),
        ({"series": "predicted"}, PREDICTED_FLOOR),
        ({"series": "predicted", "own": 0.001}, NOISE_FLOOR),
        ({"series": "predicted", "own": 0.05}, math.expm1(Z80 * math.sqrt(2) * 0.05)),
    ],
)
def test_a_lead_tells_rates_apart_only_above_the_floor_of_what_is_known_of_them(facts, floor):
    assert ranked(1 + 1.02 * floor, 1.0, **facts) == [True, False]
    assert ranked(1 + 0.98 * floor, 1.0, **facts) == [True, True]


def test_the_best_layout_has_its_runner_up_and_its_share_of_ideal(tabulated):
    one, two, other = some_point(1), some_point(2), some_point(2, zero_stage=3)
    rows = [ran(one, 100, noise=0.01), ran(two, 150, noise=0.01), ran(other, 140, noise=0.1)]
    small, large = tabulated([one, two, other], rows)("best")
    assert (small["world_size"], small["efficiency"], small["runner_up_layout"]) == (1, 1, None)
    assert small["tied"] is None
    assert large["layout_name"] == "ZeRO 1"
    assert large["runner_up_layout_name"] == "ZeRO 3"
    assert (large["tied"], large["tied_layouts"]) == (True, 1)
    assert large["ideal_tokens_per_s"] == 200
    assert (large["speed_up"], large["efficiency"]) == (1.5, 0.75)


def test_a_second_stack_of_the_same_layout_is_no_runner_up(tabulated):
    points = [some_point(repeat=repeat) for repeat in range(2)]
    rows = [ran(points[0], 100), ran(points[1], 300, stack_fingerprint="stack-b")]
    (found,) = tabulated(points, rows)("best")
    assert found["tokens_per_s"] == 300
    assert found["runner_up_layout"] is None


def test_a_layout_that_is_the_same_training_there_is_no_runner_up(tabulated):
    """A shard group of two ranks of two replicas is plain ZeRO-3."""
    points = [
        some_point(2, zero_stage=3),
        some_point(2, zero_stage=3, zero_shard_size=2),
        some_point(2, zero_stage=1),
    ]
    rates = (100, 99.5, 90)
    rows = [ran(one, rate, noise=0.001) for one, rate in zip(points, rates, strict=True)]
    (found,) = tabulated(points, rows)("best")
    assert found["runner_up_layout_name"] == "ZeRO 1"
    assert (found["tied"], found["tied_layouts"]) == (False, 0)


def test_what_a_choice_is_worth_leaves_out_other_software(tabulated):
    points = [some_point(2, zero_stage=stage) for stage in (1, 3, 2)]
    rows = [ran(points[0], 100), ran(points[1], 80), ran(points[2], 50, stack_fingerprint="b")]
    (found,) = tabulated(points, rows)("best")
    assert found["slowest_share"] == pytest.approx(0.8)
    (alone,) = tabulated(points[::2], rows[::2])("best")
    assert alone["slowest_share"] is None


def test_the_label_says_what_differs_and_only_where_it_changes(tabulated):
    points = [some_point(1), some_point(2), some_point(4, tp=2, zero_stage=3)]
    rows = [ran(one, 100) for one in points]
    assert [one["label"] for one in tabulated(points, rows)("best")] == [
        "tp 1|Z1",
        None,
        "tp 2|Z3",
    ]


def test_layouts_are_named_by_what_differs_in_their_setting(tabulated):
    full = {"activation_checkpointing": "full", "zero_stage": 0}
    table = tabulated([some_point(1), some_point(2, tp=2), some_point(2, **full)])
    planned = sorted(table("names"), key=lambda one: (-one["zero_stage"], one["tp"]))
    assert [one["layout_name"] for one in planned] == [
        "tp 1, ZeRO 1",
        "tp 2, ZeRO 1",
        "tp 1, ZeRO 0, full checkpointing",
    ]
    assert [one["layout_lines"] for one in planned] == [
        "tp 1|Z1",
        "tp 2|Z1",
        "tp 1|Z0 ckpt",
    ]


def test_colours_go_to_the_winners_by_size_then_to_the_closest_rivals(tabulated):
    points = [some_point(size, zero_stage=stage) for size in (1, 2) for stage in (0, 1, 2, 3)]
    rates = (90, 100, 80, 70, 110, 100, 105, 90)
    rows = [ran(one, rate) for one, rate in zip(points, rates, strict=True)]
    found = {one["layout_name"]: one["slot"] for one in tabulated(points, rows)("colours")}
    assert found == {"ZeRO 1": 1, "ZeRO 0": 2, "ZeRO 2": 3, "ZeRO 3": 4}


def test_a_seventh_layout_is_grey(tabulated):
    points = [
        some_point(2, zero_stage=stage, micro_batch_size=1, attention=attention)
        for stage in (0, 1, 2, 3)
        for attention in ("math", "flash2")
    ]
    rows = [ran(one, 100 - number) for number, one in enumerate(points)]
    slots = [one["slot"] for one in tabulated(points, rows)("colours")]
    assert slots == [1, 2, 3, 4, 5, 6, 7, 7]


def test_contenders_put_failures_behind_those_that_ran(tabulated):
    points = [some_point(2, zero_stage=stage) for stage in (0, 1, 3)]
    rows = [row(points[0], "oom"), ran(points[1], 100), ran(points[2], 200)]
    found = tabulated(points, rows)("contenders")
    assert [(one["position"], one["outcome"], one["share_of_best"]) for one in found] == [
        (1, "ok", 1.0),
        (2, "ok", 0.5),
        (3, "oom", None),
    ]


def test_settings_part_what_must_not_be_compared(tabulated):
    points = [
        some_point(1),
        some_point(2),
        some_point(1, seq_length=256),
        some_point(1, model="llama-1b"),
    ]
    found = tabulated(points)("settings")
    assert [(one["model"], one["seq_length"], one["kept_batch_size"]) for one in found] == [
        ("tiny", 128, 8),
        ("tiny", 256, 8),
        ("llama-1b", 128, 8),
    ]
    assert {one["vendor"] for one in found} == {"nvidia"}
    assert {one["gpu_memory_bytes"] for one in found} == {80 * 2**30}


def test_progress_counts_what_ran_failed_waits_and_was_refused(tabulated):
    points = [some_point(2, zero_stage=stage) for stage in (0, 1, 3)]
    table = tabulated(
        points, [ran(points[0], 10), row(points[1], "hang")], [refusal_of(points[0], "x")]
    )
    (found,) = table("progress")
    assert found == {
        "setting_id": 1, "points": 3, "ok": 1, "failed": 1, "waiting": 1,
        "predicted": 0, "refusals": 1, "skipped": 0,
    }  # fmt: skip
    assert [(one["outcome"], one["points"]) for one in table("outcomes")] == [
        ("hang", 1), ("ok", 1), (None, 1),
    ]  # fmt: skip


def test_what_a_guided_sweep_skips_is_no_refusal(tabulated, tmp_path):
    here, left = some_point(2), some_point(2, tp=2)
    asked = {name: point_columns(left).get(name) for name in fields_of(Refusal)}
    chosen = asked | {"reason": "slower", "point_id": left.point_id, "repeat": 0, "chosen": False}
    write_table(tmp_path / "chosen" / "2.parquet", pa.Table.from_pylist([chosen]))
    tables = tabulated([here, left], [ran(here, 100)], [refusal_of(some_point(2, pp=2), "no")])
    (progress,) = tables("progress")
    assert (progress["points"], progress["refusals"], progress["skipped"]) == (1, 1, 1)


def test_refusals_belong_to_a_setting_even_if_nothing_else_does(tabulated):
    point = some_point(2)
    other = dataclasses.replace(refusal_of(point, "made up"), model="refused-everywhere")
    table = tabulated([point], refusals=[other])
    (found,) = table("refused")
    assert found["reason"] == "made up"
    alone = table("settings")[found["setting_id"] - 1]
    assert (alone["model"], alone["gpu"], alone["vendor"]) == ("refused-everywhere", None, None)


def test_statistics_keep_the_points_that_have_not_run(tabulated):
    first, second = some_point(1), some_point(2)
    found = tabulated([first, second], [ran(first, 10)])("statistics")
    assert {one["world_size"]: one["outcome"] for one in found} == {1: "ok", 2: None}


def test_noise_comes_from_intervals_and_from_repeats(tabulated):
    points = [some_point(repeat=repeat) for repeat in range(2)]
    rows = [ran(points[0], 90, noise=0.0), ran(points[1], 110, noise=0.0)]
    (found,) = tabulated(points, rows)("noise")
    assert found["repeat_half_spread"] == pytest.approx(0.1)
    half = 12.706205 * math.log(110 / 90) / 2  # of one degree of freedom
    middle = math.sqrt(90 * 110)
    assert found["interval_half_width"] == pytest.approx(middle * math.sinh(half) / 100)
    assert found["repeated_layouts"] == 1


def test_provenance_has_one_row_per_stack_with_all_its_hosts(tabulated):
    points = [some_point(repeat=repeat) for repeat in range(3)]
    rows = [
        ran(points[0], 10, hosts=["b", "a"], git_commit="1"),
        ran(points[1], 10, hosts=["a", "c"], git_commit="2", liger_kernel_version="0.8.5"),
        ran(points[2], 10, stack_fingerprint="stack-b"),
    ]
    first, second = tabulated(points, rows)("provenance")
    assert (first["stack_fingerprint"], first["measurements"]) == ("stack-a", 2)
    assert (first["hosts"], first["git_commit"]) == (["a", "b", "c"], "1, 2")
    assert first["liger_kernel_version"] == "0.8.5"
    assert second["stack_fingerprint"] == "stack-b"


def test_a_predicted_curve_starts_at_the_last_point_that_is_not():
    columns = {
        "setting_id": 1, "tokens_per_s": 1.0, "tokens_per_s_per_gpu": 1.0, "mfu": None,
        "model_flop_per_s_per_gpu": None, "drawn": True,
    }  # fmt: skip
    best = [
        {**columns, "world_size": size, "series": series}
        for size, series in ((1, "measured"), (2, "measured"), (4, "predicted"), (8, "predicted"))
    ]
    found = [(one["style"], one["world_size"]) for one in run_sql("curves", best=best)]
    assert found == [
        ("observed", 1), ("observed", 2), ("predicted", 2), ("predicted", 4), ("predicted", 8),
    ]  # fmt: skip


def test_of_two_series_that_ran_at_the_last_size_a_predicted_curve_starts_at_the_firmer():
    columns = {
        "setting_id": 1, "tokens_per_s_per_gpu": 1.0, "mfu": None,
        "model_flop_per_s_per_gpu": None, "drawn": True,
    }  # fmt: skip
    best = [
        {**columns, "world_size": size, "series": series, "tokens_per_s": rate}
        for size, series, rate in (
            (2, "published", 1.0),
            (2, "measured", 2.0),
            (4, "predicted", 3.0),
        )
    ]
    predicted = [one for one in run_sql("curves", best=best) if one["style"] == "predicted"]
    assert [one["tokens_per_s"] for one in predicted] == [2.0, 3.0]


def test_the_spread_of_repeats_is_that_of_their_layouts_and_one_odd_run_does_not_count(tabulated):
    """Two repeats 2 % apart: 1.4 % by their variance, 2.1 % by the median of what two show."""
    stages = (0, 1, 2, 3)
    points = [some_point(zero_stage=stage, repeat=repeat) for stage in stages for repeat in (0, 1)]
    odd = points[-1]
    rows = [ran(p, 130 if p is odd else 100 * math.exp(0.02 * p.repeat)) for p in points]
    (found,) = tabulated(points, rows)("noise")
    assert found["repeat_sigma"] == pytest.approx(0.02 / math.sqrt(2) / (7 / 9) ** 1.5)
