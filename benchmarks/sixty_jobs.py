"""Seconds of 60 trivial jobs on a real Slurm, by this executor and by Snakemake's own for Slurm.

    python -m benchmarks.sixty_jobs --other FOLDER [--jobs 60]

FOLDER holds the other one, which this project does not depend on: `pip install --no-deps --target
FOLDER snakemake-executor-plugin-slurm snakemake-executor-plugin-slurm-jobstep throttler pandas
python-dateutil pytz six`. Both run one after the other on the cluster of
tests/slurm, which needs root and Debian's packages of Slurm.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.processes import write_program
from tests.slurm.lab import Lab

SNAKEFILE = """\
rule all:
    input: expand("out/{n}", n=range(%d))

rule job:
    output: "out/{n}"
    resources: runtime=2, mem_mb=100, slurm_account="lab", slurm_partition="main"
    shell: "touch {output}"
"""
OURS = ("--executor", "submitit", "--submitit-pack", "20", "--nolock")
OTHER = ("--executor", "slurm")


def seconds(lab: Lab, jobs: int, options: tuple[str, ...], path: str) -> float:
    """Seconds of one run in a folder of its own; ends the program if it fails."""
    with tempfile.TemporaryDirectory(prefix="sixty-") as folder:
        Path(folder, "Snakefile").write_text(SNAKEFILE % jobs)
        # the other one drops SLURM_CONF inside a job, where this cluster is found by nothing else
        conf, srun = lab.environment["SLURM_CONF"], shutil.which("srun")
        Path(folder, "bin").mkdir()
        write_program(
            Path(folder, "bin", "srun"), f'#!/bin/sh\nSLURM_CONF={conf} exec {srun} "$@"\n'
        )
        environment = {
            **lab.environment, "PYTHONPATH": path, "PATH": f"{folder}/bin:{os.environ['PATH']}",
        }  # fmt: skip
        command = [sys.executable, "-m", "snakemake", "--jobs", "1000", "--latency-wait", "5"]
        command += ["--max-jobs-per-timespan", "1000/1s", "--default-resources", "disk=None"]
        began = time.monotonic()
        done = subprocess.run(
            [*command, *options], cwd=folder, env=environment,
            capture_output=True, text=True,
        )  # fmt: skip
        took = time.monotonic() - began
        made = len(list(Path(folder, "out").glob("*")))
        if done.returncode or made < jobs:
            sys.exit(f"{' '.join(options)}: {made} of {jobs} jobs, {done.stdout}{done.stderr}")
        return took


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="benchmarks.sixty_jobs")
    parser.add_argument("--other", default="", help="folder with the other executor")
    parser.add_argument("--jobs", type=int, default=60)
    given = parser.parse_args()
    runs = {"submitit": OURS} | ({"slurm": OTHER} if given.other else {})
    with Lab.running() as lab:
        for name, options in runs.items():
            before = lab.submissions()
            took = seconds(lab, given.jobs, options, given.other)
            sent = len(lab.submissions() - before)
            print(f"{name}: {given.jobs} jobs in {took:.1f} s, {sent} Slurm jobs")


if __name__ == "__main__":
    main()
