"""Measurements of ranks become one row."""

import dataclasses

import pytest

from scaling.launch.judge import Verdict
from scaling.launch.make_row import row_of
from scaling.launch.ranks import FinishedRun
from scaling.record.files import table_of
from scaling.record.rank_files import RankResult
from scaling.record.row_checks import invalid_row_reasons
from tests.launch.test_provenance import STACK
from tests.points import tiny_point


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
