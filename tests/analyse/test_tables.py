"""Every SQL file on tables small enough to work out by hand."""

import dataclasses

import pyarrow as pa
import pytest

from scaling.record.files import point_columns, write_table
from scaling.record.row import Row
from scaling.study.paths import StudyPaths
from tests.analyse.conftest import refusal_of, some_point
from tests.report.synthetic_study import row

pytestmark = pytest.mark.slow


def ran(point, tokens_per_s: float, *, noise: float = 0.0, **changes) -> Row:
    """The point's tokens at this rate, interval of the rate ± noise (ratio)."""
    low, high = tokens_per_s * (1 - noise), tokens_per_s * (1 + noise)
    tokens = point_columns(point)["tokens_per_step"]
    times = {"step_time_low_s": tokens / high, "step_time_high_s": tokens / low}
    return row(point, **{"step_time_s": tokens / tokens_per_s, **times, **changes})


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
    assert found["source"] == "measured"


def test_a_failure_that_claims_to_have_steps_is_left_out_and_said(tabulated):
    point = some_point()
    table = tabulated([point], [ran(point, 2000, outcome="timeout")])
    assert table("measurements") == []
    (said,) = table("excluded")
    assert said == {
        "reason": "rows/all.parquet: outcome=timeout with step_time_s: only ok has numbers",
        "rows_excluded": 1,
    }


def test_the_last_attempt_counts_and_the_first_is_counted_as_left_out(tabulated):
    point = some_point()
    table = tabulated([point], [row(point, "node_failed"), ran(point, 10, attempt=2)])
    assert [found["outcome"] for found in table("measurements")] == ["ok"]
    assert table("excluded") == [
        {"reason": "a later attempt at the point replaced it", "rows_excluded": 1}
    ]


def test_rows_of_points_the_study_no_longer_has_are_left_out_and_counted(tabulated):
    kept, dropped = some_point(1), some_point(2)
    table = tabulated([kept], [ran(kept, 10), ran(dropped, 20)])
    assert [found["world_size"] for found in table("measurements")] == [1]
    assert table("excluded") == [
        {"reason": "the point is no longer in the study", "rows_excluded": 1}
    ]


def test_settings_part_what_must_not_be_compared(tabulated):
    points = [
        some_point(1),
        some_point(2),
        some_point(1, seq_length=256),
        some_point(1, model="llama-1b"),
    ]
    found = tabulated(points)("comparison_groups")
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
        "group_id": 1, "points": 3, "ok": 1, "failed": 1, "waiting": 1,
        "predicted": 0, "refusals": 1, "skipped": 0,
    }  # fmt: skip
    assert [(one["outcome"], one["points"]) for one in table("outcomes")] == [
        ("hang", 1), ("ok", 1), (None, 1),
    ]  # fmt: skip


def test_what_a_guided_sweep_skips_is_no_refusal(tabulated, tmp_path):
    here, left = some_point(2), some_point(2, tp=2)
    skipped = point_columns(left) | {"round": 1, "chosen": False, "reason": "slower"}
    write_table(StudyPaths(tmp_path).round(1), pa.Table.from_pylist([skipped]))
    tables = tabulated([here, left], [ran(here, 100)], [refusal_of(some_point(2, pp=2), "no")])
    (progress,) = tables("progress")
    assert (progress["points"], progress["refusals"], progress["skipped"]) == (1, 1, 1)


def test_refusals_belong_to_a_setting_even_if_nothing_else_does(tabulated):
    point = some_point(2)
    other = dataclasses.replace(refusal_of(point, "made up"), model="refused-everywhere")
    table = tabulated([point], refusals=[other])
    (found,) = table("refused")
    assert found["reason"] == "made up"
    alone = table("comparison_groups")[found["group_id"] - 1]
    assert (alone["model"], alone["gpu"], alone["vendor"]) == ("refused-everywhere", None, None)


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


def test_energy_is_of_all_devices_and_power_of_one(tabulated):
    only = some_point(4)
    (found,) = tabulated([only], [ran(only, 100, energy_j=500.0, mean_power_w=2000.0)])("sizes")
    assert found["tokens_per_joule"] == 1024 / 500
    assert found["power_per_gpu_w"] == 500.0
