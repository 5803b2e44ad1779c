"""Studies that really ran, shared by the tests that look at what they left."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests.conftest import copy_project


@dataclass(frozen=True)
class Ran:
    """A checkout in which a study was run, and what the command printed."""

    root: Path
    study: str
    said: str

    @property
    def results(self):
        return self.root / "results" / self.study

    def rows(self):
        return rows_of(self.results)


def rows_of(results):
    return [
        row
        for path in sorted((results / "rows").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]


def scaling(root, *words, timeout=900):
    """Run a verb in that checkout."""
    return subprocess.run(
        [sys.executable, "-m", "scaling", *words],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory):
    """The quickstart, from its YAML to its report, as a new user runs it."""
    root = copy_project(tmp_path_factory.mktemp("quickstart"))
    ran = scaling(root, "run", "quickstart")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    yield Ran(root, "quickstart", ran.stdout)
    shutil.rmtree(root)


SMALL = {
    "title": "Five points",
    "kind": "strong",
    "axes": {
        "model": "mini",
        "cluster": "local",
        "world_size": [1, 2],
        "global_batch_size": 4,
        "seq_length": 32,
        "precision": "fp32",
    },
    "layouts": [{"zero_stage": [1, 3]}, {"world_size": 1, "attention": "flash3"}],
    "measure": {"warmup_steps": 1, "time_limit_s": 90.0},
}


@pytest.fixture
def small(project):
    """A checkout with a study of five points, one of which asks for a kernel that is missing."""
    models = project / "config" / "models.yaml"
    mini = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_heads": 4,
        "ffn_hidden_size": 128,
        "vocab_size": 256,
        "source": "made for a test",
    }
    models.write_text(models.read_text() + yaml.safe_dump({"mini": mini}))
    (project / "config" / "studies" / "small.yaml").write_text(yaml.safe_dump(SMALL))
    return project
