"""The tutorial's commands on a new Slurm whose jobs get 512 MB per CPU if they ask for none."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.processes import ended
from tests.ran import rows_of
from tests.slurm.lab import Lab

pytestmark = [pytest.mark.ranks, pytest.mark.slurm]


@pytest.fixture
def small_memory(lab):
    """A second cluster, without GPUs."""
    port = str(8000 + (os.getpid() + 40) % 80 * 150)
    with Lab.running(GPUS="0", PORT_BASE=port, EXTRA_CONF="DefMemPerCPU=512") as cluster:
        yield cluster


def test_the_tutorials_commands_run_where_jobs_get_little_memory(small_memory, tmp_path):
    text = (PROJECT / "docs/tutorial.md").read_text()
    steps = dict(re.findall(r"^    (scaling .*?) +# (\d)\.", text, re.M))
    scaling = shutil.which("scaling", path=f"{PROJECT}/.venv/bin") or shutil.which("scaling")
    assert scaling is not None
    path = f"{Path(scaling).parent}:{os.environ['PATH']}"
    script = "\n".join(["set -e", *(step for step, number in steps.items() if number in "345")])
    environment = {**small_memory.environment, "PATH": path}
    how = {"cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL, "timeout": 900}
    done = ended("bash", "-c", script, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows_of(tmp_path / "my-sweeps/results/first")
    assert {row["outcome"] for row in found} == {"ok"}, [row["error_message"] for row in found]
    assert {row["world_size"] for row in found} == {1, 2, 4}
    assert done.stdout.splitlines()[-1] == "The report: results/first/report.html"
