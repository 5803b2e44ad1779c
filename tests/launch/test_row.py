"""Measurements of ranks become one row, with software and machine."""

import dataclasses
import subprocess

import pytest

from scaling.launch.judge import Verdict
from scaling.launch.make_row import git_commit, provenance_of, row_of
from scaling.launch.ranks import FinishedRun
from scaling.launch.start.rank_exits import oom_kills
from scaling.record.files import table_of
from scaling.record.rank_files import RankResult, Stack
from scaling.record.row_checks import invalid_row_reasons
from tests.points import tiny_point

STACK = Stack(
    host="node1", torch_version="2.13.0", deepspeed_version="0.19.8", gpu_name="a GPU",
    driver_version="570.1", cuda_version="12.8", nccl_version="2.27.3",
)  # fmt: skip


def rank(**measured):
    plain = {
        "clock": "cuda_event", "step_times_s": [1.0, 2.0], "losses": [5.0, 4.0],
        "grad_norms": None, "peak_memory_bytes": 10, "peak_reserved_bytes": None,
        "memory_meter": "cuda_allocator", "first_step_at": 3.0, "metered_steps": 2,
    }  # fmt: skip
    return RankResult(**(plain | measured))


def ended(*ranks, stacks=(), verdict=Verdict(outcome="ok"), **more):  # noqa: B008
    return FinishedRun(
        verdict=verdict, results=dict(enumerate(ranks)), stacks=dict(enumerate(stacks)),
        started_at=1.0, duration_s=9.0, **more,
    )  # fmt: skip


def row(*ranks, **more):
    return row_of(tiny_point(dp=max(1, len(ranks))), 1, ended(*ranks, **more))


SPENT = {"compute_s": 1.0, "exposed_comm_s": 2.0}


@pytest.mark.parametrize(
    ("one", "other", "columns"),
    [
        ({"step_times_s": [1.0, 5.0]}, {"step_times_s": [2.0, 3.0]},  # of the slowest rank
         {"step_times_s": [2.0, 5.0], "step_time_s": 3.5}),
        # energy of a step over all devices, and the sum of their power; there are two steps
        ({"energy_j": 100.0, "mean_power_w": 50.0, "clock_hz": 2e9, "throttled_share": 0.0},
         {"energy_j": 300.0, "mean_power_w": 150.0, "clock_hz": 1e9, "throttled_share": 0.5},
         {"energy_j": 200.0, "mean_power_w": 200.0, "clock_hz": 1e9, "throttled_share": 0.5}),
        # the mean over ranks; without idle time a profiled step is compared with no other
        ({"spent": SPENT}, {"spent": {"compute_s": 2.0, "exposed_comm_s": 1.0}},
         {"compute_s": 1.5, "exposed_comm_s": 1.5, "profiled_slowdown": None, "tp_comm_s": None}),
        ({"spent": SPENT | {"optimizer_s": 0.5}}, {"spent": SPENT | {"optimizer_s": None}},
         {"compute_s": 1.0, "optimizer_s": None}),
        ({"spent": {"compute_s": 2.0, "exposed_comm_s": 0.5, "idle_s": 0.5}}, None,
         {"profiled_slowdown": 2.0}),
        ({"spent": SPENT | {"optimizer_s": 0.5}}, None, {"optimizer_s": 0.5}),
        # of the fullest device, and of the rank with most
        ({"foreign_memory_bytes": 0, "library_memory_bytes": 5, "num_alloc_retries": 0},
         {"foreign_memory_bytes": 7, "library_memory_bytes": 3, "num_alloc_retries": 7},
         {"foreign_memory_bytes": 7, "library_memory_bytes": 5, "num_alloc_retries": 7}),
        ({"num_ooms": 0, "foreign_memory_bytes": 7}, {"num_ooms": 1},
         {"num_ooms": 1, "foreign_memory_bytes": 7}),
        ({}, None, {"foreign_memory_bytes": None, "num_alloc_retries": None}),
    ],
    ids=str,
)  # fmt: skip
def test_what_ranks_measured_is_joined(one, other, columns):
    found = row(rank(**one), *([] if other is None else [rank(**other)]))
    assert {name: getattr(found, name) for name in columns} == columns


def test_replicas_agree_unless_one_rank_knows_better():
    answers = [(None, None), (True, None), (True, False)]
    found = [row(*(rank(replicas_agree=one) for one in ranks)) for ranks in answers]
    assert [each.replicas_agree for each in found] == [None, True, False]


@pytest.mark.parametrize(
    ("hosts", "startup_s"), [(("node1", "node2"), 13.0), (("node2", "node3"), None)]
)
def test_the_start_is_timed_by_one_hosts_clock_only(hosts, startup_s):
    """The other host's is five minutes fast."""
    stacks = [dataclasses.replace(STACK, host=host) for host in hosts]
    ranks = rank(first_step_at=14.0), rank(first_step_at=314.0)
    assert row(*ranks, stacks=stacks, launched_on="node1").startup_s == startup_s


def test_different_drivers_make_one_fingerprint_in_any_order():
    def of(*drivers):
        stacks = [dataclasses.replace(STACK, driver_version=driver) for driver in drivers]
        return row(*(rank() for _ in drivers), stacks=stacks)

    mixed, turned, uniform = of("570.1", "550.2"), of("550.2", "570.1"), of("570.1", "570.1")
    assert mixed.driver_version == turned.driver_version == "550.2, 570.1"
    assert mixed.stack_fingerprint == turned.stack_fingerprint != uniform.stack_fingerprint
    assert uniform.stack_fingerprint == of("570.1").stack_fingerprint
    assert of("570.1", None).driver_version == "570.1, none"


def test_what_a_suspension_may_have_lengthened_is_not_known():
    one = rank(energy_j=8.0, mean_power_w=2.0, spent={"idle_s": 1.0})
    names = ("startup_s", "energy_j", "mean_power_w", "idle_s")
    whole, suspended = (
        row(one, stacks=[STACK], launched_on=STACK.host, suspensions_s=seconds)
        for seconds in ((), (60.0,))
    )
    assert [getattr(whole, name) for name in names] == [2.0, 4.0, 2.0, 1.0]
    assert [getattr(suspended, name) for name in names] == [None] * 4
    assert suspended.step_times_s == whole.step_times_s
    assert (whole.suspended_s, suspended.suspended_s) == (0, 60.0)


def test_numbers_that_no_table_would_take_are_an_error_that_says_so():
    impossible = row(rank(step_times_s=[1.0, 0.0]))
    sentence = "what was measured cannot be: step_time_low_s=0.0: must be a finite number above 0"
    assert (impossible.outcome, impossible.error_message) == ("error", sentence)
    assert impossible.step_times_s is None
    assert invalid_row_reasons(table_of([impossible])) == [None]  # so its point does not run again


@pytest.mark.parametrize(("accumulation", "kind"), [("short", "extended"), ("full", "measured")])
def test_a_failure_stands_among_the_steps_that_were_asked_for(accumulation, kind):
    point = dataclasses.replace(tiny_point(), accumulation=accumulation)
    run = ended(verdict=Verdict(outcome="oom", message="none left"))
    assert row_of(point, 1, run).step_time_kind == kind


def test_the_fingerprint_forgets_the_host_and_knows_the_driver():
    there = dataclasses.replace(STACK, host="node2")
    updated = dataclasses.replace(STACK, driver_version="575.0")
    here, same, other = (
        provenance_of(stack)["stack_fingerprint"] for stack in (STACK, there, updated)
    )
    assert here == same != other


def test_layouts_with_and_without_an_optional_kernel_share_a_fingerprint():
    plain = dataclasses.replace(STACK, kernel_packages={"liger-kernel": "0.8.5"})
    fused = dataclasses.replace(plain, liger_kernel_version="0.8.5")
    updated = dataclasses.replace(plain, kernel_packages={"liger-kernel": "0.8.6"})
    columns = [provenance_of(stack) for stack in (plain, fused, updated, STACK)]
    first, second, *others = (one["stack_fingerprint"] for one in columns)
    assert first == second not in others
    assert columns[1]["liger_kernel_version"] == "0.8.5"
    assert "kernel_packages" not in columns[0]


def test_without_ranks_versions_are_the_installed_ones():
    columns = provenance_of(None)
    assert columns["deepspeed_version"]
    assert columns["gpu_name"] is None


def test_the_commit_is_that_of_ones_own_checkout(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert git_commit(tmp_path) is None  # without a commit
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert git_commit(tmp_path) == head.stdout.strip()
    (tmp_path / "site-packages").mkdir()  # an installed package is not of the repository around it
    assert git_commit(tmp_path / "site-packages") is None


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("cgroup", "counter"),
    [
        ("0::/job\n", "sys/fs/cgroup/job/memory.events"),
        ("0::/on/the/host\n", "sys/fs/cgroup/memory.events"),
        ("9:cpu:/\n4:memory:/job\n0::/\n", "sys/fs/cgroup/memory/job/memory.oom_control"),
        ("4:cpu,memory:/job\n", "sys/fs/cgroup/memory/job/memory.oom_control"),
        ("4:memory:/on/the/host\n", "sys/fs/cgroup/memory/memory.oom_control"),
        ("0::/\n", "proc/vmstat"),
    ],
    ids=["v2", "v2 in a container", "v1", "v1 joined", "v1 in a container", "none of its own"],
)
def test_oom_kills_are_read_where_the_kernel_counts_them(tmp_path, cgroup, counter):
    write(tmp_path, "proc/self/cgroup", cgroup)
    write(tmp_path, counter, "oom 9\nunder_oom 0\noom_kill 3\noom_group_kill 0\n")
    assert oom_kills(tmp_path) == 3
