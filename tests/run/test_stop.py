"""`scaling stop` on one machine: the snakemake and the point that run end, and no row is lost."""

import subprocess
import sys

import pytest

from tests.conftest import copy_project
from tests.processes import until
from tests.ran import scaling_warm

pytestmark = [pytest.mark.ranks, pytest.mark.snakemake]

STUDY = """\
title: long
kind: strong
axes: {model: tiny, cluster: local, world_size: 1, global_batch_size: 8, seq_length: 128,
       precision: fp32, micro_batch_size: 2, zero_stage: 1}
measure: {warmup_steps: 1, measured_steps: 10000, time_limit_s: 900}
"""


def test_a_stopped_study_leaves_nothing_running(tmp_path):
    root = copy_project(tmp_path)
    (root / "config" / "studies" / "long.yaml").write_text(STUDY)
    rows = root / "results" / "long" / "rows"
    with subprocess.Popen(
        [sys.executable, "-m", "scaling", "run", "long"], cwd=root, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as run:  # fmt: skip
        until("the point runs", lambda: [*rows.glob("*.running")] or run.poll() is not None)
        assert run.poll() is None
        stopped = scaling_warm(root, "stop", "long")
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
        assert (
            "ending 1 point(s) on this machine; the next run measures those without a row"
            in stopped.stdout
        )
        assert run.wait(timeout=300) != 0
    assert not list(rows.glob("*.running"))
    assert not list(rows.glob("*.parquet"))
    assert scaling_warm(root, "stop", "long").stdout == "Nothing of this study was running.\n"
