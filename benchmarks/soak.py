"""Soak: run 300 trivial points through the executor on a test Slurm, 50 allocations at a time.

    python -m benchmarks.soak [--points 300] [--in-flight 50] [--pack 1] [--array 25]

Prints how often each point ran, the calls to Slurm, and the largest memory and number of
processes on the login node (snakemake and its children; allocations run elsewhere on a real
cluster and are not counted).
"""

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.slurm.lab import Lab, Study


def main() -> None:
    options = _options()
    with Lab.running() as lab, tempfile.TemporaryDirectory(prefix="soak-") as folder:
        _soak(Study(lab, Path(folder) / "study"), options)


def _soak(study: Study, options: argparse.Namespace) -> None:
    names = [f"p{number:04d}" for number in range(options.points)]
    study.points(**{name: {"seconds": options.seconds} for name in names})
    array = ["--submitit-array", str(options.array)] if options.array else []
    began = time.monotonic()
    run = study.start(
        *("--submitit-max-allocations", str(options.in_flight)),
        *("--submitit-pack", str(options.pack), *array),
        *("--max-jobs-per-timespan", "10000/1s", "--seconds-between-status-checks", "5"),
    )
    memory, processes, in_flight = 0, 0, 0
    while run.poll() is None:
        seen = _footprint(run.pid)
        memory, processes = max(memory, seen[0]), max(processes, seen[1])
        in_flight = max(in_flight, len(study.lab.queue()))
        time.sleep(1)
    took = time.monotonic() - began
    starts = study.starts()
    calls = [line for line in study.said.splitlines() if line.startswith("submitit: ")]
    print(f"exit code              {run.returncode}")
    print(f"points                 {len(names)}, each started {dict(Counter(starts.values()))}")
    print(f"lost                   {sorted(set(names) - study.done())}")
    print(f"doubled                {sorted(n for n, count in starts.items() if count > 1)}")
    print(f"Slurm jobs             {len(study.jobs())}, at most {in_flight} in flight")
    print(f"wall time              {took:.0f} s")
    print(f"largest memory         {memory / 2**20:.0f} MiB in {processes} processes")
    print(f"asked of Slurm         {calls[-1] if calls else 'unknown'}")


def _footprint(pid: int) -> tuple[int, int]:
    """Memory in bytes and number of processes of snakemake and its children; 0 if it has ended."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
        return sum(process.memory_info().rss for process in family), len(family)
    except psutil.NoSuchProcess:
        return 0, 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=300)
    parser.add_argument("--in-flight", type=int, default=50)
    parser.add_argument("--pack", type=int, default=1)
    parser.add_argument("--array", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=2.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
