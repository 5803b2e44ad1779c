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
from snakemake_executor_plugin_submitit.schedulers.slurm.words import state_of

from tests.executor.conftest import wanted_jobs
from tests.processes import write_program


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """The folder of Snakemake's start. An owner without a heartbeat is given up at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ownership, "SILENCE_S", 0.5)


def sent(run, tmp_path, *names):
    """Allocations of jobs that make results/<name>, by a Snakemake that is dead since."""
    dispatcher, _ = run()
    listed = wanted_jobs(tmp_path, *names)
    for job in listed:
        object.__setattr__(job, "outputs", (f"results/{job.name}",))
    dispatcher.submit(listed)


def stop(cluster, prefix):
    """Its output, and whether nothing runs any more."""
    said: list[str] = []
    ended = stopping.stop(Records(), cluster, prefix, said.append)
    return said, ended


def test_what_makes_other_files_runs_on(run, cluster, tmp_path):
    sent(run, tmp_path, "one/a")
    assert stop(cluster, "results/two/") == ([], True)
    assert cluster.cancelled == []


def test_a_scheduler_that_does_not_answer_has_ended_nothing(run, cluster, tmp_path):
    sent(run, tmp_path, "one/a")
    cluster.answers = False
    sentences, ended = stop(cluster, "results/one/")
    assert not ended
    assert "give the same command again" in sentences[0]


def test_a_held_job_of_which_all_has_finished_is_cancelled(run, cluster, tmp_path):
    sent(run, tmp_path, "one/a")
    cluster.finish("100", 0)
    cluster.known["100"] = state_of("PENDING", "launch failed requeued held")
    assert stop(cluster, "results/one/")[1]
    assert cluster.cancelled == ["100"]


def test_a_cancellation_that_the_scheduler_did_not_take_is_not_claimed(
    run, cluster, tmp_path, monkeypatch
):
    sent(run, tmp_path, "one/a")
    monkeypatch.setattr(cluster, "cancel", lambda _: False)
    sentences, ended = stop(cluster, "results/one/")
    assert not ended
    assert sentences[-1] == "the scheduler does not answer: give the same command again"


def test_what_another_user_runs_or_has_left_is_named_and_left_to_them(
    run, cluster, tmp_path, monkeypatch
):
    sent(run, tmp_path, "one/a")
    path = claim(tmp_path, host=socket.gethostname(), pid=os.getpid(), began="7", uid=2000)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    who = f"snakemake (pid {os.getpid()} of user 2000 on {socket.gethostname()})"
    only = "only user 2000 or an administrator can"
    looks = f"looking for 0.5 s whether {who} still lives"
    with beating(path):
        told = stop(cluster, "results/one/")
    assert told == (
        [looks.replace("0.5", "300"), f"{who} makes these files: have user 2000 stop it there"],
        False,
    )

    monkeypatch.setattr(cluster, "left_in", lambda where, uid: ["7"] if uid == 2000 else [])
    told = stop(cluster, "results/one/")
    whose = "sent from here by user 2000, whose snakemake is dead"
    assert told == ([looks, f"job 7: {whose}: {only} cancel it"], False)
    assert cluster.cancelled == []

    monkeypatch.setattr(cluster, "left_in", lambda where, uid: [])
    assert stop(cluster, "results/one/") == ([looks], True)
    assert not path.exists()


def claim(tmp_path, **facts):
    owners = tmp_path / ownership.CLAIMS
    owners.mkdir(parents=True, exist_ok=True)
    path = owners / "other.json"
    known = {"outputs": ["results/one/a"], "uid": os.getuid()}
    path.write_text(json.dumps({**known, **facts}))
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


def test_a_snakemake_that_lives_on_another_host_is_to_be_stopped_there(run, cluster, tmp_path):
    sent(run, tmp_path, "one/a")
    with beating(claim(tmp_path, host="elsewhere", pid=1, began="7")):
        sentences, ended = stop(cluster, "results/one/")
    assert not ended
    assert sentences[1:] == ["snakemake (pid 1 on elsewhere) makes these files: stop it there"]
    assert cluster.cancelled == []  # it would send them again


@pytest.mark.parametrize("prefix", ["results/one/", "results/two/"])
def test_the_owner_on_this_host_is_interrupted_where_it_makes_these_files(
    cluster, tmp_path, prefix
):
    path = tmp_path / ownership.CLAIMS / "other.json"
    program = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n    pathlib.Path(sys.argv[1]).unlink()\n    sys.exit()\n"
        "signal.signal(signal.SIGINT, end)\nprint('ready', flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        began = ownership.began(owner.pid)
        claim(tmp_path, host=socket.gethostname(), pid=owner.pid, began=began)
        _, ended = stop(cluster, prefix)
        assert ended
        assert path.exists() == (prefix == "results/two/")
        if prefix == "results/two/":
            assert owner.poll() is None
            os.kill(owner.pid, signal.SIGKILL)


def test_an_owner_that_ignores_interrupts_is_told_at_once_to_send_nothing(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr(stopping, "HEED_S", 3600.0)  # which is not waited for
    # as a job that a script has put into the background
    program = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        began = ownership.began(owner.pid)
        claim(tmp_path, host=socket.gethostname(), pid=owner.pid, began=began)
        sentences, ended = stop(cluster, "results/one/")
    assert ended
    assert sentences[0].startswith(f"telling snakemake (pid {owner.pid}")
    assert owner.returncode == -signal.SIGTERM


def test_the_command_says_what_it_did_and_exits_with_it(tmp_path, monkeypatch, capsys):
    for name in ("squeue", "scancel"):
        write_program(tmp_path / name, "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert stopping.main(["results/one/"]) == 0
    assert capsys.readouterr().out == ""
    assert stopping.main(["results/one/", "--cluster", "made_up"]) == 2
    assert capsys.readouterr().err == "made_up: allowed: slurm\n"
