"""Stopping for good: what a dead Snakemake has sent is cancelled, and nothing of other files."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from snakemake_executor_plugin_submitit import ownership
from snakemake_executor_plugin_submitit import stop as stopping
from snakemake_executor_plugin_submitit.records import Records

from tests.executor.conftest import wanted_job
from tests.processes import write_program


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """The folder of Snakemake's start. An owner without a heartbeat is given up at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ownership, "SILENCE_S", 0.5)


@pytest.fixture
def sent(run):
    """An allocation of a job that makes results/one/a, by a Snakemake that is dead since."""
    run().submit([wanted_job("one/a", output="results/one/a")])


def stop(cluster, prefix="results/one/"):
    """Its output, and whether nothing runs any more."""
    said = []
    return said, stopping.stop(Records(), cluster, prefix, said.append)


@pytest.mark.usefixtures("sent")
def test_what_makes_other_files_runs_on(cluster):
    assert stop(cluster, "results/two/") == ([], True)
    assert cluster.cancelled == []


@pytest.mark.usefixtures("sent")
def test_a_scheduler_that_does_not_answer_has_ended_nothing(cluster):
    cluster.answers = False
    sentences, ended = stop(cluster)
    assert not ended
    assert "give the same command again" in sentences[0]


@pytest.mark.usefixtures("sent")
def test_a_held_job_of_which_all_has_finished_is_cancelled(cluster):
    cluster.finishes()
    cluster.shows("PENDING", "launch failed requeued held")
    assert stop(cluster)[1]
    assert cluster.cancelled == ["100"]


@pytest.mark.usefixtures("sent")
def test_a_cancellation_that_the_scheduler_did_not_take_is_not_claimed(cluster, monkeypatch):
    monkeypatch.setattr(cluster, "cancel", lambda _: False)
    sentences, ended = stop(cluster)
    assert not ended
    assert sentences[-1] == "the scheduler does not answer: give the same command again"


@pytest.mark.usefixtures("sent")
def test_what_another_user_runs_or_has_left_is_named_and_left_to_them(
    cluster, tmp_path, monkeypatch
):
    path = claim(tmp_path, os.getpid(), began="7", uid=2000)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    who = f"snakemake (pid {os.getpid()} of user 2000 on {socket.gethostname()})"
    looks = f"looking for 0.5 s whether {who} still lives"
    there = f"{who} makes these files: have user 2000 stop it there"
    with beating(path):
        assert stop(cluster) == ([looks.replace("0.5", "300"), there], False)

    monkeypatch.setattr(cluster, "left_in", lambda where, uid: ["7"] if uid == 2000 else [])
    left = (
        "job 7: sent from here by user 2000, whose snakemake is dead: only user 2000 or an "
        "administrator can cancel it"
    )
    assert stop(cluster) == ([looks, left], False)
    assert cluster.cancelled == []

    monkeypatch.setattr(cluster, "left_in", lambda where, uid: [])
    assert stop(cluster) == ([looks], True)
    assert not path.exists()


def claim(tmp_path, pid, **facts):
    path = tmp_path / ownership.CLAIMS / "other.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {"outputs": ["results/one/a"], "uid": os.getuid(), "host": socket.gethostname()}
    path.write_text(json.dumps(known | {"pid": pid, "began": ownership.began(pid)} | facts))
    return path


@contextlib.contextmanager
def beating(path):
    """An owner that lives elsewhere shows it, even if it gets no core for a while."""
    ended, silence_s = threading.Event(), ownership.SILENCE_S
    ownership.SILENCE_S = 300.0

    def beat():
        while not ended.wait(0.1):
            os.utime(path, (0, path.stat().st_mtime + 1))

    thread = threading.Thread(target=beat)
    thread.start()
    yield
    ended.set()
    thread.join()
    ownership.SILENCE_S = silence_s


@pytest.mark.usefixtures("sent")
def test_a_snakemake_that_lives_on_another_host_is_to_be_stopped_there(cluster, tmp_path):
    with beating(claim(tmp_path, 1, host="elsewhere", began="7")):
        sentences, ended = stop(cluster)
    assert not ended
    assert sentences[1:] == ["snakemake (pid 1 on elsewhere) makes these files: stop it there"]
    assert cluster.cancelled == []  # it would send them again


@pytest.fixture
def owner(tmp_path):
    """Starts an owner on this host that does this when it is interrupted."""
    started = []

    def start(heeds):
        program = "import pathlib, signal, sys, time\n"
        program += "def end(*_):\n    pathlib.Path(sys.argv[1]).unlink()\n    sys.exit()\n"
        program += f"signal.signal(signal.SIGINT, {heeds})\n"
        program += "print('ready', flush=True)\ntime.sleep(600)\n"
        path = tmp_path / ownership.CLAIMS / "other.json"
        process = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE)
        started.append(process)
        process.stdout.readline()
        claim(tmp_path, process.pid)
        return process, path

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("prefix", ["results/one/", "results/two/"])
def test_the_owner_on_this_host_is_interrupted_where_it_makes_these_files(cluster, owner, prefix):
    process, path = owner("end")
    assert stop(cluster, prefix)[1]
    assert path.exists() == (prefix == "results/two/")
    if path.exists():
        assert process.poll() is None


def test_an_owner_that_ignores_interrupts_is_told_at_once_to_send_nothing(
    cluster, owner, monkeypatch
):
    monkeypatch.setattr(stopping, "HEED_S", 3600.0)  # which is not waited for
    process, _ = owner("signal.SIG_IGN")  # as a job that a script has put into the background
    sentences, ended = stop(cluster)
    assert ended
    assert sentences[0].startswith(f"telling snakemake (pid {process.pid}")
    assert process.wait() == -signal.SIGTERM


def test_the_command_says_what_it_did_and_exits_with_it(tmp_path, monkeypatch, capsys):
    for name in ("squeue", "scancel"):
        write_program(tmp_path / name, "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert stopping.main(["results/one/"]) == 0
    assert capsys.readouterr().out == ""
    assert stopping.main(["results/one/", "--cluster", "made_up"]) == 2
    assert capsys.readouterr().err == "made_up: allowed: slurm\n"
