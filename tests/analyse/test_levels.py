"""Tables of one choice at a time, of peers, of communication: worked by hand."""

import dataclasses
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from scaling.analyse import catalogue
from scaling.layout.axes import AXES
from scaling.study.point import Point
from tests.analyse.conftest import SQL, layout, run_sql, some_point
from tests.analyse.test_tables import ran
from tests.report.synthetic_study import point, row

pytestmark = pytest.mark.slow


def in_batches(micro_batch_size: int, **choices: Any) -> Point:
    """On two GPUs, eight sequences a step whatever the micro-batch."""
    base = layout(2, **choices)
    sizes = {
        "micro_batch_size": micro_batch_size,
        "gradient_accumulation_steps": base.gradient_accumulation_steps // micro_batch_size,
    }
    return point(dataclasses.replace(base, **sizes), model="tiny")


def test_a_level_has_its_best_layout_and_one_without_any_has_its_outcome(tabulated):
    tried = [
        (some_point(4, zero_stage=1), 100.0),
        (some_point(4, tp=2, zero_stage=1), 120.0),
        (some_point(4, zero_stage=3), None),
        (some_point(4, tp=2, zero_stage=3), None),
    ]
    rows = [row(one, "oom") if rate is None else ran(one, rate) for one, rate in tried]
    found = {one["name"]: one for one in tabulated([one for one, _ in tried], rows)("levels")}
    assert found.keys() == {"tp 1", "tp 2", "ZeRO 1", "ZeRO 3"}
    assert found["ZeRO 1"]["tokens_per_s"] == pytest.approx(120)
    assert found["ZeRO 1"]["layout_name"] == "tp 2, ZeRO 1"
    assert found["tp 1"]["tokens_per_s"] == pytest.approx(100)
    assert (found["tp 1"]["tried"], found["tp 1"]["failed"]) == (2, 1)
    assert (found["ZeRO 3"]["outcome"], found["ZeRO 3"]["tokens_per_s"]) == ("oom", None)
    assert all(one["compared"] for one in found.values())


def test_each_word_of_others_is_a_level_of_its_own():
    defaults = {name: str(axis.default) for name, axis in AXES.items()}
    words = [f"their kernel {number}" for number in range(300)]
    with duckdb.connect() as connection:
        catalogue.attach_catalogue(connection, {})
        catalogue.set_variables(connection)
        chosen = [
            {"setting_id": 1, "layout": word, "name": name, "value": value}
            for word in words
            for name, value in (defaults | {"attention": word}).items()
        ]
        connection.register("choices_by_axis", pa.Table.from_pylist(chosen))
        choices = connection.sql((SQL / "inner/worded_choices.sql").read_text(encoding="utf-8"))
        places = choices.filter("differs").select("level, place").fetchall()
    assert sorted(level for level, _ in places) == sorted(words)
    assert len({place for _, place in places}) == len(words)


def test_an_axis_with_one_level_has_no_rows(tabulated):
    points = [some_point(2, zero_stage=stage) for stage in (1, 3)]
    found = tabulated(points, [ran(one, 100) for one in points])("levels")
    assert {one["axis"] for one in found} == {"ZeRO"}


def test_the_least_memory_of_a_stage_is_that_of_any_layout_that_ran(tabulated):
    points = [in_batches(size, zero_stage=stage) for stage in (1, 3) for size in (1, 2)]
    rates, peaks = (10, 20, 30, 40), (5, 7, 2, 3)
    rows = [
        ran(one, rate, peak_memory_bytes=peak)
        for one, rate, peak in zip(points, rates, peaks, strict=True)
    ]
    found = {one["name"]: one for one in tabulated(points, rows)("levels")}
    assert found["ZeRO 1"]["least_memory_bytes"] == 5
    assert found["ZeRO 3"]["least_memory_bytes"] == 2


def test_batches_keep_precisions_apart_and_say_what_did_not_fit(tabulated):
    tried = [("bf16", 1, 100.0), ("bf16", 2, 150.0), ("fp32", 1, 50.0), ("fp32", 2, None)]
    points = [in_batches(size, precision=precision) for precision, size, _ in tried]
    rows = [
        row(one, "oom") if rate is None else ran(one, rate)
        for one, (_, _, rate) in zip(points, tried, strict=True)
    ]
    found = tabulated(points, rows)("batches")
    assert [
        (one["precision"], one["micro_batch_size"], one["outcome"], one["tokens_per_s"])
        for one in found
    ] == [
        ("bf16", 1, "ok", 100.0), ("bf16", 2, "ok", 150.0),
        ("fp32", 1, "ok", 50.0), ("fp32", 2, "oom", None),
    ]  # fmt: skip


def test_clusters_are_compared_at_one_layout_that_ran_on_all(tabulated):
    """Here zero 3 is the fastest, but there only zero 1 ran."""

    def on(cluster: str, **choices):
        return point(some_point(2, **choices).layout, model="tiny", cluster=cluster)

    here = [on("h100", zero_stage=1), on("h100", zero_stage=3)]
    there = [on("other", zero_stage=1)]
    rows = [ran(here[0], 200), ran(here[1], 300), ran(there[0], 100)]
    found = tabulated([*here, *there], rows)("peers")
    compared = [one for one in found if one["dimension"] == "cluster"]
    assert sorted((one["cluster"], one["tokens_per_s"], one["itself"]) for one in compared) == [
        ("h100", 200.0, False), ("h100", 200.0, True),
        ("other", 100.0, False), ("other", 100.0, True),
    ]  # fmt: skip


def test_models_are_peers_at_their_own_best_layouts_and_contexts_at_the_same(tabulated):
    longer = dataclasses.replace(some_point(2, seq_length=256), point_id="longer")
    points = [
        some_point(2), some_point(2, zero_stage=3), some_point(2, model="llama-1b"), longer,
    ]  # fmt: skip
    rows = [ran(one, rate) for one, rate in zip(points, (10, 20, 30, 40), strict=True)]
    found = tabulated(points, rows)("peers")
    models = {one["model"]: one["tokens_per_s"] for one in found if one["dimension"] == "model"}
    assert models == pytest.approx({"tiny": 20, "llama-1b": 30})
    lengths = {o["seq_length"]: o["tokens_per_s"] for o in found if o["dimension"] == "context"}
    assert lengths == pytest.approx({128: 10, 256: 40})
    assert {o["dimension"] for o in found if not o["matched"]} == {"model"}


def test_communication_of_the_fastest_layout_is_stacked_by_kind_and_by_axis(tabulated):
    points = [some_point(2, repeat=repeat) for repeat in range(3)]
    rows = [
        ran(one, 100, comm_s=3.0, exposed_comm_s=1.0, all_reduce_s=2.0, all_gather_s=scale,
            reduce_scatter_s=0.0, tp_comm_s=None, dp_comm_s=3.0)
        for one, scale in zip(points, (0.5, 1.0, 4.0), strict=True)
    ]  # fmt: skip
    found = tabulated(points, rows)("communication")
    assert [(one["split"], one["part"], one["from_s"], one["to_s"]) for one in found] == [
        ("axis", "dp", 0.0, 3.0),
        ("kind", "all-reduce", 0.0, 2.0),
        ("kind", "all-gather", 2.0, 3.0),
    ]  # fmt: skip
    assert {one["exposed_s"] for one in found} == {1.0}


def test_energy_is_of_all_devices_and_power_of_one(tabulated):
    only = some_point(4)
    (found,) = tabulated([only], [ran(only, 100, energy_j=500.0, mean_power_w=2000.0)])("best")
    assert found["tokens_per_joule"] == 1024 / 500
    assert found["power_per_gpu_w"] == 500.0


def test_what_a_choice_is_worth_is_told_by_level_of_another(tabulated):
    """ZeRO 3 costs a tenth at tp 1 and half at tp 2."""
    layouts = [
        ({"tp": tp, "zero_stage": zero, "fused_norm": norm, "attention": attention},
         100.0 * ((0.9 if tp == 1 else 0.5) if zero == 3 else 1))
        for tp in (1, 2) for zero in (1, 3) for norm in (False, True)
        for attention in ("math", "flash2")
    ]  # fmt: skip
    points = [some_point(4, **choices) for choices, _ in layouts]
    rows = [ran(one, rate) for one, (_, rate) in zip(points, layouts, strict=True)]
    found = [
        one for one in tabulated(points, rows)("interactions")
        if one["title"] == "ZeRO 3, against 1 · by tp"
    ]  # fmt: skip
    assert [(one["level"], one["pairs"]) for one in found] == [("1", 4), ("2", 4)]
    assert [one["mean_ratio"] for one in found] == pytest.approx([0.9, 0.5])
    assert found[0]["strength"] == pytest.approx(1.8)
    assert all(one["shown"] and one["rank"] == 1 for one in found)


def test_interactions_of_effects_that_no_chart_shows_take_no_place_in_it():
    def effect(number: int) -> dict[str, Any]:
        return {
            "setting_id": 1, "series": "measured", "factor_id": number, "from_place": 1.0,
            "to_place": 2.0,
        }  # fmt: skip

    pairs = [
        effect(number) | {"to_layout_id": layout, "ratio": 2.0 + number if layout == 2 else 2.0}
        for number in range(1, 10)
        for layout in (1, 2)
        for _ in range(3)
    ]
    names = [{"setting_id": 1, "layout": f"l{n}", "layout_id": n} for n in (1, 2)]
    choices = [
        {"setting_id": 1, "layout": f"l{n}", "axis_order": 0, "axis": "x", "place": float(n),
         "level": str(n)}
        for n in (1, 2)
    ]  # fmt: skip
    effects = [
        effect(number) | {"name": str(number), "near_ratio": 2.0, "mean_ratio": 2.0,
                          "shown": number == 1}
        for number in range(1, 10)
    ]  # fmt: skip
    found = run_sql(
        "interactions", matched_pairs=pairs, names=names, differing_choices=choices, effects=effects
    )
    assert {(one["name"], one["rank"]) for one in found if one["shown"]} == {("1", 1)}


def test_a_cell_of_the_map_says_nothing_of_what_is_unstated():
    columns = (
        "cp", "sequence_parallel", "mfu", "margin", "peak_memory_bytes", "exposed_comm_s",
        "step_time_s", "tokens_per_s_per_gpu", "tokens_per_s", "zero_stage",
    )  # fmt: skip
    cell = dict.fromkeys(columns) | {
        "setting_id": 1, "series": "published", "world_size": 8, "tp": 1, "outcome": "ok",
        "place": 1, "drawn": True, "layout": "a", "layout_name": "a", "micro_batch_size": 2,
    }  # fmt: skip
    stated = zip((1, 2, 4), (None, "none", "full"), strict=True)
    contenders = [cell | {"pp": pp, "activation_checkpointing": said} for pp, said in stated]
    refused = [{"setting_id": 1, "world_size": 8, "tp": 1, "pp": 1, "skipped": False}]
    found = run_sql("map", contenders=contenders, refused=refused)
    assert [one["text"] for one in found] == ["mb 2", "mb 2", "mb 2 ckpt"]
