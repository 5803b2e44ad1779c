"""A warm python is as a cold one, to those who start it."""

import os
import subprocess
import sys

import pytest

from tests.processes import is_running, until
from tests.warm import warm_python

pytestmark = pytest.mark.snakemake  # whose tests start it

SPEAKS = """
import os, sys
print(sys.argv, os.getcwd(), os.environ.get("WORD"), __name__, sys.stdin.read())
print("warned", file=sys.stderr)
sys.exit(sys.argv[-1] if len(sys.argv) > 2 else 7)
"""


def ran(python, folder, *words, **environment):
    return subprocess.run(
        [python, *words], cwd=folder, input="heard", capture_output=True, text=True, check=False,
        env=os.environ | {"WORD": "ü"} | environment,
    )  # fmt: skip


@pytest.mark.parametrize(
    "way", [["-c", SPEAKS], ["-m", "speaks"], ["speaks.py"]], ids=lambda w: w[0]
)
@pytest.mark.parametrize("words", [["one"], ["one", "a sentence"]], ids=len)
def test_it_has_the_words_folder_environment_and_files_of_its_caller(tmp_path, way, words):
    (tmp_path / "speaks.py").write_text(SPEAKS)
    warm, cold = (ran(python, tmp_path, *way, *words) for python in (warm_python(), sys.executable))
    assert "heard" in cold.stdout
    assert (warm.returncode, warm.stdout, warm.stderr) == (
        cold.returncode,
        cold.stdout,
        cold.stderr,
    )


def test_an_error_is_a_traceback_and_code_1(tmp_path):
    warm = ran(warm_python(), tmp_path, "-c", "1 / 0")
    assert warm.returncode == 1
    assert warm.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("module", "job", "warm"),
    [("speaks", "", True), ("speaks", "7", False), ("submitit.speaks", "", False)],
)
def test_what_a_scheduler_ends_by_its_processes_is_a_process_of_its_own(
    tmp_path, module, job, warm
):
    path = tmp_path / f"{module.replace('.', '/')}.py"
    path.parent.mkdir(exist_ok=True)
    (path.parent / "__init__.py").touch()
    path.write_text("import sys; print('duckdb' in sys.modules)")
    assert ran(warm_python(), tmp_path, "-m", module, SLURM_JOB_ID=job).stdout == f"{warm}\n"


WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def test_it_dies_with_its_caller_and_heeds_its_signals():
    for end in (subprocess.Popen.kill, subprocess.Popen.terminate):
        with subprocess.Popen(
            [warm_python(), "-c", WAITS], stdout=subprocess.PIPE, text=True
        ) as caller:
            pid = int(caller.stdout.readline())
            end(caller)
        assert caller.returncode != 0
        until("it ends", lambda pid=pid: not is_running(pid))
