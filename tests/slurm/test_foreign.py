"""A workflow that knows nothing of this executor gets what it asks for."""

import signal
import sys
from pathlib import Path

import pytest
from snakemake.common.tests import TestWorkflowsLocalStorageBase
from snakemake.settings.types import ResourceSettings
from snakemake_executor_plugin_submitit.settings import ExecutorSettings

from tests.slurm.lab import Study

pytestmark = pytest.mark.slurm
SITE = ('slurm_account="lab"', "runtime=5", "mem=None", "disk=None")


def test_every_resource_and_kind_of_rule_of_a_workflow_is_heeded(lab, tmp_path):
    lab.start()
    study = Study(tmp_path / "study", Path(__file__).with_name("foreign.smk"))
    run = study.snakemake(
        sys.executable,
        *("--jobs", "20", "--latency-wait", "5", "--default-resources", *SITE),
        environment=lab.environment,
    )
    assert run.wait(timeout=500) == 0, study.said

    def left(name):
        return (study.folder / f"{name}.txt").read_text().split()

    assert left("threads") == ["2", "2", "200"]
    assert left("gpu") == ["0,1"]
    assert len(set(left("tasks"))) == 3
    assert left("shadowed") == ["shadowed"]
    assert not (study.folder / "litter").exists()
    assert left("run") == ["python"]
    assert left("kept") == ["kept"]
    assert not (study.folder / "passing.txt").exists()
    assert left("grown") == ["100", "200"]
    assert len(set(left("group"))) == 1  # all members in one allocation
    assert left("chosen") == ["a", "b"]


class TestSnakemakesOwnWorkflows(TestWorkflowsLocalStorageBase):
    """Those by which Snakemake tests its executors."""

    __test__ = True

    @pytest.fixture(autouse=True)
    def _on_the_lab(self, lab, monkeypatch):
        lab.start()
        for name, value in lab.environment.items():
            monkeypatch.setenv(name, value)
        before = signal.getsignal(signal.SIGTERM)
        yield
        signal.signal(signal.SIGTERM, before)

    def get_executor(self):
        return "submitit"

    def get_executor_settings(self):
        return ExecutorSettings()

    def get_resource_settings(self):
        return ResourceSettings(default_resources={"slurm_account": "lab", "runtime": 5})
