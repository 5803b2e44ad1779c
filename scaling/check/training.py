"""Train points as a study does: losses, memory and warm hosts, and failures on purpose."""

import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
from torch.nn.utils import clip_grad_norm_

from scaling import launch
from scaling.check.lines import Line, ending, failed_point, not_here, pass_or_fail
from scaling.check.oracle import rank_memories
from scaling.errors import printable
from scaling.launch.start.forked import local_fork_server
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.record.row import Outcome, Row
from scaling.study.point import Point
from scaling.train.data import Feed
from scaling.train.engines.trainer import BETAS, LEARNING_RATE, WEIGHT_DECAY, whole_model
from scaling.train.model.blueprint import Blueprint
from scaling.train.parallel.groups import Place
from scaling.train.parallel.tensor import TensorParallel

SHAPE = ModelShape(
    family="llama", num_layers=4, hidden_size=64, num_heads=4, num_kv_heads=4, head_dim=16,
    ffn_hidden_size=128, vocab_size=256,
)  # fmt: skip
_BATCH, _STEPS = 8, 4
# Tolerated difference of a loss that begins at ln(256) = 5.5, and of a gradient norm as a share of
# it. Only the norm shows a gradient that is wrong: the loss hardly learns in so few steps.
_LOSS_TOLERANCE = {"fp32": 1e-4, "bf16": 1e-2, "fp16": 1e-2, "fp8": 2e-2}
_NORM_TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 5e-2, "fp8": 0.2}
_LIMIT_S = 120.0
_COMPILED_LIMIT_S = 300.0
_LEFT_BYTES = 64 * 2**20  # tolerated after a point that was ended
_MEMORY_TOLERANCE = 0.02  # ratio
_SILENT_S = 30.0  # longer than imports take
_PROVOKED = (sys.executable, "-m", "scaling.check.provoked")
# Columns that every row must have, and columns for each degree above 1.
_SPLIT = ("compute_s", "comm_s", "exposed_comm_s", "idle_s", "optimizer_s")
_BY_DEGREE = {"tp": "tp_comm_s", "cp": "cp_comm_s", "pp": "pp_comm_s", "dp": "dp_comm_s"}

# On one rank, in the order of the text page.
ALONE: tuple[Mapping[str, Any], ...] = (
    *({"zero_stage": stage} for stage in (0, 1, 2, 3)),
    {"zero_stage": 2, "optimizer_offload": "cpu"},
    {"activation_checkpointing": "selective"},
    {"activation_checkpointing": "full"},
    {"compile": True},
    {"zero_stage": 1, "precision": "bf16"},
    {"zero_stage": 1, "precision": "bf16", "optimizer_precision": "bf16"},
    {"zero_stage": 1, "precision": "fp16"},
    {"zero_stage": 1, "precision": "fp8", "compile": True},
    {
        "zero_stage": 1, "precision": "bf16", "attention": "flash2", "fused_norm": True,
        "fused_rope": True, "fused_mlp": True, "fused_cross_entropy": True,
    },
    {"engine": "torch", "zero_stage": 1, "precision": "bf16", "attention": "flash2"},
    {"engine": "torch", "zero_stage": 3, "compile": True},
)  # fmt: skip
TOGETHER: tuple[Mapping[str, Any], ...] = (
    *({"dp": 2, "zero_stage": stage} for stage in (0, 1, 2, 3)),
    {"tp": 2},
    {"tp": 2, "sequence_parallel": True},
    {"cp": 2},
    {"pp": 2, "zero_stage": 1, "gradient_accumulation_steps": 4},
    {"pp": 2, "pipeline_schedule": "dualpipev", "zero_stage": 1, "gradient_accumulation_steps": 4},
    {"dp": 4, "zero_stage": 3, "zero_shard_size": 2},
    {"tp": 2, "pp": 2, "dp": 2, "zero_stage": 1, "gradient_accumulation_steps": 2},
)


# 0.4e9 parameters at 22 bytes each are 9 GB, so that norms and workspaces hardly count.
_WIDE = ModelShape(
    num_layers=8, hidden_size=2048, num_heads=16, num_kv_heads=16, head_dim=128,
    ffn_hidden_size=5504, vocab_size=32000,
)  # fmt: skip
_COUNTED: tuple[Mapping[str, Any], ...] = (
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of the points: `gpu` and `cluster` as a study names them, and its ranks."""

    gpu: str
    cluster: str
    ranks: int
    folder: Path

    def point(self, layout: Mapping[str, Any], **facts: Any) -> Point:
        """A tiny model in this layout with a global batch of 8 sequences."""
        shares = layout.get("gradient_accumulation_steps", 1) * layout.get("dp", 1)
        plain = {"seq_length": 32, "precision": "fp32", "micro_batch_size": _BATCH // shares}
        asked = Layout(**({"attention": "math"} | plain | dict(layout)))
        usual: dict[str, Any] = {
            "study": "check", "study_kind": "strong", "point_id": "point", "repeat": 0,
            "model": "check", "shape": SHAPE, "cluster": self.cluster, "gpu": self.gpu,
            "gpus_per_node": max(self.ranks, asked.world_size), "peak_flop_per_s": None,
            "layout": asked, "seed": 1, "warmup_steps": 1, "measured_steps": _STEPS - 1,
            "time_limit_s": _COMPILED_LIMIT_S if asked.compile else _LIMIT_S,
        }  # fmt: skip
        return Point(**(usual | facts))

    def measure(self, name: str, point: Point, **options: Any) -> Row:
        """Run the point in a folder of that name and return its row."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        path = folder / "point.json"
        path.write_text(point.to_json(), encoding="utf-8")
        return launch.measure(path, folder / "point.parquet", **options)


@contextlib.contextmanager
def warm_server(machine: Machine) -> Iterator[psutil.Process]:
    """While active, a server that has imported torch forks the ranks; yields the server."""
    with (
        local_fork_server(machine.point({}), machine.folder) as variables,
        mock.patch.dict(os.environ, variables),
    ):
        folder = Path(next(iter(variables.values())))
        yield psutil.Process(int((folder / "pid").read_text()))


@dataclass(frozen=True, slots=True)
class Curve:
    """Each step's loss and gradient norm."""

    losses: Sequence[float]
    grad_norms: Sequence[float]


def reference_curve(
    point: Point, device: torch.device, learning_rate: float = LEARNING_RATE
) -> Curve:
    """The curve that every layout must reproduce: one process, whole batches, no engine.

    Weights are drawn on `device`, as ranks on such a device draw them.
    """
    plan = Blueprint(
        shape=point.shape, layout=point.layout, tp=TensorParallel(), seed=point.seed, device=device
    )
    model = whole_model(plan)
    weights = [*model.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY)
    steps = point.warmup_steps + point.measured_steps
    feed = Feed(point, Place.of(0, point.layout), [1] * steps, first=0, device=device)
    losses, grad_norms = [], []
    for step in range(steps):
        ((ids, labels),) = feed(step)
        optimizer.zero_grad()
        loss = model(ids, labels)
        loss.backward()
        grad_norms.append(clip_grad_norm_(weights, point.gradient_clipping or math.inf).item())
        optimizer.step()
        losses.append(loss.item())
    return Curve(losses, grad_norms)


def training_lines(
    machine: Machine, layouts: Sequence[Mapping[str, Any]], device: torch.device
) -> Iterator[Line]:
    """A line for each layout that compares what it learns with what plain code learns."""
    reference = reference_curve(machine.point({}), device)
    for layout in layouts:
        point = machine.point(layout)
        name, needed = point.layout.label, point.world_size
        if needed > machine.ranks:
            yield not_here(name, f"{needed} ranks, and here are {machine.ranks}")
        else:
            row = machine.measure(point.layout.file_name, point)
            yield training_line(name, row, reference)


def training_line(name: str, row: Row, reference: Curve) -> Line:
    """Compare a row's curve with the reference, and check that its time is fully split.

    A row without gradient norms, which some engines do not keep, is compared by its losses.
    """
    if row.outcome == "kernel_unavailable":
        return not_here(name, printable(row.error_message or ""))
    if row.outcome != "ok" or row.losses is None:
        return failed_point(name, row)
    losses = zip(row.losses, reference.losses, strict=True)
    norms = zip(row.grad_norms or [], reference.grad_norms, strict=bool(row.grad_norms))
    worst = max(abs(loss - exact) for loss, exact in losses)
    worst_norm = max((abs(norm / exact - 1) for norm, exact in norms), default=None)
    limit, norm_limit = _LOSS_TOLERANCE[row.precision], _NORM_TOLERANCE[row.precision]
    gradients = "no gradient norm is kept"
    if worst_norm is not None:
        gradients = f"gradient norms {worst_norm:.2g} apart, at most {norm_limit:g}"
    columns = [*_SPLIT, *(c for degree, c in _BY_DEGREE.items() if getattr(row, degree) > 1)]
    missing = [column for column in columns if getattr(row, column) is None]
    split = f"; null: {', '.join(missing)}" if missing else "; every part of the step's time known"
    return pass_or_fail(
        name, worst,
        passes=worst <= limit and (worst_norm or 0.0) <= norm_limit and not missing,
        said=f"from the losses of plain fp32 code, at most {limit:g}; {gradients}{split}",
    )  # fmt: skip


def memory_lines(machine: Machine) -> Iterator[Line]:
    """Compare the allocator's peak with `scaling memory`'s for six layouts on one GPU."""
    if machine.gpu == "cpu":
        yield not_here("allocated memory of six layouts", "a CPU has no allocator to ask")
        return
    points = [machine.point(_USUAL | dict(layout), shape=_WIDE) for layout in _COUNTED]
    exact = rank_memories((point, [0]) for point in points)
    for number, (point, (memory,)) in enumerate(zip(points, exact, strict=True)):
        row = machine.measure(f"memory{number}", point)
        yield memory_line(point.layout.label, row, memory.peak_bytes)


def memory_line(name: str, row: Row, exact_bytes: int) -> Line:
    """Compare a row's peak memory with the rehearsed bytes."""
    if row.outcome != "ok" or row.peak_memory_bytes is None:
        return failed_point(name, row)
    apart = abs(row.peak_memory_bytes / exact_bytes - 1)
    return pass_or_fail(
        name, apart, passes=apart <= _MEMORY_TOLERANCE,
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
    return pass_or_fail(name, size, "bytes", passes=passes, said="of one step, compressed")


def host_lines(machine: Machine, server: psutil.Process) -> Iterator[Line]:
    """Run two points in a row, then one that its time limit ends, and check the memory after it."""
    first = machine.measure("order0", machine.point({}))
    before = _held_bytes(server)
    second = machine.measure("order1", machine.point({}))
    outcomes = [row.outcome for row in (first, second)]
    yield pass_or_fail(
        "two orders in a row", passes=outcomes == ["ok", "ok"],
        said=f"{outcomes[0]}, {outcomes[1]}: {first.startup_s or 0:.1f} and "
        f"{second.startup_s or 0:.1f} s to the first step",
    )  # fmt: skip
    late = machine.measure("order2", machine.point({}, measured_steps=10**6, time_limit_s=8.0))
    ended = late.outcome == "timeout"
    yield pass_or_fail("ranks ended in mid-step", passes=ended, said=ending(late))
    after = machine.measure("order3", machine.point({}))
    left = _held_bytes(server) - before
    yield pass_or_fail(
        "memory after it", left / 2**20, "MiB",
        passes=after.outcome == "ok" and left < _LEFT_BYTES,
        said=f"more than before, at most {_LEFT_BYTES // 2**20}; the next order: {after.outcome}",
    )  # fmt: skip


def _held_bytes(server: psutil.Process) -> int:
    """Bytes that a server and its processes hold, on the GPU if there is one."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return total - free
    return sum(process.memory_info().rss for process in (server, *server.children(recursive=True)))


def outcome_lines(machine: Machine) -> Iterator[Line]:
    """A line for each point that must fail, followed by a point that must be ok."""
    huge = dataclasses.replace(
        SHAPE, hidden_size=10**6, num_heads=10, num_kv_heads=10, head_dim=10**5
    )
    replicas, stage_full = {"dp": min(2, machine.ranks)}, "a pipeline's stage out of memory"
    silent = {"rank_command": [*_PROVOKED, "silent"], "hang_after_s": _SILENT_S}
    cases: list[tuple[str, Outcome, str, Point, dict[str, Any]]] = [
        ("a model beyond all memory", "oom", "", machine.point({}, shape=huge), {}),
        ("a rank that falls silent", "hang", ": step ", machine.point(replicas), silent),
    ]
    if machine.ranks > 1:
        stages = machine.point({"pp": 2, "engine": "torch", "gradient_accumulation_steps": 4})
        cases.append((stage_full, "oom", "", stages, {"rank_command": [*_PROVOKED, "full_stage"]}))
    else:
        yield not_here(stage_full, "2 ranks, and here is 1")
    for number, (name, expected, words, point, options) in enumerate(cases):
        row = machine.measure(f"fails{number}", point, **options)
        after = machine.measure(f"after{number}", machine.point({}))
        yield outcome_line(name, expected, words, row, after.outcome)


def outcome_line(name: str, expected: Outcome, words: str, row: Row, after: Outcome) -> Line:
    """Whether a point failed with this outcome and these words, and the next was ok."""
    right = row.outcome == expected and words in (row.error_message or "")
    said = f"{row.outcome if right else ending(row)}, and the next point: {after}"
    return pass_or_fail(name, passes=right and after == "ok", said=said)
