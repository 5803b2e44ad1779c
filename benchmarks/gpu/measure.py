"""Measure layouts on one GPU beside what is predicted, keep a trace, or probe the GPU.

    python benchmarks/gpu/measure.py FOLDER [--limit-s 330] [--first 0]
    python benchmarks/gpu/measure.py FOLDER --trace
    python benchmarks/gpu/measure.py FOLDER --probe
    python benchmarks/gpu/measure.py FOLDER --watch

Six layouts of few steps come first, one for each part of the code that may fail, then those that
are measured. Nothing begins after the limit: `--first` continues with a later one. FOLDER gets,
after every layout, rows.parquet (for `scaling calibrate`) and measured.jsonl: what was measured and
predicted, with the ends of the ranks' logs or a traceback. With `--trace` it gets the profiler's
trace of a step instead, with `--probe` probes.parquet and hosts.json, and prints the least seconds
of each measured step. `--watch` prints what a compiled step recompiles and where it waits for the
GPU. The first GPU is looked up in the catalogue; `--gpu cpu` tries it all with a tiny model.
"""

import argparse
import dataclasses
import json
import math
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pynvml

from scaling.check.training import Machine, warm_server
from scaling.cluster.hardware import gpu_named
from scaling.launch.probing import probe
from scaling.layout.layout import refusals
from scaling.predict.cost.model import predict
from scaling.predict.read.points import points_of_layouts
from scaling.probe.plan import probe_plan
from scaling.record.files import write_rows
from scaling.record.row import Row
from scaling.study.load import load_clusters, load_models
from scaling.study.point import Point
from scaling.train.device import catalogued_gpu

USUAL = {
    "model": "tinyllama_1b", "zero_stage": 1, "precision": "bf16", "attention": "flash2",
    "seq_length": 2048, "micro_batch_size": 4, "gradient_accumulation_steps": 2,
}  # fmt: skip
FUSED = dict.fromkeys(("fused_norm", "fused_rope", "fused_mlp", "fused_cross_entropy"), True)
SMOKE: tuple[Mapping[str, Any], ...] = (  # of two steps
    {},
    {"engine": "torch"},
    {"zero_stage": 3},
    {"compile": True},
    {"precision": "fp8", "compile": True},
    {"zero_stage": 2, "optimizer_offload": "cpu"},
)
LAYOUTS: tuple[Mapping[str, Any], ...] = (
    *SMOKE,
    {},
    {"engine": "torch"},
    FUSED,
    {"engine": "torch", "compile": True},
    {"compile": True, "fused_cross_entropy": True},
    {"precision": "fp8", "compile": True},
    {"attention": "cudnn"},
    {"model": "llama3_3b", "optimizer_precision": "bf16", "micro_batch_size": 2},
    {"micro_batch_size": 16, "activation_checkpointing": "full"},
    {"zero_stage": 3},
    # 12 bytes a parameter: whether 80 GB hold it is a close call
    {"model": "llama2_7b", "optimizer_precision": "bf16", "micro_batch_size": 1,
     "activation_checkpointing": "full"},
)  # fmt: skip
SMOKE_STEPS, STEPS = (2, 2), (3, 6)  # of a warm-up, and measured
TIME_LIMIT_S, COMPILED_LIMIT_S = 120.0, 240.0  # of a point
PROBE_LIMIT_S = 60.0
LOG_LINES = 80
WATCHED = """
import os
os.environ["TORCH_LOGS"] = "recompiles,graph_breaks"
import torch
if torch.cuda.is_available():
    torch.cuda.set_sync_debug_mode("warn")
from scaling.train.__main__ import main
main()
"""


def gpu_here() -> str:
    """The catalogue's name of the first GPU, as NVML knows it: CUDA would take memory of it."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    name, held = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetMemoryInfo(handle)
    known = catalogued_gpu(name, held.total)
    if known is not None:
        return known
    sys.exit(f"the catalogue of GPUs has no {name} with {held.total} bytes")


def points(machine: Machine) -> list[Point]:
    """The points of these layouts on this machine, numbered."""
    models, made = load_models(), []
    for number, axes in enumerate(LAYOUTS):
        layout: dict[str, Any] = {**USUAL, **axes}
        model = layout.pop("model")
        if machine.gpu == "cpu":
            model, layout = "tiny", layout | {"seq_length": 32}
        warmup_steps, measured_steps = SMOKE_STEPS if number < len(SMOKE) else STEPS
        point = machine.point(
            layout, shape=models[model], warmup_steps=warmup_steps, measured_steps=measured_steps,
            time_limit_s=COMPILED_LIMIT_S if layout.get("compile") else TIME_LIMIT_S,
        )  # fmt: skip
        refused = list(refusals(point.shape, point.layout))
        assert not refused, refused
        peak = gpu_named(machine.gpu).peaks.get(point.layout.precision)
        made.append(
            dataclasses.replace(
                point, study="gpu", point_id=f"{number:02}", model=model, peak_flop_per_s=peak
            )
        )
    return made


def predictions(of: list[Point]) -> list[dict[str, float | None]]:
    """Predicted seconds of a step, with their interval, and bytes; nothing for a CPU."""
    if of[0].gpu == "cpu":
        return [{} for _ in of]
    found = predict(
        points_of_layouts(
            [point.layout for point in of],
            [point.shape for point in of],
            load_clusters(),
            models=[point.model for point in of],
            clusters=[point.cluster for point in of],
            gpus_per_node=[1.0] * len(of),
        )
    )
    names = ("step_time_s", "low", "high", "memory_bytes", "need_bytes", "fits_chance")
    columns = {f"predicted_{name}": getattr(found, name).tolist() for name in names}
    return [
        {
            name: value if math.isfinite(value) else None
            for name, value in zip(columns, row, strict=True)
        }
        for row in zip(*columns.values(), strict=True)
    ]


def measured(machine: Machine, point: Point) -> tuple[Row | None, str | None]:
    """The point's row and the ranks' last words, as why a column is null; or a traceback."""
    try:
        row = machine.measure(point.point_id, point)
    except Exception:  # whatever it is, the next layout is measured, and this one's file says why
        return None, traceback.format_exc()
    logs = sorted((machine.folder / point.point_id).rglob("*.log"))
    logs += machine.folder.glob(".host-*/*.log")  # of the fork server: why it starts no ranks
    lines = [path.read_text(errors="replace").splitlines()[-LOG_LINES:] for path in logs]
    return row, "\n".join(line for log in lines for line in log)


def measure_all(machine: Machine, folder: Path, first: int, ends: float) -> None:
    """Measure from this layout on, and write both files after each; earlier ones stay in them."""
    every = points(machine)
    found, kept = folder / "measured.jsonl", folder / "rows.parquet"
    lines: list[str] = []
    rows: list[Row] = []
    if first and found.exists():
        lines = found.read_text(encoding="utf-8").splitlines(keepends=True)
    if first and kept.exists():
        rows = [Row(**record) for record in pq.read_table(kept).to_pylist()]
    with warm_server(machine):
        for point, predicted in list(zip(every, predictions(every), strict=True))[first:]:
            if time.time() > ends:
                sys.stdout.write(f"no time is left: go on with --first {point.point_id}\n")
                return
            row, log = measured(machine, point)
            shown: dict[str, Any] = {
                "number": point.point_id,
                "model": point.model,
                "layout": point.layout.label,
            }
            shown |= {"outcome": row.outcome if row else "no row"} | predicted
            if row is not None:
                rows.append(row)
                write_rows(kept, rows)
                shown |= {
                    name: getattr(row, name)
                    for name in (
                        "step_time_s", "peak_memory_bytes", "library_memory_bytes",
                        "energy_j", "mean_power_w", "startup_s", "error_message",
                    )
                }  # fmt: skip
            sys.stdout.write(json.dumps(shown) + "\n")
            sys.stdout.flush()
            lines.append(json.dumps(shown | {"log": log}) + "\n")
            found.write_text("".join(lines), encoding="utf-8")


def trace(machine: Machine, folder: Path) -> None:
    """Keep the trace of a step of the usual layout."""
    usual = next(point for point in points(machine)[len(SMOKE) :])
    row = machine.measure("trace", dataclasses.replace(usual, keep_trace=True))
    for path in (machine.folder / "trace").rglob("*.trace.json.gz"):
        shutil.copy(path, folder)
        sys.stdout.write(f"{path.name}: {path.stat().st_size} bytes, {row.outcome}\n")


def probe_all(machine: Machine, folder: Path) -> None:
    """Probe GEMMs, copies and attention of the first layouts' sizes."""
    of = [points(machine)[number] for number in (0, 1, 12)]  # of both attention kernels
    plan = probe_plan(of, world_size=1, time_limit_s=PROBE_LIMIT_S)
    path = machine.folder / "probe.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(plan.to_json(), encoding="utf-8")
    rates = []
    for row in probe(path, folder / "probes.parquet", logs=machine.folder / "probe.logs"):
        known = {
            name: value for name, value in dataclasses.asdict(row).items() if value is not None
        }
        sys.stdout.write(json.dumps(known) + "\n")
        if row.kind == "gemm":
            rates.append(row.flop_per_s or 0.0)
    sys.stdout.write("".join(f"{line}\n" for line in floors(folder / "rows.parquet", max(rates))))


def floors(rows: Path, flop_per_s: float) -> list[str]:
    """Each measured step beside its least seconds: its products at this rate, in 16 bits."""
    found = []
    for row in pq.read_table(rows).to_pylist() if rows.exists() else []:
        if row["step_time_s"] is not None and row["precision"] != "fp8":
            tokens = row["global_batch_size"] * row["seq_length"]
            floor = row["matmul_flops_per_token"] * tokens / flop_per_s / row["world_size"]
            found.append(f"{row['point_id']}: {row['step_time_s']:.3f} s, at least {floor:.3f}")
    return found


def watch(machine: Machine) -> None:
    """Print what the compiler and CUDA say of a compiled step: recompilations, breaks, waits."""
    (number, *_) = [n for n, axes in enumerate(LAYOUTS) if axes.keys() == {"engine", "compile"}]
    command = [sys.executable, "-c", WATCHED]
    row = machine.measure("watched", points(machine)[number], rank_command=command)
    sys.stdout.write(f"{row.outcome} {row.error_message or ''}\n")
    for log in (machine.folder / "watched").rglob("rank*.log"):
        lines = dict.fromkeys(log.read_text(errors="replace").splitlines())
        words = ("recompil", "graph break", "synchroniz")
        told = [line for line in lines if any(word in line.lower() for word in words)]
        sys.stdout.write("".join(f"{line}\n" for line in told[:LOG_LINES]) or "nothing\n")


def main() -> None:
    """Measure, trace, probe or watch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", help="its name in the catalogue")
    parser.add_argument("--limit-s", type=float, default=330.0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first layout")
    for name in ("probe", "trace", "watch"):
        parser.add_argument(f"--{name}", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    ends = time.time() + asked.limit_s
    with tempfile.TemporaryDirectory(prefix="scaling-gpu-") as scratch:
        gpu = asked.gpu or gpu_here()
        machine = Machine(gpu=gpu, cluster=gpu, ranks=1, folder=Path(scratch))
        if asked.probe:
            probe_all(machine, asked.folder)
        elif asked.trace:
            trace(machine, asked.folder)
        elif asked.watch:
            watch(machine)
        else:
            measure_all(machine, asked.folder, asked.first, ends)


if __name__ == "__main__":
    main()
