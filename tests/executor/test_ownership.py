"""A lock that a dead owner does not keep, and how its jobs are stopped for good."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest
from snakemake_executor_plugin_submitit import ownership
from snakemake_executor_plugin_submitit import stop as stopping
from snakemake_executor_plugin_submitit.ownership import OwnedElsewhere, Ownership
from snakemake_executor_plugin_submitit.records import Records

from tests.executor.conftest import wanted_job
from tests.processes import ended_pid, write_program


@pytest.fixture
def other(tmp_path):
    """Another process has claimed `shared.txt`; `change` says how it differs from a live one."""

    def claimed(**change):
        claim = Ownership(tmp_path)
        claim.claim(["shared.txt"])
        (path,) = tmp_path.glob("*.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        return path

    return claimed


@pytest.fixture
def soon(monkeypatch):
    """An owner without a heartbeat is given up at once."""
    monkeypatch.setattr(ownership, "SILENCE_S", 0.5)


def beats(path, said):
    """The other owner's heartbeat comes while it is watched."""

    def beat(sentence):
        said.append(sentence)
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 1))

    return lambda sentence: threading.Timer(0.3, beat, [sentence]).start()


def test_of_two_that_make_the_same_file_the_second_is_told_who_has_it(tmp_path, other):
    other()
    with pytest.raises(OwnedElsewhere, match=rf"pid {os.getpid()} on .* is making shared\.txt"):
        Ownership(tmp_path).claim(["a.txt", "shared.txt"])
    assert len(list(tmp_path.glob("*.json"))) == 1


@pytest.mark.parametrize("dead", ["ended", "pid used again"])
def test_a_dead_owner_and_one_whose_pid_was_used_again_own_nothing(tmp_path, other, dead):
    other(**({"pid": ended_pid()} if dead == "ended" else {"began": "7"}))
    Ownership(tmp_path).claim(["shared.txt"])
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_an_owner_on_another_login_node_lives_if_its_heartbeat_does(tmp_path, other):
    path, said = other(host="login2"), []
    with pytest.raises(OwnedElsewhere, match="on login2"):
        Ownership(tmp_path).claim(["shared.txt"], beats(path, said))
    assert len(said) == 1


@pytest.mark.usefixtures("soon")
def test_an_owner_killed_on_another_login_node_is_given_up_soon(tmp_path, other):
    path, said = other(host="login2"), []
    Ownership(tmp_path).claim(["shared.txt"], said.append)
    assert not path.exists()
    assert len(said) == 1


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("change", "jobs", "sentence"),
    [
        ({"uid": 2000}, ["7", "8"], "job 7, 8, sent by user 2000, may be .* have user 2000"),
        ({"uid": 2000}, None, "what the scheduler cannot list now, sent by user 2000, may be"),
        ({"uid": 2000}, [], None),
        ({}, ["7"], None),  # they are taken up again
    ],
)
def test_jobs_of_a_dead_owner_are_awaited_unless_they_can_be_taken_up(
    tmp_path, other, monkeypatch, change, jobs, sentence
):
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    path, told = other(host="login2", **change), ""
    try:
        Ownership(tmp_path).claim(["shared.txt"], left_by=lambda uid: jobs)
    except OwnedElsewhere as error:
        told = str(error)
    assert re.search(sentence, told) if sentence else not told
    assert path.exists() == bool(sentence)


def test_another_users_snakemake_on_this_host_is_known_by_its_heartbeat(
    tmp_path, other, monkeypatch
):
    path = other(uid=2000, began="7")  # hosts may hide processes of other users
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(OwnedElsewhere, match=r"pid \d+ of user 2000 on .* have user 2000 stop it"):
        Ownership(tmp_path).claim(["shared.txt"], beats(path, []))


def test_an_owner_that_was_taken_for_dead_knows_it(tmp_path):
    owner = Ownership(tmp_path)
    assert not owner.is_lost
    owner.claim(["a.txt"])
    assert not owner.is_lost
    next(tmp_path.glob("*.json")).unlink()
    assert owner.is_lost
    owner.release()
    assert not owner.is_lost


def test_a_claim_that_a_power_failure_has_emptied_is_nobodys(tmp_path):
    (tmp_path / "0.json").touch()
    Ownership(tmp_path).claim(["a.txt"])


@pytest.fixture
def sent(run, soon):
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
def test_a_job_of_which_no_record_is_left_is_cancelled(cluster):
    shutil.rmtree(cluster.folders["100"])
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
def owner(tmp_path, soon, monkeypatch):
    """Starts an owner on this host that does this when it is interrupted."""
    monkeypatch.chdir(tmp_path)  # the folder of Snakemake's start
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
    monkeypatch.chdir(tmp_path)
    for name in ("squeue", "scancel"):
        write_program(tmp_path / name, "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert stopping.main(["results/one/"]) == 0
    assert capsys.readouterr().out == ""
    assert stopping.main(["results/one/", "--cluster", "made_up"]) == 2
    assert capsys.readouterr().err == "made_up: allowed: slurm\n"
