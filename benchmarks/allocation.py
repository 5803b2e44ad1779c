"""What packing saves: N small points in one allocation compared with one job per point.

    python -m benchmarks.allocation [--points 6] [--steps 50] [--ranks 2] [--forked-only]

Runs real DeepSpeed ranks on the CPU with a test Slurm, in three ways: a pack whose ranks are forked
from a process that has imported torch; a pack whose ranks start from scratch; one job per point.
Prints the wall time of the study, the share of the allocated seconds (from accounting) spent in
training steps, and the seconds from the end of one point's ranks to the first step of the next.
"""

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from tests.conftest import MODELS
from tests.slurm.lab import Lab

PROJECT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to run the same points."""

    name: str
    pack: int
    hosts: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=6)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2, help="of each point")
    parser.add_argument("--forked-only", action="store_true", help="the first way alone")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the cluster ends too
    ways = (
        Way(name="packed, forked ranks", pack=options.points, hosts=True),
        Way(name="packed, ranks from nothing", pack=options.points, hosts=False),
        Way(name="one job per point", pack=1, hosts=False),
    )
    with Lab.running() as lab, tempfile.TemporaryDirectory(prefix="alloc-") as folder:
        print(f"{'':28}  wall s  in steps  start-up s  end to next first step s")
        for number, way in enumerate(ways[:1] if options.forked_only else ways):
            _measure(lab, Path(folder) / f"way{number}", way, options)


def _measure(lab: Lab, root: Path, way: Way, options: argparse.Namespace) -> None:
    _prepare(root, options)
    command = [
        *(sys.executable, "-m", "snakemake", "--profile", "config/profiles/slurm"),
        *("--submitit-pack", str(way.pack), "--submitit-keep-folders"),
        *("--submitit-max-allocations", "1"),  # the machine has few cores: no two points at once
        *("--seconds-between-status-checks", "1", "--latency-wait", "5", "--quiet", "rules"),
        *("--until", "measure"),
        *("--config", "study=packs"),
    ]
    environment = {**lab.environment, "SCALING_HOSTS": "1" if way.hosts else "0"}
    began = time.monotonic()
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    wall = time.monotonic() - began
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    rows = {
        path.stem: pq.read_table(path).to_pylist()[0] for path in root.glob("results/*/rows/*.p*")
    }
    failed = {name: row["error_message"] for name, row in rows.items() if row["outcome"] != "ok"}
    if failed:
        sys.exit(f"points failed: {failed}")
    steps = 0.0
    jobs = []
    gaps = []
    for pack in root.glob(".snakemake/submitit/*/*/pack.json"):
        items = [item["name"].split()[1] for item in json.loads(pack.read_text())["items"]]
        ends = [
            json.loads((pack.parent / f"{n}.settled.json").read_text()) for n in range(len(items))
        ]
        jobs += [log.name.split("_")[0] for log in pack.parents[1].glob("*_0_log.out")]
        for number, (name, end) in enumerate(zip(items, ends, strict=True)):
            row = rows[name]
            steps += sum(row["step_times_s"])
            if number:
                # what a launcher does after its ranks have ended lasts equally long in both
                first_step = end["ended"] - row["duration_s"] + row["startup_s"]
                gaps.append(first_step - ends[number - 1]["ended"])
    time.sleep(3)  # accounting lags behind
    lines = lab.ask("sacct", "-X", "-n", "-P", "--format=ElapsedRaw", f"--jobs={','.join(jobs)}")
    allocated = sum(map(float, lines.split()))
    startup = statistics.median(row["startup_s"] for row in rows.values())
    between = f"median {statistics.median(gaps):.1f}, largest {max(gaps):.1f}" if gaps else "-"
    print(
        f"{way.name:28}  {wall:6.1f}  {steps / allocated:8.1%}  {startup:10.1f}  {between}",
        flush=True,
    )


def _prepare(root: Path, options: argparse.Namespace) -> None:
    root.mkdir()
    for name in ("workflow", "config", "reports"):
        shutil.copytree(PROJECT / name, root / name)
    shutil.copy(PROJECT / "Snakefile", root)
    cluster = {
        "gpu": "cpu",
        "gpus_per_node": 2,
        "nodes": 4,
        "slurm": {"account": "lab"},
        "source": "made for a benchmark",
    }
    study = {
        "title": "Small points",
        "kind": "strong",
        "axes": {
            "model": "mini",
            "cluster": "lab",
            "world_size": options.ranks,
            "global_batch_size": 8,
            "seq_length": [32 * (n + 1) for n in range(options.points)],
            "precision": "fp32",
            "attention": "math",
            "micro_batch_size": 2,
            "zero_stage": 1,
        },
        "layouts": [{}],
        "measure": {"warmup_steps": 2, "measured_steps": options.steps, "time_limit_s": 120},
    }
    (root / "config/models.yaml").write_text(yaml.safe_dump(MODELS))
    (root / "config/clusters.yaml").write_text(yaml.safe_dump({"lab": cluster}))
    (root / "config/studies/packs.yaml").write_text(yaml.safe_dump(study))


if __name__ == "__main__":
    main()
