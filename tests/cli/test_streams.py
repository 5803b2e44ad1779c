"""No traceback: a full or poor terminal, a folder that is gone, no name, no home, no memory."""

import os
import resource
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.processes import ended

MAIN = "from scaling.cli.verbs import main\nmain()\n"
GONE = f"import os, sys\nos.rmdir(os.getcwd())\n{MAIN}"
# the user id of a container that has no line for it in /etc/passwd
NAMELESS = f"""
import os, pwd
os.environ.pop("HOME", None)
pwd.getpwuid = pwd.getpwnam = {{}}.__getitem__
{MAIN}"""


def said(*words, code=MAIN, cwd=PROJECT, variables=(), **how):
    """The verb's end, of a Python that runs this code."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), **dict(variables)}
    return ended(sys.executable, "-c", code, *words, cwd=cwd, env=environment, **how)


def test_a_full_device_as_standard_output_is_one_sentence():
    with Path("/dev/full").open("w") as full:
        done = said("--version", capture_output=False, stdout=full, stderr=-1)
        both = said("--version", capture_output=False, stdout=full, stderr=full)
    assert done.returncode == both.returncode == 2
    assert done.stderr == "the output, or a file: No space left on device\n"


def test_a_terminal_of_few_letters_shows_a_plan():
    done = said("plan", "quickstart", "--no-write", variables={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "24 points" in done.stdout


def test_a_working_directory_that_is_gone_is_one_sentence(tmp_path):
    (tmp_path / "gone").mkdir()
    done = said("plan", "quickstart", code=GONE, cwd=tmp_path / "gone")
    assert done.returncode == 2
    assert done.stderr == "the working directory: No such file or directory\n"


def test_snakemake_is_given_a_name_for_a_user_without_one(monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):  # where getpass looks first
        monkeypatch.delenv(name, raising=False)
    asks = "import atexit, getpass\natexit.register(lambda: print(getpass.getuser()))\n"
    told = said("--version", code=asks + NAMELESS, check=True).stdout
    assert told.splitlines()[-1] == str(os.getuid())


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("plan", "quickstart", "--no-write"), 0, ""),
        (("report", "STUDY", "--no-tables"), 2, "STUDY/tables"),  # altair asks for the home
    ],
)
def test_a_user_without_a_name_and_a_home_is_answered(tmp_path, words, code, sentence):
    done = said(*(word.replace("STUDY", str(tmp_path)) for word in words), code=NAMELESS)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(sentence.replace("STUDY", str(tmp_path)))
    assert len(done.stderr.splitlines()) == bool(sentence)


@pytest.mark.parametrize(
    ("verb", "gb", "sentence"),
    [
        ("report", 8, "drawing charts reserves 68 GiB of address space"),
        ("report", 0.4, "drawing charts reserves 68 GiB of address space"),
        ("tabulate", 2, "making tables reserves 4 GiB of address space"),
        ("tabulate", 0.4, "making tables reserves 4 GiB of address space"),
    ],
)
def test_little_address_space_ends_in_one_sentence(tmp_path, verb, gb, sentence):
    most = int(gb * 10**9)
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (most, most))
    done = ended(sys.executable, "-m", "scaling", verb, tmp_path, preexec_fn=limit, cwd=PROJECT)
    assert done.returncode == 2
    assert done.stderr.startswith(sentence)
    assert len(done.stderr.splitlines()) == 1
