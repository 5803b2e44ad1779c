"""`scaling run` handles options and signals; whole runs are in tests/workflow."""

import os
import pwd
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from rich.console import Console
from snakemake.cli import parse_config

from scaling.errors import InputError
from scaling.record.running import Runner
from scaling.run import snakemake, stop
from tests.processes import largest_file, until


@pytest.mark.parametrize("options", [["--config", "mode=predict"], ["-C", "mode=predict"]])
def test_a_config_that_would_be_lost_beside_ours_is_refused(options):
    with pytest.raises(InputError, match=rf"^{options[0]}: names the study already; give --mode"):
        snakemake.run_study("quickstart", options)


def run_child(script, watcher):
    """The exit code of a shell that does this as snakemake, and the signal that told it to end."""
    command, quiet = ["bash", "-c", script], Console(quiet=True)
    with Path(os.devnull).open("w") as sink:
        return snakemake._run(command, os.environ, sink, watcher, quiet, time.monotonic())


WAITS = "while true; do sleep 0.05; done"


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT])
def number(request):
    """A signal that this process heeds: a test run in the background of a shell ignores Ctrl-C."""
    before = signal.signal(request.param, lambda *_: None)
    yield request.param
    signal.signal(request.param, before)


def test_a_signal_that_comes_while_snakemake_starts_is_handed_on_too(monkeypatch, number):
    popen = subprocess.Popen

    def signalled(*words, **how):
        started = popen(*words, **how)
        os.kill(os.getpid(), number)
        return started

    monkeypatch.setattr(subprocess, "Popen", signalled)
    # no loop of the shell, which goes on if what it waits for is not ended by Ctrl-C too
    assert run_child("exec sleep 600", None) == (-number, number)


@pytest.mark.parametrize("named", [True, False])
def test_a_lock_of_another_user_is_never_taken_for_stale(tmp_path, monkeypatch, named):
    # whose processes do not show where they work
    lock = tmp_path / ".snakemake/locks/0.output.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    owner = lock.owner() if named else f"user {os.getuid()}"
    if not named:
        monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.setattr(os, "getuid", lambda: 12345)

    with pytest.raises(InputError, match=f"locked by a snakemake of {owner}: wait for it"):
        stop.clear_stale_lock(tmp_path, Console(quiet=True))

    assert lock.exists()


def test_a_point_that_another_user_measures_here_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # not where a developer's own study may run, which would be stopped
    runner = Runner(pid=os.getpid(), host="here", since=0.0)
    monkeypatch.setattr(stop, "runners_here", lambda rows: [runner])
    monkeypatch.setattr(stop, "_stop_allocations", lambda prefix, cluster, say: True)
    monkeypatch.setattr(os, "getuid", lambda: 12345)

    said: list[str] = []
    ended = stop.stop_study("quickstart", Path("results"), "slurm", said.append)

    (sentence,) = said
    assert sentence.startswith(f"process {os.getpid()} measures a point for ")
    assert not ended


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ("config/studies/mine.yaml", "mine"),
        ("mine", "mine"),
        ("v1.2", "v1.2"),
        (' "a #b/mine.yaml" ', "mine"),
    ],
)
def test_a_second_run_of_one_study_is_refused(stated, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("snakemake").write_text("import time; time.sleep(60)")
    words = [sys.executable, "snakemake", "--config", f"study={stated}"]
    with subprocess.Popen(words) as first:
        # a process that has just begun has no command yet
        until("its command is known", psutil.Process(first.pid).cmdline)
        with pytest.raises(InputError, match=rf"^{name}: runs already, as process {first.pid} of"):
            stop.refuse_second_run(name)
        by_path = re.escape(f"`scaling stop '{tmp_path}/a b/{name}.yaml'` ends it")
        with pytest.raises(InputError, match=by_path):
            stop.refuse_second_run(f"{tmp_path}/a b/{name}.yaml")
        stop.refuse_second_run("v1")
        first.kill()


@pytest.mark.parametrize(
    "folder", ["a #b", "k: v", "[x]", "1e3", "größe", 'say "hi"', "back\\slash"]
)
def test_the_path_of_a_study_reaches_snakemake_as_it_is(folder):
    path = Path(folder, "mine.yaml")
    overrides = {"mode": None, "cluster": "007"}
    *_, study, cluster = snakemake._command(path, [], overrides)
    assert parse_config([study, cluster]) == {"study": str(path), "cluster": "007"}


def test_who_reads_the_log_of_a_run_is_no_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = Path("logs/quickstart/snakemake.log")
    log.parent.mkdir(parents=True)
    log.touch()
    reader = subprocess.Popen(["tail", "-f", str(log)])
    try:
        stop.refuse_second_run("quickstart")
        said: list[str] = []
        ended = stop.stop_study("quickstart", Path("results"), "slurm", said.append)
        assert (said, ended, reader.poll()) == ([], True, None)
    finally:
        reader.kill()
        reader.wait()


@pytest.fixture
def run_one(config, write_study, monkeypatch):
    """Run a study with a shell's script as its snakemake."""
    monkeypatch.chdir(config.parent)
    write_study("one", mode="predict")

    def run(script, *options, **how):
        monkeypatch.setattr(snakemake, "_command", lambda *_: ["bash", "-c", script])
        return snakemake.run_study("one", [*options], **how)

    return run


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("echo Error: no such profile; exit 1", 1, "Error: no such profile snakemake ended with "),
        ("kill -9 $$", 128 + 9, "snakemake was ended by signal 9: nothing to measure.* continues."),
        ("echo 'Will exit after finishing currently running jobs (s).'; exit 1", 1, "Stopped: "),
        ("true", 0, "Finished in (?!.*report)"),  # as with --until or --unlock
    ],
)
def test_how_snakemake_ended_is_said_by_the_log_of_this_run(run_one, capsys, script, code, said):
    log = Path("logs/one/snakemake.log")
    log.parent.mkdir(parents=True)
    log.write_text("3 of 3 steps (100%) done\n")

    assert run_one(script) == code

    assert re.match(said, " ".join(capsys.readouterr().out.split()))


def test_a_failure_shows_the_last_words_of_each_job_that_failed(tmp_path, capsys):
    job, log = tmp_path / "p1.log", tmp_path / "snakemake.log"
    job.write_text("{numbers}\np1: no room for a [row]\n")
    failed = f"Error in rule measure:\n    log: {job} (check log file(s) for error details)\n"
    (tmp_path / "p3.log").touch()
    said = (
        f"    log: {tmp_path}/p2.log\n{failed}{failed}{failed.replace('p1', 'p3')}WorkflowError:\n"
    )

    snakemake._print_failure(Console(), 1, log, said)

    first, second, third = capsys.readouterr().out.splitlines()[:3]
    assert first == f"{job}: p1: no room for a [row]"
    assert second == f"{tmp_path}/p3.log: is empty, as when a job is killed"
    assert third.startswith("snakemake ended with exit code 1; when that is mended, the same")


@pytest.mark.parametrize("code", [0, 1])
def test_a_command_is_run_once_at_the_end_with_the_counts(run_one, code):
    told = "echo $SCALING_STUDY $SCALING_EXIT_CODE $SCALING_OK $SCALING_OOM $SCALING_LEFT >> told"

    run_one(f"exit {code}", notify=told)
    run_one(f"exit {code}", "-n", notify=told)  # is no run

    assert Path("told").read_text() == f"one {code} 0 0 0\n"


@pytest.mark.parametrize(("script", "code"), [("exit 1", 130), ("exit 0", 0), ("kill -9 $$", 130)])
def test_a_run_that_is_told_to_end_ends_by_that_signal(run_one, script, code):
    before = signal.signal(signal.SIGINT, lambda *_: None)
    assert run_one(f"trap '{script}' INT; kill -INT $PPID; {WAITS}") == code
    signal.signal(signal.SIGINT, before)


def test_of_two_runs_started_in_one_instant_one_is_told_of_the_other(run_one, monkeypatch):
    at_work = iter([[], [SimpleNamespace(pid=7)]])
    monkeypatch.setattr(stop, "_snakemakes_of", lambda name: next(at_work))

    with pytest.raises(InputError, match=r"^one: runs already, as process 7 of this machine"):
        run_one("false")  # the folder is locked


def test_a_lock_that_a_killed_snakemake_left_is_removed(tmp_path):
    lock = tmp_path / ".snakemake" / "locks" / "0.output.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()

    stop.clear_stale_lock(tmp_path, Console(quiet=True))

    assert not lock.exists()


def test_on_a_full_disk_snakemake_is_not_started(run_one, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)

    with (
        largest_file(500_000),
        pytest.raises(InputError, match=r"snakemake\.log: cannot be written: File"),
    ):
        run_one("true")


FILLS_THE_DISK = """
import os, resource
hard = resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE)[1]
resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (500_000, hard))
raise SystemError("no words of snakemake's own")
"""


def test_a_disk_that_fills_while_snakemake_runs_is_told_in_a_sentence(run_one, capsys):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    try:
        with pytest.raises(InputError, match=r"snakemake\.log: cannot be written: File"):
            run_one(f"exec {shlex.quote(sys.executable)} -c {shlex.quote(FILLS_THE_DISK)}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert "Traceback" not in capsys.readouterr().out
