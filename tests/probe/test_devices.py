"""Probes of a device run what trains, as often as a made-up clock asks; ranks agree."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported at run time
from torch.profiler import ProfilerActivity, profile

from scaling.probe.devices import prepare_task, read_under_load, time_samples
from scaling.probe.plan import Task
from scaling.probe.program import Council


def test_flash2_is_the_kernel_that_trains_forward_and_backward():
    task = Task(
        kind="attention", attention="flash2", precision="bf16", batch_size=1, num_heads=4,
        num_kv_heads=2, head_dim=8, seq_length=16,
    )  # fmt: skip
    work = prepare_task(task, torch.device("cpu"))
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:
        work()
    flash = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert {flash, f"{flash}_backward"} <= {event.key for event in trace.key_averages()}


def test_clock_and_power_are_read_while_runs_are_queued():
    told = []

    class Metered:
        def sample(self):
            told.append("sample")
            return {"clock_hz": 1.75e9, "power_w": 700.0, "throttled_share": 1.0}

    record = read_under_load(lambda: told.append("run"), Metered())
    assert record == {"clock_hz": 1.75e9, "power_w": 700.0}
    assert told[-2:] == ["run", "sample"]
    assert set(told[:-1]) == {"run"}


class Machine:
    """A run takes `seconds`; the clock moves only while the device works."""

    def __init__(self, seconds):
        self.seconds, self.now, self.queued, self.runs = seconds, 0.0, 0, 0

    def run(self):
        self.queued += 1
        self.runs += 1

    def drain(self):
        self.now += self.queued * self.seconds
        self.queued = 0


def sampled(seconds, budget_s, **more):
    machine = Machine(seconds)
    taken = time_samples(
        machine.run, drain=machine.drain, budget_s=budget_s, clock=lambda: machine.now, **more
    )
    return taken, machine


def test_something_short_is_run_so_often_that_the_clock_can_see_it():
    taken, machine = sampled(1e-5, 0.05)
    assert len(taken) == 20
    assert machine.runs == 2 + 20 * 200  # 2 ms a sample
    assert all(abs(one / 1e-5 - 1) < 1e-6 for one in taken)


def test_all_ranks_run_as_often_as_the_slowest_can():
    _, machine = sampled(1e-5, 0.05, agree=lambda own: max(own, 1e-3))
    assert machine.runs == 2 + 20 * 2


def test_a_device_is_warm_before_it_is_timed():
    """A second of runs of 10 ms, beside those that are counted and the two before."""
    taken, machine = sampled(0.01, 0.05, warm_s=1.0)
    assert len(taken) == 5
    assert abs(machine.runs - (2 + 100 + 5)) <= 1


RANKS, QUESTIONS = 8, 5


def test_ranks_agree_on_the_largest_value_and_leave_one_answer() -> None:
    server = TCPStore("127.0.0.1", 0, None, is_master=True, timeout=timedelta(seconds=60))

    def answers(rank: int) -> list[float]:
        council = Council(server.clone(), RANKS)  # type: ignore[attr-defined]
        return [council.largest(rank * sign) for sign in (1.0, 0.5, -1.0, 0.25, 2.0)]

    with ThreadPoolExecutor(RANKS) as ranks:
        found = list(ranks.map(answers, range(RANKS)))
    assert found == [[7.0, 3.5, 0.0, 1.75, 14.0]] * RANKS
    kept = {key for key in server.list_keys() if "council" in key}
    assert len(kept) == 1, kept
