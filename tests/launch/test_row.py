"""Measurements of ranks become one row."""

import dataclasses
from typing import Any

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
    plain: dict[str, Any] = {
        "clock": "cuda_event",
        "step_times_s": [1.0, 2.0],
        "losses": [5.0, 4.0],
        "grad_norms": None,
        "peak_memory_bytes": 10,
        "peak_reserved_bytes": None,
        "memory_meter": "cuda_allocator",
        "first_step_at": 3.0,
        "metered_steps": 2,
    }
    return RankResult(**(plain | measured))


def row(*ranks):
    run = FinishedRun(
        verdict=Verdict(outcome="ok"),
        results=dict(enumerate(ranks)),
        stacks={},
        started_at=1.0,
        duration_s=9.0,
    )
    return row_of(tiny_point(dp=len(ranks)), 1, run)


def test_a_step_lasts_as_long_as_on_its_slowest_rank():
    found = row(rank(step_times_s=[1.0, 5.0]), rank(step_times_s=[2.0, 3.0]))
    assert (found.step_times_s, found.step_time_s) == ([2.0, 5.0], 3.5)


def test_energy_is_that_of_a_step_over_all_devices_and_power_their_sum():
    one = rank(energy_j=100.0, mean_power_w=50.0, clock_hz=2e9, throttled_share=0.0)
    other = rank(energy_j=300.0, mean_power_w=150.0, clock_hz=1e9, throttled_share=0.5)
    found = row(one, other)
    assert (found.energy_j, found.mean_power_w) == (200.0, 200.0)  # two steps
    assert (found.clock_hz, found.throttled_share) == (1e9, 0.5)


def test_what_a_step_goes_to_is_the_mean_over_ranks():
    found = row(
        rank(spent={"compute_s": 1.0, "exposed_comm_s": 2.0}),
        rank(spent={"compute_s": 2.0, "exposed_comm_s": 1.0}),
    )
    assert (found.compute_s, found.exposed_comm_s) == pytest.approx((1.5, 1.5))
    assert found.profiled_slowdown is None  # idle time is not known
    assert found.tp_comm_s is None


def test_a_profiled_step_is_compared_with_the_timed_ones():
    spent = {"compute_s": 2.0, "exposed_comm_s": 0.5, "idle_s": 0.5}
    assert row(rank(spent=spent)).profiled_slowdown == pytest.approx(3.0 / 1.5)


def test_what_one_rank_cannot_say_of_a_step_is_null():
    known = {"compute_s": 1.0, "optimizer_s": 0.5}
    found = row(rank(spent=known), rank(spent=known | {"optimizer_s": None}))
    assert (found.compute_s, found.optimizer_s) == (1.0, None)
    assert row(rank(spent=known)).optimizer_s == 0.5


def test_memory_is_that_of_the_fullest_device():
    one = rank(foreign_memory_bytes=0, library_memory_bytes=5)
    found = row(one, rank(foreign_memory_bytes=7, library_memory_bytes=3), rank())
    assert (found.foreign_memory_bytes, found.library_memory_bytes) == (7, 5)
    assert row(rank()).foreign_memory_bytes is None


def test_allocator_retries_are_those_of_the_rank_with_most():
    found = row(rank(num_alloc_retries=0, num_ooms=0), rank(num_alloc_retries=7, num_ooms=1))
    assert (found.num_alloc_retries, found.num_ooms) == (7, 1)
    assert row(rank()).num_alloc_retries is None


def test_replicas_agree_unless_one_rank_knows_better():
    answers = [(None, None), (True, None), (True, False)]
    found = [row(*(rank(replicas_agree=one) for one in ranks)) for ranks in answers]
    assert [each.replicas_agree for each in found] == [None, True, False]


def test_the_start_is_timed_by_one_hosts_clock_only():
    """The other host's is five minutes fast."""

    def startup_s(*hosts):
        run = FinishedRun(
            verdict=Verdict(outcome="ok"),
            results={0: rank(first_step_at=14.0), 1: rank(first_step_at=314.0)},
            stacks={number: dataclasses.replace(STACK, host=host)
                    for number, host in enumerate(hosts)},
            started_at=1.0,
            duration_s=9.0,
            launched_on="node1",
        )  # fmt: skip
        return row_of(tiny_point(dp=2), 1, run).startup_s

    assert startup_s("node1", "node2") == 13.0
    assert startup_s("node2", "node3") is None


def test_different_drivers_make_one_fingerprint_in_any_order():
    def of(*drivers):
        run = FinishedRun(
            verdict=Verdict(outcome="ok"),
            results={number: rank() for number in range(len(drivers))},
            stacks={number: dataclasses.replace(STACK, driver_version=driver)
                    for number, driver in enumerate(drivers)},
            started_at=1.0,
            duration_s=9.0,
        )  # fmt: skip
        return row_of(tiny_point(dp=2), 1, run)

    mixed, turned, uniform = of("570.1", "550.2"), of("550.2", "570.1"), of("570.1", "570.1")
    assert mixed.driver_version == turned.driver_version == "550.2, 570.1"
    assert mixed.stack_fingerprint == turned.stack_fingerprint != uniform.stack_fingerprint
    assert uniform.stack_fingerprint == of("570.1").stack_fingerprint
    assert of("570.1", None).driver_version == "570.1, none"


def test_what_a_suspension_may_have_lengthened_is_not_known():
    ended = FinishedRun(
        verdict=Verdict(outcome="ok"),
        results={0: rank(energy_j=8.0, mean_power_w=2.0, spent={"idle_s": 1.0})},
        stacks={0: STACK},
        started_at=1.0,
        duration_s=9.0,
        launched_on=STACK.host,
    )
    names = ("startup_s", "energy_j", "mean_power_w", "idle_s")
    whole, suspended = (
        row_of(tiny_point(), 1, dataclasses.replace(ended, suspensions_s=seconds))
        for seconds in ((), (60.0,))
    )
    assert [getattr(whole, name) for name in names] == [2.0, 4.0, 2.0, 1.0]
    assert [getattr(suspended, name) for name in names] == [None] * 4
    assert suspended.step_times_s == whole.step_times_s


def test_numbers_that_no_table_would_take_are_an_error_that_says_so():
    impossible = row(rank(step_times_s=[1.0, 0.0]))
    sentence = "what was measured cannot be: step_time_low_s=0.0: must be a finite number above 0"
    assert (impossible.outcome, impossible.error_message) == ("error", sentence)
    assert impossible.step_times_s is None
    assert invalid_row_reasons(table_of([impossible])) == [None]  # so its point does not run again


def test_a_failure_stands_among_the_steps_that_were_asked_for():
    run = FinishedRun(
        verdict=Verdict(outcome="oom", message="none left"),
        results={},
        stacks={},
        started_at=1.0,
        duration_s=9.0,
    )
    short = dataclasses.replace(tiny_point(), accumulation="short")
    assert row_of(short, 1, run).step_time_kind == "extended"
    assert row_of(tiny_point(), 1, run).step_time_kind == "measured"
