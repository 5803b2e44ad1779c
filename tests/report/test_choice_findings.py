"""Titles about one choice, energy, peers and probes, on tables written by hand."""

import pytest

from scaling.report.sections import choice_findings as found
from scaling.report.tables import Tables

GPUS = {"GPU": "GPU", "GPUs": "GPUs"}


def level(axis, name, size, rate, **more):
    row = {"axis": axis, "level": name, "name": f"{axis} {name}", "world_size": size}
    outcome = "oom" if rate is None else "ok"
    known = {"series": "measured", "least_memory_bytes": None, "outcome": outcome}
    return row | {"tokens_per_s": rate} | known | more


def test_the_axis_whose_levels_differ_most_is_named():
    rows = [
        level("tp", "1", 8, 100.0), level("tp", "2", 8, 90.0),
        level("attention", "math", 8, 50.0), level("attention", "flash2", 8, 100.0),
        level("attention", "flash1", 8, None), level("ZeRO", "1", 16, 900.0),
    ]  # fmt: skip
    tables = Tables({"levels": rows})
    assert found.levels_title(tables, 8, GPUS) == (
        "At 8 GPUs attention flash2 is ×2.00 as fast as attention math, each at its best"
    )
    assert found.levels_title(tables, 16, GPUS) == "At 16 GPUs no axis has two levels that ran"


def test_a_title_on_a_predicted_level_says_so():
    rows = [level("tp", "1", 8, 9.0, series="predicted"), level("tp", "2", 8, 8.0)]
    assert found.levels_title(Tables({"levels": rows}), 8, GPUS).startswith("Predicted: At 8 GPUs")


def test_the_fastest_tp_is_followed_over_sizes_by_what_ran():
    rows = [
        level("tp", "1", 8, 9.0), level("tp", "2", 8, 8.0),
        level("tp", "1", 64, 20.0), level("tp", "2", 64, 30.0),
        level("tp", "1", 128, 99.0, series="predicted"),
    ]  # fmt: skip
    assert found.tensor_title(Tables({"levels": rows}), GPUS) == (
        "The fastest tp goes from 1 on 8 GPUs to 2 on 64 GPUs"
    )
    assert found.tensor_title(Tables({"levels": rows[:2]}), GPUS) == (
        "tp 1 is the fastest at every size"
    )


def test_the_stage_that_is_fast_need_not_be_the_one_that_is_small():
    rows = [
        level("ZeRO", "1", 8, 9.0, least_memory_bytes=50),
        level("ZeRO", "3", 8, 8.0, least_memory_bytes=20),
    ]
    assert found.zero_title(Tables({"levels": rows}), GPUS) == (
        "ZeRO 1 has the shortest step on 8 GPUs, ZeRO 3 needs the least memory"
    )


def test_the_degree_of_the_fastest_cell_tells_tp_from_pp():
    cell = {"world_size": 8, "status": "ok", "series": "measured"}
    rows = [
        cell | {"tp": 1, "pp": 1, "tokens_per_s_per_gpu": 5.0},
        cell | {"tp": 2, "pp": 4, "tokens_per_s_per_gpu": 6.0},
        cell | {"tp": 8, "pp": 1, "status": "oom", "tokens_per_s_per_gpu": None},
    ]
    assert found.degrees_title(Tables({"map": rows}), 8, GPUS) == (
        "At 8 GPUs model-parallel degree 8 is the fastest (tp 2, pp 4)"
    )


def test_a_micro_batch_that_does_not_fit_is_named():
    row = {"world_size": 8, "precision": "bf16", "series": "measured"}
    rows = [
        row | {"micro_batch_size": 1, "outcome": "ok", "tokens_per_s": 5.0},
        row | {"micro_batch_size": 2, "outcome": "oom", "tokens_per_s": None},
    ]
    assert found.batches_title(Tables({"batches": rows}), 8, GPUS) == (
        "At 8 GPUs micro-batch 1 in bf16 is the fastest; nothing ran with 2 in bf16"
    )


@pytest.mark.parametrize(
    ("per_joule", "said"),
    [
        ([(8, 2.0), (64, 1.5)], "On 64 GPUs a joule trains 1.50 tokens, 25\u202f% fewer than on 8"),
        ([(8, 2.0), (64, None)], "On 8 GPUs a joule trains 2.00 tokens"),
        ([(8, None)], "Energy was not measured"),
    ],
)
def test_a_joule_buys_what_was_measured(per_joule, said):
    rows = [
        {"world_size": size, "tokens_per_joule": value, "series": "measured"}
        for size, value in per_joule
    ]
    assert found.energy_title(Tables({"best": rows}), GPUS) == said


def test_clusters_are_compared_at_the_largest_size_both_ran():
    row = {"dimension": "cluster", "model": "m"}
    rows = [
        row | {"cluster": "new", "itself": True, "world_size": 8, "tokens_per_s_per_gpu": 300.0,
               "mfu": 0.4},
        row | {"cluster": "old", "itself": False, "world_size": 8, "tokens_per_s_per_gpu": 100.0,
               "mfu": 0.6},
        row | {"cluster": "new", "itself": True, "world_size": 16, "tokens_per_s_per_gpu": 200.0,
               "mfu": 0.3},
    ]  # fmt: skip
    assert found.peers_title(Tables({"peers": rows}), GPUS) == (
        "Tokens per second of a GPU of new, same layout: 3.00 times those of old "
        "(MFU 40\u202f% against 60\u202f%)"
    )


def test_models_are_compared_where_two_have_an_mfu():
    row = {"dimension": "model", "cluster": "c", "seq_length": 1, "itself": False}
    rows = [
        row | {"model": "large", "total_params": 9, "world_size": 8, "mfu": 0.5},
        row | {"model": "small", "total_params": 1, "world_size": 8, "mfu": 0.4},
        row | {"model": "small", "total_params": 1, "world_size": 16, "mfu": 0.3},
    ]
    assert found.peers_title(Tables({"peers": rows}), GPUS) == (
        "On 8 GPUs MFU is 40.0\u202f% for small and 50.0\u202f% for large"
    )


def test_half_of_the_best_bandwidth_is_reached_from_a_message_on():
    shape = {"kind": "all_reduce", "ranks": 8, "nodes": 1, "at_once": 1}
    rows = [
        shape | {"message_bytes": 2**power, "bus_bytes_per_s": rate}
        for power, rate in ((10, 1e9), (20, 160e9), (30, 300e9))
    ]
    assert found.collectives_title(Tables({"collectives": rows})) == (
        "All-reduce reaches 300\u202fGB/s, half of it from messages of 1\u202fMiB on"
    )
    assert found.collectives_title(Tables({"collectives": []})) == "No collective was probed"


def test_slow_hosts_are_named_with_how_slow_and_from_when_on():
    rows = [{"host": "n3", "kind": "memory_copy", "slowdown": 1.5, "probes": 4, "slow_from": 1.2}]
    assert found.slow_hosts_note(Tables({"slow_hosts": rows})) == (
        "Slower than the median of its peers by 1.2 or more: "
        "n3 is 1.50 times slower at memory copy (4 probes)."
    )
    assert found.slow_hosts_note(Tables({"slow_hosts": []})) == ""


def test_an_interaction_is_told_by_its_two_ends():
    row = {"shown": True, "rank": 1, "name": "ZeRO 3, against 1", "axis": "tp"}
    rows = [
        row | {"level": "2", "level_order": 2.0, "mean_ratio": 0.5},
        row | {"level": "1", "level_order": 1.0, "mean_ratio": 0.9},
    ]
    assert found.interactions_title(Tables({"interactions": rows})) == (
        "What ZeRO 3, against 1, is worth depends on tp: ×0.90 at 1, ×0.50 at 2"
    )


@pytest.mark.parametrize(
    ("size", "said"), [(512, "512\u202fB"), (65536, "64\u202fKiB"), (2**32, "4\u202fGiB")]
)
def test_messages_are_counted_in_powers_of_1024(size, said):
    assert found.size_of(size) == said
