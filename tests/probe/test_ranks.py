"""Probes on real gloo ranks of this machine, at one small size."""

import dataclasses
import json

import pyarrow.parquet as pq
import pytest

from scaling.launch.probing import probe
from scaling.launch.start.local import LocalRanks
from scaling.probe.plan import MIB, Task, probe_plan
from scaling.record.files import arrow_schema
from scaling.record.probe_row import COLLECTIVES, Probe
from tests.points import tiny_point
from tests.warm import warm_rank

pytestmark = pytest.mark.ranks


RANK = """
import torch
from scaling.probe import program
from scaling.probe.__main__ import main
torch.set_num_threads(1)
"""


@pytest.fixture
def probed(tmp_path):
    """Write a plan, probe, and check that what is on disk is what was returned.

    Ranks come from a process that has imported; test_probe starts them from nothing.
    """

    def run(plan, program="", **more):
        path, out = tmp_path / "probe.json", tmp_path / "probes.parquet"
        path.write_text(plan.to_json())
        (tmp_path / "rank.py").write_text(f"{RANK}{program}\nmain()\n")
        command = [warm_rank(), str(tmp_path / "rank.py")]
        rows = probe(path, out, rank_command=command, **more)
        table = pq.read_table(out)
        assert table.schema.equals(arrow_schema(Probe))
        assert [Probe(**record) for record in table.to_pylist()] == rows
        return rows

    return run


def small(plan, *more):
    """Devices and messages of one size only."""
    kept = [t for t in plan.tasks if t.group is None or t.message_bytes == 256 * 1024]
    return dataclasses.replace(plan, tasks=(*kept, *more))


def on_two_nodes(launch):
    """Start the ranks of two nodes on this machine; each believes to be where it should."""
    ranks = LocalRanks()
    for rank in range(launch.world_size):
        node, local = divmod(rank, launch.per_node)
        ranks.start(launch, rank, LOCAL_RANK=str(local), SLURMD_NODENAME=f"n{node}")
    return ranks


def test_two_nodes_leave_a_row_of_every_collective_group_and_host(probed, tmp_path):
    layouts = [{"tp": 2, "dp": 2}, {"cp": 2, "dp": 2}, {"pp": 2, "tp": 2, "dp": 1}]
    points = [tiny_point(gpus_per_node=2, **layout) for layout in layouts]
    missing = Task(
        kind="attention", attention="flash3", batch_size=1, num_heads=2, num_kv_heads=2,
        head_dim=8, seq_length=16,
    )  # fmt: skip
    update = Task(kind="host_update", message_bytes=MIB)
    plan = small(probe_plan(points, world_size=4, time_limit_s=300), missing, update)
    rows = probed(plan, start=on_two_nodes)
    failed = [row for row in rows if row.outcome != "ok"]
    assert {(row.kind, row.outcome, row.seconds) for row in failed} == {
        ("attention", "kernel_unavailable", None)
    }
    assert "flash3" in failed[0].error_message
    done = [row for row in rows if row.outcome == "ok"]
    assert all(0 < row.seconds_low <= row.seconds <= row.seconds_high for row in done)
    assert {row.kind for row in done if row.group == "world"} == set(COLLECTIVES)
    assert {(row.group, row.nodes, row.groups, row.host, row.peer_host) for row in done} == {
        (None, None, None, "n0", None), (None, None, None, "n1", None),
        ("node", 1, 2, "n0", None), ("node", 1, 2, "n1", None),
        ("world", 2, 1, None, None), ("node_pair", 2, 2, "n0", "n1"),
        ("tp", 1, 1, "n0", None), ("tp", 1, 2, "n0", None), ("tp", 1, 2, "n1", None),
        ("cp", 1, 1, "n0", None), ("cp", 1, 2, "n0", None), ("cp", 1, 2, "n1", None),
        ("data", 2, 1, None, None), ("data", 2, 2, None, None),
        ("pp", 2, 1, None, None), ("pp", 2, 2, None, None),
    }  # fmt: skip
    for row in done:
        if row.kind == "all_reduce" and row.ranks == 4:
            assert row.bus_bytes_per_s == pytest.approx(1.5 * row.message_bytes / row.seconds)
        if row.kind == "gemm":
            assert row.flop_per_s == pytest.approx(2 * row.m * row.n * row.k / row.seconds)
        if row.kind == "memory_copy":
            assert row.copy_bytes_per_s == pytest.approx(2 * row.message_bytes / row.seconds)
        if row.kind == "host_update":
            assert row.copy_bytes_per_s == pytest.approx(7 * row.message_bytes / row.seconds)
    hosts = json.loads((tmp_path / "hosts.json").read_text())["hosts"]
    ranks = {name: [one["rank"] for one in host["devices"]] for name, host in hosts.items()}
    assert ranks == {"n0": [0, 1], "n1": [2, 3]}
    assert all(host["torch_version"] for host in hosts.values())


# a rank whose collectives do not do what they say
BROKEN = """
import dataclasses
right = program.exchange
program.exchange = lambda *words: dataclasses.replace(right(*words), send=lambda: None)
"""


def test_a_collective_that_brings_nothing_is_wrong_and_has_no_time(probed):
    plan = probe_plan([tiny_point(dp=2)], world_size=2, time_limit_s=300)
    tasks = [t for t in plan.tasks if t.message_bytes == 1024 and t.group.name == "node"]
    rows = probed(dataclasses.replace(plan, tasks=tuple(tasks)), program=BROKEN)
    assert [row.kind for row in rows] == list(COLLECTIVES)
    assert {(row.outcome, row.seconds) for row in rows} == {("wrong", None)}
    assert rows[0].error_message == "all_reduce among ranks 0, 1: what arrived is not what was sent"


def test_what_the_time_did_not_suffice_for_says_so(probed):
    plan = probe_plan([tiny_point(dp=1)], world_size=1, time_limit_s=1e-9)
    rows = probed(plan)
    assert {(row.outcome, row.seconds) for row in rows} == {("timeout", None)}
    assert "was over before this one's turn" in rows[0].error_message


def test_ranks_that_die_leave_a_table_of_outcomes(probed):
    plan = probe_plan([tiny_point(dp=2)], world_size=2, time_limit_s=300)
    rows = probed(plan, program="raise OSError('no licence')")
    assert len(rows) == len(plan.tasks)
    assert {row.outcome for row in rows} == {"launch_failed"}
    assert "no licence" in rows[0].error_message


def test_a_buffer_that_does_not_fit_is_out_of_memory_and_stops_nothing(probed):
    plan = probe_plan([tiny_point(dp=2)], world_size=2, time_limit_s=300)
    (one,) = [t for t in plan.tasks if t.kind == "all_reduce" and t.message_bytes == 1024][:1]
    huge = dataclasses.replace(one, message_bytes=2**50)
    copy = Task(kind="memory_copy", message_bytes=MIB)
    rows = probed(dataclasses.replace(plan, tasks=(huge, one, copy)))
    assert [row.outcome for row in rows] == ["oom", "ok", "ok"]


def test_ranks_on_another_gpu_than_the_study_says_measure_nothing(probed):
    plan = probe_plan([tiny_point(dp=1)], world_size=1, time_limit_s=300)
    plan = dataclasses.replace(plan, gpu="h100-80gb", tasks=plan.tasks[:1])
    (row,) = probed(plan)
    assert (row.outcome, row.seconds) == ("error", None)
    assert "the study says gpu 'h100-80gb', and for local rank 0 there is none" in row.error_message
