"""What `scaling run` makes of options and signals; whole runs are in tests/workflow."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from scaling.errors import InputError
from scaling.run import snakemake, stop
from scaling.run.progress import Progress


@pytest.mark.parametrize("options", [["--profile", "mine"], ["--profile=mine"]])
def test_a_profile_that_is_named_either_way_takes_the_place_of_our_own(options):
    command = snakemake._command(Path("s.yaml"), options, {})

    assert [word for word in command if "profile" in word] == [options[0]]


class Impatient:
    """Looks once, and tells this process to end while it does."""

    def look(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return Progress(total=1, done=0, running=1, seconds_left=None)


def test_sigterm_is_handed_on_and_the_code_is_that_of_what_it_came_to(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    script = f"trap 'exit 5' TERM; touch {tmp_path}/ready; while true; do sleep 0.05; done"
    child = subprocess.Popen(["bash", "-c", script])
    while not (tmp_path / "ready").exists():
        time.sleep(0.02)

    code, told_to_end = snakemake._wait(child, Impatient(), Console(quiet=True), time.monotonic())

    assert (code, told_to_end) == (5, True)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_run_of_a_study_is_told_of_the_first_and_one_of_another_study_is_not(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    program = "import time; time.sleep(60)  # snakemake"
    words = [sys.executable, "-c", program, "--config", "study=config/studies/mine.yaml"]
    with subprocess.Popen(words) as first:
        with pytest.raises(InputError, match=rf"^mine: runs already, as process {first.pid} of"):
            stop.refuse_second_run("mine")
        stop.refuse_second_run("another")
        first.kill()
