"""Studies that nobody ran: real points and rows, with step times from a made-up formula.

Their numbers mean nothing; they only have the shape of real ones, failures and all.
"""

import dataclasses
import itertools
import math
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from scaling.cluster.hardware import GPUS
from scaling.layout.axes import DEFAULTS
from scaling.layout.engines import engine_refusals
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape
from scaling.record.files import point_columns, write_points, write_rows
from scaling.record.row import Outcome, Row
from scaling.study.grid import Plan, Refusal
from scaling.study.point import Point, StudyKind

SHAPES = {
    "llama-1b": ModelShape(
        num_layers=16, hidden_size=2048, num_heads=32, num_kv_heads=8, head_dim=64,
        ffn_hidden_size=8192, vocab_size=128_256, tied_embeddings=True,
    ),
    "llama-8b": ModelShape(
        num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128,
        ffn_hidden_size=14_336, vocab_size=128_256,
    ),
    "tiny": ModelShape(
        num_layers=4, hidden_size=256, num_heads=8, num_kv_heads=4, head_dim=32,
        ffn_hidden_size=688, vocab_size=1024,
    ),
}  # fmt: skip


def point(
    layout: Layout,
    *,
    model: str = "llama-8b",
    shape: ModelShape | None = None,
    cluster: str = "h100",
    gpu: str = "h100-80gb",
    study_kind: StudyKind = "strong",
    repeat: int = 0,
) -> Point:
    """One point; its id is its own words, without what an id may not hold."""
    words = f"{model}-{cluster}-{study_kind}-g{layout.world_size}-b{layout.global_batch_size}"
    return Point(
        study="synthetic",
        study_kind=study_kind,
        point_id=re.sub(r"[^\w.+-]+", "-", f"{words}-{layout.label}-r{repeat}").strip("-"),
        repeat=repeat,
        model=model,
        shape=shape or SHAPES.get(model, SHAPES["tiny"]),
        cluster=cluster,
        gpu=gpu,
        gpus_per_node=8,
        peak_flop_per_s=GPUS[gpu].peaks.get(layout.precision),
        layout=layout,
        seed=1,
        warmup_steps=2,
        measured_steps=10,
        time_limit_s=600.0,
    )


def row(point: Point, outcome: Outcome = "ok", **measured: Any) -> Row:
    """The row of a point: null wherever `measured` says nothing."""
    unmeasured = {field.name: None for field in dataclasses.fields(Row)}
    facts = {
        **unmeasured,
        **point_columns(point),
        "outcome": outcome,
        "attempt": 1,
        "duration_s": 30.0,
        "clock": "cuda_event" if point.gpu != "cpu" else "perf_counter",
        "git_commit": "0123abc",
        "python_version": "3.11.2",
        "torch_version": "2.13.0",
        "deepspeed_version": "0.19.8",
        "scaling_version": "0.1.0",
        "gpu_name": "NVIDIA H100 80GB HBM3" if point.gpu != "cpu" else "AMD EPYC 9B14",
        "memory_meter": "cuda_allocator" if point.gpu != "cpu" else "process_rss",
        "hosts": ["node-1"],
        "started_at": "2026-11-20T10:00:00Z",
        "stack_fingerprint": "stack-a",
    }
    return Row(**{**facts, **measured})


def timed_row(point: Point, step_time_s: float, *, noise: float = 0.01, **measured: Any) -> Row:
    """A row that ran: ten steps around `step_time_s` (seconds), interval ± `noise` (ratio)."""
    rng = random.Random(point.point_id)
    steps = sorted(step_time_s * (1 + rng.uniform(-2, 2) * noise) for _ in range(9))
    steps[4] = step_time_s
    return row(
        point,
        **{
            "step_times_s": steps,
            "step_time_s": step_time_s,
            "step_time_low_s": step_time_s / (1 + noise),
            "step_time_high_s": step_time_s * (1 + noise),
            "losses": [7.0 - 0.1 * step for step in range(12)],
            "peak_memory_bytes": int(memory_bytes(point)),
            "startup_s": 12.0,
            **measured,
        },
    )


def in_short_steps(full: Row, **short: Any) -> Row:
    """The row of a point that ran short steps only, which left `short`."""
    nothing = dict.fromkeys(
        ("step_times_s", "step_time_s", "step_time_low_s", "step_time_high_s", "losses")
    )
    return dataclasses.replace(full, step_time_kind="extended", **nothing, **short)


def memory_bytes(point: Point) -> float:
    """Weights, gradients, optimizer and activations of a rank, roughly."""
    layout, shape = point.layout, point.shape
    params = shape.total_params / (layout.tp * layout.pp)
    shard = layout.dp if layout.zero_stage else 1
    kept = 0.15 if layout.activation_checkpointing == "full" else 1.0
    activations = kept * 34 * shape.hidden_size * layout.seq_length * layout.micro_batch_size
    return 4 * params + 14 * params / shard + activations * shape.num_layers / layout.tp


def step_time_s(point: Point) -> float:
    """Compute, a pipeline bubble and communication that grows with every axis."""
    layout = point.layout
    known = point_columns(point)
    flops = known["hardware_flops_per_token"] * known["tokens_per_step"] / layout.world_size
    if point.gpu == "cpu":  # two cores, however many ranks
        compute = flops / 40e9 * max(1.0, layout.world_size / 2)
    else:
        compute = flops / (0.45 * (point.peak_flop_per_s or 1e15))
    compute *= {"math": 1.3, "flash2": 1.0}.get(layout.attention, 1.1)
    compute *= 2.0 if layout.precision == "bf16" and point.gpu == "cpu" else 1.0
    bubble = 1 + (layout.pp - 1) / (layout.gradient_accumulation_steps + layout.pp - 1)
    communication = (
        0.10 * math.log2(layout.tp)
        + 0.05 * math.log2(layout.dp) * (1 + 0.5 * (layout.zero_stage == 3))
        + 0.02 * math.log2(layout.pp)
        + 0.012 * (math.log2(layout.world_size) ** 2)
    )
    return compute * bubble * (1 + communication)


def grid(
    *,
    models: Iterable[str],
    cluster: str,
    gpu: str,
    sizes: Iterable[int],
    global_batch_size: int,
    seq_length: int,
    axes: dict[str, tuple[Any, ...]],
    repeats: int = 1,
    study_kind: StudyKind = "strong",
) -> Plan:
    """Every combination: points, or refusals with the project's own sentences."""
    points, refused = [], []
    for model, size, values in itertools.product(models, sizes, itertools.product(*axes.values())):
        chosen = {"tp": 1, "pp": 1, "zero_stage": 1, "micro_batch_size": 1} | dict(
            zip(axes, values, strict=True)
        )
        batch = global_batch_size * (size if study_kind == "weak" else 1)
        layout, reason = _place(SHAPES.get(model, SHAPES["tiny"]), chosen, size, batch, seq_length)
        if layout is None:
            common = {field.name: chosen.get(field.name) for field in dataclasses.fields(Refusal)}
            refused.append(
                Refusal(
                    **{
                        **common, **DEFAULTS, **chosen, "study": "synthetic",
                        "study_kind": study_kind, "model": model, "cluster": cluster,
                        "world_size": size, "global_batch_size": batch,
                        "seq_length": seq_length, "reason": reason,
                    }
                )
            )  # fmt: skip
            continue
        for repeat in range(repeats):
            placed = point(
                layout, model=model, cluster=cluster, gpu=gpu, study_kind=study_kind,
                repeat=repeat,
            )  # fmt: skip
            points.append(placed)
    return Plan(points=tuple(points), refusals=tuple(refused))


def _place(
    shape: ModelShape, chosen: dict[str, Any], size: int, batch: int, seq_length: int
) -> tuple[Layout | None, str]:
    replica = chosen["tp"] * chosen["pp"]
    if size % replica:
        return None, f"world_size={size} is not divisible by tp x pp = {replica}"
    dp = size // replica
    per_round = chosen["micro_batch_size"] * dp
    if batch % per_round:
        return None, f"global_batch_size={batch} is not divisible by {per_round}"
    layout = Layout(
        **chosen, dp=dp, seq_length=seq_length, gradient_accumulation_steps=batch // per_round
    )
    reasons = [*refusals(shape, layout), *engine_refusals(shape, layout)]
    return (None, "; ".join(reasons)) if reasons else (layout, "")


def measured(points: Iterable[Point], *, noise: float = 0.01, ran: float = 1.0) -> Iterator[Row]:
    """Rows of the first `ran` share of the points; some fail in every way there is."""
    points = list(points)
    odd: tuple[Outcome, ...] = (
        "timeout", "hang", "kernel_unavailable", "launch_failed", "node_failed", "error",
    )  # fmt: skip
    for number, one in enumerate(points[: math.ceil(ran * len(points))]):
        capacity = GPUS[one.gpu].memory_bytes
        if capacity and memory_bytes(one) > 0.9 * capacity:
            message = "CUDA out of memory. Tried to allocate 2.00 GiB"
            yield row(one, "oom", error_message=message, stack_fingerprint="stack-a")
        elif number % 11 == 10:
            outcome = odd[number // 11 % len(odd)]
            yield row(one, outcome, error_message=f"made up: {outcome}")
        else:
            rng = random.Random(f"{one.point_id}/time")
            yield timed_row(one, step_time_s(one) * (1 + rng.gauss(0, noise)), noise=noise)


def write_study(directory: Path, *plans: Plan, noise: float = 0.01, ran: float = 1.0) -> Path:
    """Write the plans as one study with rows of the first `ran` share of each."""
    points = tuple(itertools.chain.from_iterable(plan.points for plan in plans))
    refused = tuple(itertools.chain.from_iterable(plan.refusals for plan in plans))
    write_points(directory, Plan(points=points, refusals=refused))
    for number, plan in enumerate(plans):
        if rows := list(measured(plan.points, noise=noise, ran=ran)):
            write_rows(directory / "rows" / f"{number}.parquet", rows)
    return directory


def gpu_plan(**changes: Any) -> Plan:
    """Two models on 1 to 8 GPUs: tp, pp, ZeRO stage, micro-batch, checkpointing; two repeats."""
    asked: dict[str, Any] = {
        "models": ("llama-1b", "llama-8b"), "cluster": "h100", "gpu": "h100-80gb",
        "sizes": (1, 2, 4, 8), "global_batch_size": 64, "seq_length": 4096, "repeats": 2,
        "axes": {
            "tp": (1, 2, 4), "pp": (1, 2), "zero_stage": (1, 3), "micro_batch_size": (1, 2),
            "activation_checkpointing": ("none", "full"),
        },
    }  # fmt: skip
    return grid(**{**asked, **changes})


def cpu_plan(**changes: Any) -> Plan:
    """One tiny model on 1, 2 and 4 ranks of a laptop."""
    asked: dict[str, Any] = {
        "models": ("tiny",), "cluster": "laptop", "gpu": "cpu", "sizes": (1, 2, 4),
        "global_batch_size": 8, "seq_length": 128,
        "axes": {
            "tp": (1, 2), "pp": (1, 2), "zero_stage": (0, 1, 3), "precision": ("fp32", "bf16"),
            "attention": ("math", "flash2"),
        },
    }  # fmt: skip
    return grid(**{**asked, **changes})
