"""Titles about memory, time and probes, on tables written by hand."""

import pytest

from scaling.report.sections import findings
from scaling.report.sections.answer import why_nothing_ran
from scaling.report.tables import Tables
from scaling.report.text import with_series


def test_where_nothing_is_predicted_to_fit_nobody_is_said_to_have_tried():
    oom = {"world_size": 8, "series": "predicted", "outcome": "oom"}
    progress = {"points": 1, "predicted": 1, "failed": 0, "refusals": 0}
    given = Tables({"best": [], "contenders": [oom], "progress": [progress]})
    title = with_series(findings.layouts_title(given, 8), "predicted")
    assert title == "Predicted: at 8 GPUs no layout fits"
    assert why_nothing_ran(given) == "Predicted: no layout fits, at none of the sizes."


def test_what_ties_with_the_fastest_is_not_said_to_tie_with_another_advised_layout():
    best = {
        "world_size": 8, "layout_name": "a", "advised_layout_name": "b", "advised_row_name": "b",
        "runner_up_layout_name": "c", "tied": True,
    }  # fmt: skip

    def title(number, **changes):
        given = Tables({"best": [best | changes | {"tied_layouts": number}]})
        return findings.layouts_title(given, 8)

    assert title(2) == "At 8 GPUs b is advised, one of 2 layouts not told apart from a"
    assert title(1) == "At 8 GPUs b is advised and a is not told apart from it"
    fastest = {"advised_row_name": "a"}  # b is a there
    assert title(1, **fastest) == "At 8 GPUs b is advised and c is not told apart from it"
    assert title(2, **fastest, advised_layout_name="a") == (
        "At 8 GPUs a is advised and 2 other layouts are not told apart from it"
    )


def zero(name, ratio, less, pairs):
    return {
        "factor": "ZeRO", "name": name, "memory_ratio": ratio, "less_memory": less,
        "memory_pairs": pairs, "series": "measured",
    }  # fmt: skip


def test_what_zero_saves_is_counted_in_matched_pairs():
    given = Tables(
        {
            "effects": [
                zero("ZeRO 1, against 0", 0.75, 44, 45),
                zero("ZeRO 3, against 1", 0.1, 2, 2),
            ],
            "accuracy": [],
        }
    )
    assert findings.memory_title(given, given, 8) == (
        "ZeRO 1 (against 0) needs less memory in 44 of 45 pairs, ×0.75 on average"
    )


def test_what_zero_saves_is_that_of_the_series_of_the_answer_and_right_predictions_are_counted():
    measured = zero("ZeRO 1, against 0", 0.75, 44, 45)
    foretold = zero("ZeRO 3, against 1", 0.1, 9, 9) | {"series": "predicted"}
    accuracy = [{"judged": 300, "told_right": 299}]
    everything = Tables({"effects": [measured, foretold], "accuracy": accuracy})
    advised = Tables({"effects": [measured], "accuracy": accuracy})
    assert findings.memory_title(everything, advised, 8) == (
        "ZeRO 1 (against 0) needs less memory in 44 of 45 pairs, ×0.75 on average; predicted "
        "memory is right about what fits for 299 of 300 points"
    )


def test_a_profiled_step_is_said_to_be_longer_than_the_one_that_was_timed():
    part = {"world_size": 8, "series": "measured", "profiled_s": 0.234}
    parts = [
        part | {"part": "compute", "seconds": 0.1, "share_from": 0.0, "share_to": 0.6},
        part | {"part": "exposed communication", "seconds": 0.062, "share_from": 0.6,
                "share_to": 1.0},
    ]  # fmt: skip
    title = (
        "At 8 GPUs the largest loss is exposed communication, 40\u202f% of the step, as shared "
        "under the profiler, which made it 1.4× as long"
    )
    assert findings.time_title(Tables({"time_split": parts})) == title
    foretold = [row | {"world_size": 64, "series": "predicted"} for row in parts]
    assert findings.time_title(Tables({"time_split": parts + foretold})) == title
    assert findings.time_title(Tables({"time_split": foretold})).startswith("Predicted: at 64")
    alone = [row for row in parts if row["part"] == "compute"]
    assert findings.time_title(Tables({"time_split": alone})).startswith(
        "At 8 GPUs the whole step is compute"
    )


def test_half_of_the_best_bandwidth_is_reached_from_a_message_on():
    shape = {"kind": "all_reduce", "ranks": 8, "stride": 1, "nodes": 1, "at_once": 1}
    rows = [
        shape | {"message_bytes": 2**power, "bus_bytes_per_s": rate}
        for power, rate in ((10, 1e9), (20, 160e9), (30, 300e9))
    ]
    assert findings.collectives_title(Tables({"collectives": rows})) == (
        "All-reduce reaches 300\u202fGB/s, half of it from messages of 1\u202fMiB on"
    )
    assert findings.collectives_title(Tables({"collectives": []})) == "No collective was probed"


def test_slow_hosts_are_named_with_how_slow_and_from_when_on():
    rows = [{"host": "n3", "kind": "memory_copy", "slowdown": 1.5, "probes": 4, "slow_from": 1.2}]
    assert findings.slow_hosts_note(Tables({"slow_hosts": rows})) == (
        "Slow hosts, at least 1.2 times as long as the median of peers: "
        "n3 takes 1.50 times as long for memory copy (4 probes)."
    )
    assert findings.slow_hosts_note(Tables({"slow_hosts": []})) == ""


@pytest.mark.parametrize(
    ("size", "sentence"), [(512, "512\u202fB"), (65536, "64\u202fKiB"), (2**32, "4\u202fGiB")]
)
def test_messages_are_counted_in_powers_of_1024(size, sentence):
    assert findings.message_size(size) == sentence
