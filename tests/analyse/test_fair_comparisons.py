"""Only what is alike is compared, and only what is told apart is ranked: tables by hand."""

import dataclasses
import math

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from scipy.special import stdtrit

from scaling.analyse.resampling import effect_intervals
from scaling.analyse.sources import TIME_PARTS
from scaling.analyse.ties import NOISE_FLOOR, margin_of
from scaling.record.files import write_table
from scaling.record.row import Row
from scaling.study.paths import StudyPaths
from tests.analyse.conftest import run_sql, some_point
from tests.analyse.test_tables import ran
from tests.report.synthetic_study import timed_row

pytestmark = pytest.mark.slow

NOISE = margin_of(NOISE_FLOOR)


def test_layouts_that_meet_other_traffic_among_experts_never_compete(tabulated):
    points = [some_point(1, routing=routing) for routing in ("balanced", "learned")]
    table = tabulated(points, [ran(points[0], 100), ran(points[1], 50)])
    assert [row["kept_choices"] for row in table("settings")] == ["", "learned routing"]
    assert [row["tokens_per_s"] for row in table("best")] == pytest.approx([100, 50])
    assert [row["share_of_best"] for row in table("ranking")] == [1, 1]
    assert table("pairs") == []


def costs(*rates, kind="measured"):
    """The costs of sizes 1, 2, 4, ... at these rates, told apart from 2 % on."""
    best = [
        {
            "setting_id": 1, "series": kind, "world_size": 2**n, "layout_name": "a", "slot": 1,
            "drawn": True, "tokens_per_s": rate, "tokens_per_s_low": rate / 1.1,
            "tokens_per_s_high": rate * 1.1, "energy_j": None, "tokens_per_step": 1,
            "margin": NOISE, "predicted_size_sigma": None,
        }
        for n, rate in enumerate(rates)
    ]  # fmt: skip
    settings = [
        {
            "setting_id": 1, "model": "m", "cluster": "c", "study_kind": "strong",
            "seq_length": 1, "kept_batch_size": 1, "kept_choices": "", "gpu_tdp_w": 1.0,
            "usd_per_gpu_hour": 2.0,
        }
    ]  # fmt: skip
    return run_sql("costs", best=best, settings=settings)


def test_a_size_is_not_dominated_by_one_per_cent():
    assert [row["on_front"] for row in costs(100.0, 202.0)] == [True, True]
    assert [row["on_front"] for row in costs(100.0, 210.0)] == [False, True]
    assert [row["on_front"] for row in costs(100.0, 190.0)] == [True, True]


def test_both_axes_of_a_cost_carry_the_interval_of_the_rate():
    small, large = costs(100.0, 190.0)
    for row in (small, large):
        for name in ("hours_per_token", "gpu_hours_per_token", "usd_per_token"):
            ratios = [row[f"{name}_{end}"] / row[name] for end in ("low", "high")]
            assert ratios == pytest.approx([1 / 1.1, 1.1])


def matched(*layouts, same_at=1):
    """Pairs of layouts that differ in one factor: (place, rate, bytes) each.

    The first two are the same training at `same_at` GPUs; all ran at 8.
    """
    rows = [
        {
            "setting_id": 1, "series": "measured", "world_size": 8, "stack_fingerprint": "s",
            "layout_id": number, "tokens_per_s": rate, "peak_memory_bytes": memory,
            "predicted_memory_bytes": None,
        }
        for number, (_, rate, memory) in enumerate(layouts)
    ]  # fmt: skip
    factors = [
        {"layout_id": number, "factor_id": 1, "others": number // 2, "place": place, "rank": number}
        for number, (place, *_) in enumerate(layouts)
    ]
    same = [{"setting_id": 1, "world_size": same_at, "layout_id": 0, "same_id": 1}]
    return run_sql("inner/matched_pairs", layouts=rows, factors=factors, coinciding=same)


def test_a_pair_is_near_where_both_are_within_30_per_cent_of_the_fastest():
    pairs = matched((1, 100.0, 8), (2, 80.0, 6), (1, 100.0, 8), (2, 60.0, 9), (1, 5.0, 1))
    assert sorted((row["ratio"], row["near"], row["memory_ratio"]) for row in pairs) == [
        (pytest.approx(0.6), False, pytest.approx(9 / 8)),
        (pytest.approx(0.8), True, pytest.approx(0.75)),
    ]


def test_two_layouts_that_are_the_same_training_are_no_pair():
    layouts = ((1, 100.0, 8), (2, 99.0, 8), (1, 100.0, 8), (2, 80.0, 6))
    assert len(matched(*layouts)) == 2
    assert [row["ratio"] for row in matched(*layouts, same_at=8)] == [pytest.approx(0.8)]


def test_two_layouts_of_one_level_are_no_pair():
    # they differ in a choice that one of them leaves unstated
    assert [row["ratio"] for row in matched((1, 100.0, 8), (1, 90.0, 8))] == []


def effect_pairs(connection, logarithms):
    """Matched pairs at two sizes each: ln ratios by setting and factor, one per pair of layouts."""
    rows = [
        {
            "setting_id": setting, "series": "measured", "factor_id": factor, "from_place": 0.0,
            "to_place": 1.0, "from_layout_id": 2 * number, "to_layout_id": 2 * number + 1,
            "world_size": size, "ratio": math.exp(value), "near": True,
        }
        for (setting, factor), values in logarithms.items()
        for number, value in enumerate(values)
        for size in (8, 16)
    ]  # fmt: skip
    connection.register("matched_pairs", pa.Table.from_pylist(rows))


def test_an_interval_of_an_effect_counts_pairs_of_layouts_and_the_spread_of_the_others():
    spread = {(1, n): [0.15 + 0.05 * (-1) ** number for number in range(n)] for n in (2, 4, 40)}
    with duckdb.connect() as connection:
        effect_pairs(connection, spread)
        found = effect_intervals(connection).to_pylist()
    assert [row["factor_id"] for row in found] == [4, 40]
    variances = {n: 0.05**2 * n / (n - 1) for n in (4, 40)}
    # of two effects, each 98.75 % quantiles of Student's t with 3 + 3 and 39 + 3 degrees of
    # freedom, or 4 where the other effect has as many
    for n, other, weight in ((4, 40, 4), (40, 4, 3)):
        row = next(row for row in found if row["factor_id"] == n)
        degrees = n - 1 + weight
        variance = ((n - 1) * variances[n] + weight * variances[other]) / degrees
        half = stdtrit(degrees, 1 - 0.025 / 2) * math.sqrt(variance / n)
        assert math.log(row["near_low"]) == pytest.approx(0.15 - half)
        assert math.log(row["near_high"]) == pytest.approx(0.15 + half)


def test_of_fifteen_choices_worth_nothing_all_intervals_hold_that_in_nineteen_of_twenty_studies():
    random = np.random.default_rng(3)
    worth_nothing = {
        (study, factor): random.normal(0, 0.022, random.integers(3, 7))
        for study in range(200)
        for factor in range(15)
    }
    with duckdb.connect() as connection:
        effect_pairs(connection, worth_nothing)
        found = effect_intervals(connection).to_pylist()
    false = {row["setting_id"] for row in found if not row["near_low"] <= 1 <= row["near_high"]}
    assert len(false) <= 14


def test_the_only_layout_of_a_setting_is_named_in_words(tabulated):
    (row,) = tabulated([some_point(2)])("names")
    assert row["layout_name"] == "tp 1, pp 1, ZeRO 1, micro-batch 1, flash2, bf16"


def test_a_lone_layout_is_named_with_what_is_not_usual_of_it(tabulated):
    (row,) = tabulated([some_point(2, cp=2, fused_norm=True, routing="learned")])("names")
    assert row["layout_name"] == (
        "tp 1, pp 1, cp 2, ZeRO 1, micro-batch 1, flash2, fused norm, bf16"
    )


def test_the_parts_of_a_step_add_up_to_the_step_that_was_timed(tabulated):
    one = some_point(2)
    profiled = {"compute_s": 0.15, "comm_s": 0.1, "exposed_comm_s": 0.06, "idle_s": 0.024}
    parts = tabulated([one], [timed_row(one, 0.162, **profiled)])("time_split")
    assert sum(row["seconds"] for row in parts) == pytest.approx(0.162)
    assert all(row["profiled_s"] == pytest.approx(0.234) for row in parts)
    assert max(row["share_to"] for row in parts) == pytest.approx(1)


def test_where_two_series_ran_at_a_size_the_parts_are_those_of_one_step(tabulated, tmp_path):
    points = [some_point(2, zero_stage=stage) for stage in (1, 3)]
    short = {
        "extended_step_time_s": 0.8, "short_step_times_s": [0.2, 0.4], "short_accumulations": [2, 4]
    }  # fmt: skip
    times = [field.name for field in dataclasses.fields(Row) if field.name.startswith("step_time")]
    only_short = dict.fromkeys((*times, "losses")) | {"step_time_kind": "extended"}
    rows = [
        dataclasses.replace(timed_row(points[0], 1.0), **only_short, **short),
        timed_row(points[1], 1.0, step_time_kind="measured", **short),
    ]
    parts = dict.fromkeys(TIME_PARTS, 0.1)
    predictions = [{"point_id": one.point_id, "fits": True, **parts} for one in points]
    write_table(StudyPaths(tmp_path).predictions, pa.Table.from_pylist(predictions))
    found = tabulated(points, rows)("time_split")
    assert {row["series"] for row in found} == {"predicted"}
    assert len(found) == 6
    assert max(row["share_to"] for row in found) == pytest.approx(1)
    assert sum(row["seconds"] for row in found) == pytest.approx(0.1 * len(TIME_PARTS))


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


def test_a_prediction_is_held_against_rows_of_the_same_layout_whoever_ran_them():
    placed = {
        "setting_id": 1, "world_size": 8, "layout": "l", "repeat": 0, "dp": 8,
        "gradient_accumulation_steps": 1,
    }  # fmt: skip
    planned = [placed | {"point_id": name} for name in ("mine", "theirs")]
    columns = (
        "attempt", "error_message", "losses_agree", "tokens_per_s_low", "tokens_per_s_high",
        "tokens_per_s_per_gpu", "mfu", "hfu", "model_flop_per_s_per_gpu", "step_time_low_s",
        "step_time_high_s", "step_time_p95_s", "peak_memory_bytes", "energy_j", "mean_power_w",
        "exposed_comm_s",
        "startup_s", "duration_s",
    )  # fmt: skip
    common = placed | dict.fromkeys(columns) | {
        "outcome": "ok", "step_time_s": 2.0, "tokens_per_s": 3.0, "beside_measured": False,
        "predicted_memory_bytes": 5, "stack_fingerprint": "s",
    }  # fmt: skip
    measurements = [
        common | {"point_id": "theirs", "series": "published"},
        common | {"point_id": "mine", "series": "predicted", "tokens_per_s": 4.0},
    ]
    names = [
        {"setting_id": 1, "layout": "l", "layout_name": "l", "layout_id": 1, "layout_lines": "l"}
    ]
    none_other = duckdb.sql(
        "select 1 as setting_id, 8 as world_size, 'x' as layout, 'l' as predicted_layout, "
        "null::varchar[] as unstated"
    ).to_arrow_table()
    waiting = [point for point in planned if point["point_id"] == "mine"]
    predicted = run_sql(
        "inner/predicted_layouts", measurements=measurements, counterparts=none_other
    )
    rows = run_sql(
        "statistics", waiting_points=waiting, names=names, measurements=measurements,
        predicted_layouts=predicted,
    )  # fmt: skip
    (theirs,) = (row for row in rows if row["point_id"] == "theirs")
    assert (theirs["tokens_per_s"], theirs["predicted_tokens_per_s"]) == (3.0, 4.0)


def test_predictions_beside_rows_that_ran_are_held_to_the_yardstick_of_those_rows(tabulated):
    points = [some_point(1), some_point(2)]
    best = tabulated(points, [ran(one, 100.0 * one.layout.dp) for one in points])("best")
    assert [row["efficiency"] for row in best] == pytest.approx([1, 1])
    layouts = [
        row | {"series": series, "world_size": size, "tokens_per_s": rate, "margin": NOISE,
               "tokens_per_s_per_gpu": rate / size}
        for row in best[:1]
        for series, size, rate in (
            ("measured", 1, 100.0), ("measured", 2, 190.0), ("predicted", 1, 200.0),
            ("predicted", 4, 600.0),
        )
    ]  # fmt: skip
    added = {
        "label", "slot", "tied",
        "drawn", "speed_up", "efficiency", "slowest_share", "ideal_tokens_per_s",
        "tokens_per_joule", "power_per_gpu_w", "margin",
        *(name for name in best[0] if name.startswith(("runner_up", "advised"))),
    }  # fmt: skip
    bare = [{k: v for k, v in row.items() if k not in added} for row in layouts]
    mine = {"setting_id": 1, "layout": best[0]["layout"]}
    names = [mine | {"layout_name": "a", "layout_lines": "a"}]
    names += [names[0] | {"layout": "twin", "layout_name": "b"}]
    where = [
        {k: row[k] for k in ("setting_id", "series", "world_size", "layout", "stack_fingerprint")}
        for row in bare
    ]
    found = run_sql(
        "best",
        layouts=bare,
        ranking=[
            one | {"position": 1, "share_of_best": 1.0, "margin": NOISE, "layout_name": "a",
                   "tokens_per_s": 1.0, "tokens_per_s_low": 1.0, "tokens_per_s_high": 1.0,
                   "within_noise": True}
            for one in where
        ],
        colours=[one | {"slot": 1} for one in names],
        coinciding=[
            {"setting_id": 1, "world_size": 4, "layout": "twin", "same_as": mine["layout"]}
        ],
        differing_choices=[
            {"setting_id": 1, "layout": "none", "axis": "tp", "axis_order": 1, "place": 1.0,
             "short": "tp 1", "otherwise": "", "degree": True}
        ],
        advised=[
            one | ({"layout": "twin"} if one["world_size"] == 4 else {}) | {"layout_name": "a"}
            for one in where
        ],
        names=names,
    )  # fmt: skip
    drawn = {(row["series"], row["world_size"]): row for row in found if row["drawn"]}
    beyond = drawn["predicted", 4]
    assert beyond["ideal_tokens_per_s"] == 400.0
    assert beyond["efficiency"] == pytest.approx(1.5)
    # a layout is advised that ran there only as the one it coincides with: that one's row is its
    assert (beyond["advised_layout"], beyond["advised_row_layout"]) == ("twin", mine["layout"])
    assert [row["label"] for row in found if row["series"] == "measured"] == ["a", None]
