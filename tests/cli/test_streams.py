"""A terminal that takes nothing, or few letters, and a folder that is gone end in no traceback."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import PROJECT


def said(*words, stdout=subprocess.PIPE, cwd=PROJECT, **environment):
    return subprocess.run(
        [sys.executable, "-m", "scaling", *words],
        stdout=stdout, stderr=subprocess.PIPE, cwd=cwd, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
    )  # fmt: skip


def test_a_full_device_as_standard_output_is_one_sentence():
    with Path("/dev/full").open("w") as full:
        done = said("--version", stdout=full)
    assert done.returncode == 2
    assert done.stderr.endswith("No space left on device\n")
    assert "Traceback" not in done.stderr


def test_a_terminal_of_few_letters_shows_a_plan():
    done = said("plan", "quickstart", "--no-write", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "24 points" in done.stdout


def test_a_working_directory_that_is_gone_is_one_sentence(tmp_path):
    code = "import os, sys; os.rmdir(os.getcwd()); from scaling.cli.verbs import main; main()"
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "quickstart"], cwd=tmp_path / "gone", text=True,
        capture_output=True, check=False, env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "the working directory, or a file: No such file or directory\n"
