"""Paths of any kind reach the verbs as they are: no shell takes them apart, or runs them."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.conftest import copy_project
from tests.processes import ended

pytestmark = pytest.mark.snakemake

# of folders of a checkout, a study and an interpreter; leaves a file if a shell runs it
NAME = "it's größe; with space $(touch READ) 模型"


@pytest.fixture
def checkout(tmp_path):
    """A checkout, a study and an interpreter, each in a folder of that name."""
    folder = tmp_path / NAME
    folder.mkdir()
    root = copy_project(folder)
    (root / NAME).mkdir()
    (root / NAME / "own.yaml").write_text((root / "config/studies/zero_stages.yaml").read_text())
    (folder / "venv").symlink_to(Path(sys.executable).parent.parent)
    return root, f"{NAME}/own.yaml", folder / "venv/bin/python"


def snakemake(root, python, study, *options):
    command = [python, "-m", "snakemake", "--profile", "config/profiles/local", "--config"]
    ran = ended(*command, f"study={study}", *options, cwd=root)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    return said


def test_every_rule_quotes_what_it_is_given(checkout):
    root, study, python = checkout
    said = snakemake(root, python, study, "mode=measure", "--dry-run", "--printshellcmds")

    verbs = {}
    for line in said.splitlines():
        if " -m scaling " in line:
            words = shlex.split(line.partition("Shell command:")[2])
            assert words[:3] == [str(python), "-m", "scaling"]
            verbs[words[3]] = words
    assert {"probe", "measure", "calibrate", "predict", "tabulate", "report"} <= set(verbs)
    assert not list(root.rglob("READ"))


def test_a_study_in_a_folder_of_such_a_name_is_planned_and_predicted(checkout):
    root, study, python = checkout
    ended(python, "-m", "scaling", "plan", study, cwd=root, check=True)

    snakemake(root, python, study, "--", "results/own/predictions.parquet")

    assert (root / "results/own/predictions.parquet").exists()
    assert not list(root.rglob("READ"))
