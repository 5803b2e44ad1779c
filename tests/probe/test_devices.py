"""Probes of a device run what trains; clock and power are read meanwhile."""

import torch
from torch.profiler import ProfilerActivity, profile

from scaling.probe.devices import prepare_task, read_under_load
from scaling.probe.plan import Task


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
