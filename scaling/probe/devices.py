"""Probes of a single device (GEMMs, copies within its memory, attention), and their timing.

Something short is timed in several samples, each of as many runs as it takes to be measurable.
"""

import math
import time
from collections.abc import Callable

import torch

from scaling.probe.plan import Task
from scaling.train.kernels.attention import DTYPES, attend, kernel_named_if_missing
from scaling.train.kernels.availability import require_attention
from scaling.train.measure.power import NvmlMeter

_SAMPLE_S = 0.002  # shorter samples measure the clock and the launch
_MAX_RUNS = 500  # in a sample
_MIN_SAMPLES, _MAX_SAMPLES = 5, 20
_QUEUED_RUNS = 20  # while the meter is read, which takes about a millisecond


def prepare_task(task: Task, device: torch.device) -> Callable[[], object]:
    """Allocate the task's buffers and return a function that runs it once.

    The numbers are random: a GPU that multiplies zeros draws less power and clocks higher.

    Raises:
        KernelUnavailable: a kernel is not available.
        torch.OutOfMemoryError: the buffers do not fit.
    """
    size = task.message_bytes or 0
    if task.kind == "memory_copy":
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        target = torch.ones_like(source)
        return lambda: target.copy_(source)
    if task.kind == "host_update":  # on the cores of this rank, as an offloaded optimizer
        weight = torch.ones(size // 4, requires_grad=True)
        weight.grad = torch.ones_like(weight)
        return torch.optim.AdamW([weight], fused=True).step
    dtype = DTYPES[task.precision]
    return _gemm(task, dtype, device) if task.kind == "gemm" else _attention(task, dtype, device)


def _gemm(task: Task, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    m, n, k = (size or 0 for size in (task.m, task.n, task.k))
    left = torch.randn(m, k, device=device, dtype=dtype)
    weight = torch.randn(n, k, device=device, dtype=dtype)  # laid out as in functional.linear
    out = torch.empty(m, n, device=device, dtype=dtype)
    return lambda: torch.mm(left, weight.t(), out=out)


def _attention(task: Task, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    kernel = task.attention
    assert kernel is not None
    require_attention(kernel, task.precision, device)
    sizes = (task.batch_size, task.num_heads, task.num_kv_heads, task.seq_length, task.head_dim)
    batch, query_heads, kv_heads, tokens, head_dim = (size or 0 for size in sizes)

    def random_heads(count: int) -> torch.Tensor:
        """[b, count, s, d]."""
        shape = (batch, count, tokens, head_dim)
        return torch.randn(shape, device=device, dtype=dtype, requires_grad=True)

    query, key = random_heads(query_heads), random_heads(kv_heads)
    value = random_heads(kv_heads)
    upstream = torch.randn_like(query)

    def run() -> None:
        result = attend(query, key, value, kernel)
        torch.autograd.grad(result, (query, key, value), upstream)

    with kernel_named_if_missing(kernel):
        run()
    return run


def time_samples(
    run: Callable[[], object],
    *,
    drain: Callable[[], object],
    budget_s: float,
    warm_s: float = 0.0,
    agree: Callable[[float], float] = float,
    align: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Samples of the seconds of one run: as many as `budget_s` allows, from 5 to 20.

    Two runs before them are not counted: they allocate memory, connect, and choose kernels. On a
    GPU `run` only queues the work and `drain` waits for it. Ranks that must run equally often
    `agree` on the largest of their values, and `align` lets them start together. It runs for
    `warm_s` before, as a cool card multiplies at a higher clock than its power allows for long.
    """
    run()
    drain()
    align()
    warm = clock() + warm_s
    while clock() < warm:
        run()
        drain()
    started = clock()
    run()
    drain()
    once = max(agree(clock() - started), 1e-7)
    runs = min(_MAX_RUNS, max(1, math.ceil(_SAMPLE_S / once)))
    count = min(_MAX_SAMPLES, max(_MIN_SAMPLES, int(budget_s / (runs * once))))
    samples = []
    align()
    for _ in range(count):
        started = clock()
        for _ in range(runs):
            run()
        drain()
        samples.append((clock() - started) / runs)
    return samples


def read_under_load(run: Callable[[], object], meter: NvmlMeter) -> dict[str, float | None]:
    """The clock (hertz) and power (watts) of a device that has runs queued; it is not drained."""
    for _ in range(_QUEUED_RUNS):
        run()
    sample = meter.sample()
    return {name: sample[name] for name in ("clock_hz", "power_w")}
