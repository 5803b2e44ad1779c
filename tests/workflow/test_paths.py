"""Paths of any kind reach the verbs as they are: no shell takes them apart, or runs them."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import copy_project

pytestmark = pytest.mark.snakemake

# folders of a checkout, a study and an interpreter; each would leave a file if a shell ran it
NAMES = ["with space $(touch READ)", "größe; it's 模型"]


@pytest.fixture
def checkout(tmp_path, request):
    """A checkout, a study and an interpreter, each in a folder of such a name."""
    folder = tmp_path / request.param
    folder.mkdir()
    root = copy_project(folder)
    (root / request.param).mkdir()
    (root / request.param / "own.yaml").write_text(
        (root / "config/studies/zero_stages.yaml").read_text()
    )
    (folder / "venv").symlink_to(Path(sys.executable).parent.parent)
    return root, f"{request.param}/own.yaml", folder / "venv/bin/python"


def snakemake(root, python, study, *options):
    command = [python, "-m", "snakemake", "--profile", "config/profiles/local", "--config"]
    ran = subprocess.run(
        [*command, f"study={study}", *options], cwd=root, capture_output=True, text=True
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    return said


@pytest.mark.parametrize("checkout", NAMES, indirect=True)
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


@pytest.mark.parametrize("checkout", ["a $(touch READ) ü"], indirect=True)
def test_a_study_in_a_folder_of_such_a_name_is_planned_and_predicted(checkout):
    root, study, python = checkout
    subprocess.run([python, "-m", "scaling", "plan", study], cwd=root, check=True)

    snakemake(root, python, study, "--", "results/own/predictions.parquet")

    assert (root / "results/own/predictions.parquet").exists()
    assert not list(root.rglob("READ"))
