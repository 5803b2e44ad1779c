"""Checks that need a GPU: allocated memory against rehearsed, step rates against published ones."""

from collections.abc import Iterator, Mapping
from typing import Any

from scaling.check.lines import Line, failed_point, not_here, pass_or_fail
from scaling.check.oracle import rank_memories
from scaling.check.training import Machine
from scaling.layout.shapes import ModelShape
from scaling.published.table import nearest_rows
from scaling.record.row import Row

_MEMORY, _RATES = "memory", "reference rates"
_MEMORY_TOLERANCE, _LEAST_RATE = 0.02, 0.95  # ratios
# 0.4e9 parameters at 22 bytes each are 9 GB, so that norms and workspaces hardly count.
_WIDE = ModelShape(
    num_layers=8, hidden_size=2048, num_heads=16, num_kv_heads=16, head_dim=128,
    ffn_hidden_size=5504, vocab_size=32000,
)  # fmt: skip
# TinyLlama's shape (config/models.yaml), which trains on one GPU of 40 GB.
_ONE_BILLION = ModelShape(
    num_layers=22, hidden_size=2048, num_heads=32, num_kv_heads=4, head_dim=64,
    ffn_hidden_size=5632, vocab_size=32000,
)  # fmt: skip
_LAYOUTS: tuple[Mapping[str, Any], ...] = (
    {"zero_stage": 0},
    {"zero_stage": 1, "gradient_accumulation_steps": 2},
    {"zero_stage": 2, "activation_checkpointing": "full", "micro_batch_size": 4},
    {"zero_stage": 3},
    {"zero_stage": 1, "attention": "math", "activation_checkpointing": "selective"},
    {"zero_stage": 1, "optimizer_precision": "bf16"},
)
_USUAL = {
    "precision": "bf16", "attention": "flash2", "seq_length": 2048, "micro_batch_size": 2,
    "gradient_accumulation_steps": 1,
}  # fmt: skip


def memory_lines(machine: Machine) -> Iterator[Line]:
    """Compare the allocator's peak with `scaling memory`'s for six layouts on one GPU."""
    if machine.gpu == "cpu":
        yield not_here(_MEMORY, "allocated memory of six layouts", "a CPU has no allocator to ask")
        return
    points = [machine.point(_USUAL | dict(layout), shape=_WIDE) for layout in _LAYOUTS]
    exact = rank_memories((point, [0]) for point in points)
    for number, (point, (memory,)) in enumerate(zip(points, exact, strict=True)):
        row = machine.measure(f"memory{number}", point)
        yield memory_line(point.layout.label, row, memory.peak_bytes)


def memory_line(name: str, row: Row, exact_bytes: int) -> Line:
    """Compare a row's peak memory with the rehearsed bytes."""
    if row.outcome != "ok" or row.peak_memory_bytes is None:
        return failed_point(_MEMORY, name, row)
    apart = abs(row.peak_memory_bytes / exact_bytes - 1)
    return pass_or_fail(
        _MEMORY, name, apart, passes=apart <= _MEMORY_TOLERANCE,
        said=f"apart, at most {_MEMORY_TOLERANCE:g}: {row.peak_memory_bytes:,} bytes allocated, "
        f"{exact_bytes:,} told",
    )  # fmt: skip


def trace_line(machine: Machine) -> Line:
    """Check that the profiler's raw trace is kept where a study asks for it."""
    name = "a raw trace is kept"
    row = machine.measure("trace", machine.point({}, keep_trace=True))
    traces = list((machine.folder / "trace").rglob("*.trace.json.gz"))
    size = sum(trace.stat().st_size for trace in traces)
    passes = row.outcome == "ok" and size > 0
    return pass_or_fail(_MEMORY, name, size, "bytes", passes=passes, said="of one step, compressed")


def rate_lines(machine: Machine) -> Iterator[Line]:
    """Compare a measured step of a 1B model with the nearest published row."""
    name = "a step against the nearest published one"
    if machine.gpu == "cpu":
        yield not_here(_RATES, name, "nobody publishes steps of a CPU")
        return
    nearest = nearest_rows(
        gpu=machine.gpu,
        active_params=_ONE_BILLION.total_params,
        precision="bf16",
        world_size=machine.ranks,
        experts=False,
    )
    if not nearest:
        yield not_here(_RATES, name, f"no published row of {machine.gpu} is near to a 1B")
        return
    layout = _USUAL | {
        "dp": machine.ranks, "zero_stage": 1, "micro_batch_size": 8,
        "gradient_accumulation_steps": 4,
    }  # fmt: skip
    point = machine.point(layout, shape=_ONE_BILLION, warmup_steps=5, measured_steps=10)
    yield rate_line(name, machine.measure("rate", point), nearest[0])


def rate_line(name: str, row: Row, published: Mapping[str, Any]) -> Line:
    """Compare a row's model FLOP/s per GPU with a published row's."""
    if row.step_time_s is None:
        return failed_point(_RATES, name, row)
    tokens_per_s = row.global_batch_size * row.seq_length / row.step_time_s / row.world_size
    flop_per_s = tokens_per_s * row.model_flops_per_token
    ratio = flop_per_s / published["model_flop_per_s_per_gpu"]
    return pass_or_fail(
        _RATES, name, ratio, passes=ratio >= _LEAST_RATE,
        said=f"of its FLOP/s a GPU, at least {_LEAST_RATE:g}: {flop_per_s / 1e12:.0f} TFLOP/s "
        f"beside {published['sentence']}",
    )  # fmt: skip
