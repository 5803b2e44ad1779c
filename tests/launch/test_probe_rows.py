"""From the records of ranks to rows, on four nodes of two that nobody has."""

import dataclasses
from pathlib import Path

import pytest

from scaling.errors import CannotWrite
from scaling.launch import NotMeasured
from scaling.launch.judge import Verdict
from scaling.launch.probing import flops_of, probe, probe_rows
from scaling.launch.ranks import FinishedRun
from scaling.launch.start.starter import LaunchError
from scaling.probe.plan import Group, ProbePlan, Task, plan_from_json, probe_plan
from scaling.record.rank_files import ProbeRecords
from tests.points import tiny_point

GEMM = Task(kind="gemm", precision="bf16", m=10, n=10, k=10)
NODE = Task(
    kind="all_reduce",
    group=Group(name="node", ranks=2, stride=1, at_once=True),
    message_bytes=1000,
)
PAIR = Task(
    kind="send_recv",
    group=Group(name="node_pair", ranks=2, stride=2, at_once=True),
    message_bytes=1000,
)
ENDED = FinishedRun(verdict=Verdict(outcome="ok"), started_at=0.0, duration_s=1.0)


def rows(records, *tasks, ended=ENDED):
    """Rows of the tasks; `records` by rank, hosts n0 to n3."""
    plan = ProbePlan(
        cluster="c", gpu="h100-80gb", gpus_per_node=2, world_size=8, time_limit_s=5, tasks=tasks
    )
    left = {
        rank: ProbeRecords(facts={"host": f"n{rank // 2}"}, records=records.get(rank, []))
        for rank in range(8)
    }
    return probe_rows(plan, ended, left)


def timed(seconds):
    return [{"task": 0, "samples": [seconds] * 5}]


def sent(ranks, seconds, wrong=False):
    samples = [seconds] * 5
    return [{"task": 0, "ranks": ranks, "message_bytes": 1000, "samples": samples, "wrong": wrong}]


def test_a_host_is_as_fast_as_its_slowest_device():
    found = rows({rank: timed(1.0 + rank) for rank in range(8)}, GEMM)
    assert [(row.host, row.device, row.seconds) for row in found] == [
        ("n0", 1, 2.0), ("n1", 1, 4.0), ("n2", 1, 6.0), ("n3", 1, 8.0),
    ]  # fmt: skip
    assert found[0].flop_per_s == 2 * 10**3 / 2.0
    # of hosts at 2, 4, 6 and 8 s the median is 5
    assert [row.slowdown for row in found] == [0.4, 0.8, 1.2, 1.6]


def test_a_device_that_failed_takes_its_host_and_no_other():
    failed = [{"task": 0, "outcome": "oom", "message": "no room"}]
    found = rows({0: timed(1.0), 1: failed, 2: timed(1.0)}, GEMM)
    assert [(row.host, row.device, row.outcome, row.error_message) for row in found] == [
        ("n0", 1, "oom", "no room"),
        ("n1", 0, "ok", None),
    ]
    assert found[0].seconds is None


def test_each_node_and_each_pair_of_nodes_has_a_row_of_its_own():
    found = rows({0: sent([0, 1], 1.0), 2: sent([2, 3], 2.0)}, NODE)
    assert [(row.host, row.peer_host, row.seconds) for row in found] == [
        ("n0", None, 1.0),
        ("n1", None, 2.0),
    ]
    assert found[0].algorithm_bytes_per_s == found[0].bus_bytes_per_s == 1000.0
    pairs = rows({0: sent([0, 2], 1.0), 1: sent([1, 3], 3.0), 4: sent([4, 6], 2.0)}, PAIR)
    assert [(row.host, row.peer_host, row.seconds, row.nodes) for row in pairs] == [
        ("n0", "n1", 3.0, 2),
        ("n2", "n3", 2.0, 2),
    ]


def test_one_rank_that_received_something_else_makes_the_whole_wrong():
    (row,) = rows(
        {0: sent([0, 1], 1.0), 1: sent([0, 1], 1.0, wrong=True)},
        dataclasses.replace(NODE, group=Group(name="tp", ranks=2, stride=1)),
    )
    assert (row.outcome, row.seconds, row.runs) == ("wrong", None, None)


def test_attention_counts_seven_half_matmuls():
    task = Task(kind="attention", batch_size=2, num_heads=3, head_dim=8, seq_length=16)
    # 2 x 3 heads: 2 s^2 d = 4096 FLOPs a matmul, half of it causal, 2 forward and 5 backward
    assert flops_of(task) == 6 * 7 * 4096 // 2 == pytest.approx(86016)


def test_ranks_probe_by_the_plan_that_their_records_were_made_for(tmp_path):
    plan = probe_plan([tiny_point()], world_size=1, time_limit_s=5.0)
    path = tmp_path / "probe.json"
    path.write_text(plan.to_json())

    def edited(launch):
        path.write_text(dataclasses.replace(plan, tasks=()).to_json())
        assert plan_from_json(Path(launch.command[-2]).read_text()) == plan
        raise LaunchError("seen")

    (row, *_) = probe(path, tmp_path / "probes.parquet", start=edited)
    assert row.error_message == "seen"


def test_a_probe_that_cannot_be_written_is_left_for_later(tmp_path, monkeypatch):
    def full(path, _):
        raise CannotWrite(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr("scaling.launch.probing.write_table", full)
    plan = tmp_path / "probe.json"
    plan.write_text(probe_plan([tiny_point()], world_size=1, time_limit_s=5.0).to_json())
    with pytest.raises(NotMeasured, match="No space left") as told:
        probe(plan, tmp_path / "probes.parquet", rank_command=["/no/such/program"])
    assert told.value.exit_code == 74
