"""Overhead of Snakemake and the executor for 5,000 points, without Slurm and training.

    python -m benchmarks.dag [--points 5000]

Measures a dry run (goal: at most 20 s and 400 MB), and a run of empty points that the executor
starts in packs on this machine (goal: at most 20 ms per point). Prints wall time and the CPU time
of Snakemake itself, which is the load on a login node and does not depend on other processes.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

PROJECT = Path(__file__).parent.parent
# 5,000 is an exact product: 5 sequence lengths x 1000 batch sizes
AXES = {
    "model": "llama2_7b",
    "cluster": "a100-80gb-dgx",
    "world_size": 8,
    "precision": "bf16",
    "micro_batch_size": 1,
}
NOTHING = """
rule all:
    input:
        expand("out/{i}", i=range(POINTS)),


rule point:
    output:
        "out/{i}",
    resources:
        runtime=1,
    shell:
        "touch {output}"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=5000)
    points = parser.parse_args().points
    with tempfile.TemporaryDirectory(prefix="dag-") as folder:
        dry = _dry_run(Path(folder), points)
        print(
            f"dry run of {points} points     {dry.wall_s:6.1f} s ({dry.cpu_s:.1f} s of CPU)  "
            f"{dry.peak_bytes / 1e6:5.0f} MB"
        )
        few, many = _run(Path(folder) / "few", 100), _run(Path(folder) / "many", points)
        wall = 1000 * (many.wall_s - few.wall_s) / (points - 100)
        cpu = 1000 * (many.cpu_s - few.cpu_s) / (points - 100)
        print(
            f"run of {points} empty points   {many.wall_s:6.1f} s  {wall:.1f} ms a point "
            f"({cpu:.1f} ms of CPU)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a snakemake process used, without its jobs."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def _dry_run(folder: Path, points: int) -> Cost:
    """The cost of `snakemake --dry-run` for a study of `points` points."""
    for name in ("Snakefile", "workflow", "reports"):
        (folder / name).symlink_to(PROJECT / name)
    shutil.copytree(PROJECT / "config", folder / "config")
    batches = [8 * (n + 1) for n in range(points // 5)]
    study = {
        "title": "Many points",
        "kind": "strong",
        "max_points": points,
        "axes": {
            **AXES,
            "seq_length": [256, 512, 1024, 2048, 4096],
            "global_batch_size": batches,
            "zero_stage": 1,
        },
    }
    (folder / "config" / "studies" / "many.yaml").write_text(yaml.safe_dump(study))
    command = _snakemake("--profile", "config/profiles/slurm", "--dry-run", "--quiet", "all")
    return _timed([*command, "--config", "study=many"], folder, expected=points)


def _run(folder: Path, points: int) -> Cost:
    """The cost of a run of `points` empty points, in packs of a hundred, two at a time."""
    folder.mkdir()
    (folder / "Snakefile").write_text(NOTHING.replace("POINTS", str(points)))
    command = _snakemake(
        *("--executor", "submitit", "--submitit-cluster", "local", "--submitit-pack", "100"),
        *("--submitit-max-allocations", "2", "--jobs", "10000", "--nolock", "--quiet", "all"),
        *("--max-jobs-per-timespan", "10000/1s", "--seconds-between-status-checks", "1"),
        *("--scheduler", "greedy", "--default-resources", "mem=None", "disk=None"),
    )
    return _timed(command, folder)


def _snakemake(*options: str) -> list[str]:
    return [sys.executable, "-m", "snakemake", *options]


def _timed(command: list[str], folder: Path, expected: int | None = None) -> Cost:
    began = time.monotonic()
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        took = time.monotonic() - began
        said.seek(0)
        text = said.read()
    if status != 0:
        sys.exit(text)
    if expected is not None and not re.search(rf"measure +{expected}\b", text):
        print(f"(the dry run did not say that it would measure {expected} points)")
    return Cost(
        wall_s=took,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss * 1024,
    )


if __name__ == "__main__":
    main()
