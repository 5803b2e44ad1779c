"""The same command again, whatever has happened to Snakemake: nothing twice, nothing lost."""

import os
import shutil
import signal
import sys

import pytest

from scaling.cluster.slurm_site import query_slurm
from scaling.launch.start.slurm import ask_queue
from scaling.run.new_folder import clusters_text
from tests.processes import ended, until
from tests.slurm.lab import LabStudy, end

pytestmark = pytest.mark.slurm

SIX = {f"p{i}": {"seconds": 3} for i in range(6)}
PACKED = ("--submitit-pack", "2")
UNTIL_GO = {"command": "until [ -e go ]; do sleep 0.2; done"}


def kill(run):
    os.kill(run.pid, signal.SIGKILL)
    run.wait(timeout=500)


def idle(study):
    until("the jobs end", lambda: not study.lab.queue())


def stop(study):
    """Stop the study for good; the output."""
    command = [sys.executable, "-m", "snakemake_executor_plugin_submitit.stop", "out/"]
    told = ended(*command, cwd=study.folder, env=study.lab.environment)
    assert told.returncode == 0, told.stderr
    return told.stdout


@pytest.fixture
def on_the_lab(lab, monkeypatch):
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)


def test_after_a_kill_jobs_are_taken_up_and_nothing_is_sent_twice(study):
    waiting = {"seconds": 3, "slurm_extra": "--begin=now+10"}
    study.points(**{**SIX, "p4": waiting, "p5": waiting})
    kill(study.started("p0", "p2", options=PACKED))
    jobs = study.jobs()
    assert study.run(*PACKED) == 0, study.said
    assert study.starts() == dict.fromkeys(SIX, 1)
    assert study.done() == set(SIX)
    assert study.jobs() == jobs
    assert len(jobs) == 3


def test_what_finished_while_nobody_watched_is_not_run_again(study):
    study.points(**{name: {"seconds": 1} for name in SIX})
    kill(study.started("p0", options=PACKED))
    idle(study)
    jobs = study.jobs()
    assert study.run(*PACKED) == 0, study.said
    assert study.starts() == dict.fromkeys(SIX, 1)
    assert study.jobs() == jobs


def test_removed_records_let_no_point_run_twice_at_once(study):
    # a lock ends with its process; a trap would not run if two signals came at once
    once = "exec 9> mark; flock --nonblock 9 || echo twice >> both"
    study.points(a={"command": f"{once}; test -e again || {{ touch again; sleep 300; }}"})
    kill(study.started("a", options=PACKED))
    shutil.rmtree(study.folder / ".snakemake")
    assert study.run(*PACKED) == 0, study.said
    assert "it has nothing to run any more" in study.said
    assert study.done() == {"a"}
    assert not (study.folder / "both").exists()


def test_a_held_job_of_finished_points_is_cancelled_by_the_next_run(study):
    study.points(a={"seconds": 3}, b={"seconds": 0})
    kill(study.started("a", options=PACKED))
    idle(study)
    # what a controller that crashed leaves: the job waits again, though all of it has finished
    batch = next((study.folder / ".snakemake/submitit").glob("2*-*")).name
    where = (f"--chdir={study.folder}", f"--comment=snakemake in study, {batch}")
    held = study.lab.submit("--hold", *where, command="true")
    assert study.run(*PACKED) == 0, study.said
    assert held not in study.lab.queue()
    assert study.starts() == {"a": 1, "b": 1}


def test_a_job_that_slurm_holds_after_a_failed_launch_is_sent_anew(study):
    study.points(a={"seconds": 0}, b={"seconds": 0})
    (study.lab.folder / "prolog.fails").touch()
    assert study.run(*PACKED) == 0, study.said
    drained = study.lab.ask("sinfo", "-h", "-N", "-t", "drain", "-o", "%N").split()
    study.lab.ask("scontrol", "update", f"nodename={','.join(set(drained))}", "state=resume")
    assert "could not be started: launch failed requeued held" in study.said
    assert study.starts() == {"a": 1, "b": 1}
    assert not study.lab.queue()


def test_jobs_that_died_unwatched_are_resent_without_using_a_retry(study):
    study.points(**{name: {"command": "test -e again || sleep 300"} for name in SIX})
    kill(study.started("p0", "p2", "p4", options=PACKED))
    study.lab.ask("scancel", *study.lab.queue())
    idle(study)
    (study.folder / "again").touch()
    assert study.run(*PACKED) == 0, study.said
    assert study.done() == set(SIX)
    assert len(study.jobs()) == 6


def test_a_changed_command_withdraws_the_old_job(study):
    study.points(a={"seconds": 30}, b={"command": "echo old"})
    kill(study.started("a", options=PACKED))
    study.points(a={"command": "echo new"}, b={"command": "echo old"})
    assert study.run(*PACKED) == 0, study.said
    assert (study.folder / "out/a.txt").read_text() == "new\n"
    assert study.starts() == {"a": 2, "b": 1}


def test_ctrl_c_cancels_our_jobs_and_no_others_and_the_next_run_finishes(study):
    other = study.lab.submit(command="sleep 600")
    study.points(**{name: {"seconds": 300 * (name != "p0")} for name in SIX})
    run = study.started("p0", "p1", "p2", "p4", options=PACKED)
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=500) == 1
    until("our jobs end", lambda: list(study.lab.queue()) == [other])
    assert study.done() == {"p0"}
    study.points(**{name: {"seconds": 0} for name in SIX})
    assert study.run(*PACKED) == 0, study.said
    assert study.done() == set(SIX)
    assert study.lab.queue() == {other: "RUNNING"}
    assert study.starts()["p0"] <= 2


def test_a_second_snakemake_on_the_same_study_is_told_who_has_it(study):
    study.points(a=UNTIL_GO)
    first = study.start(python=sys.executable)  # of which the pid is told
    study.wait_for_start("a")
    assert study.run() == 1
    (study.folder / "go").touch()
    assert f"another snakemake (pid {first.pid} on " in study.said
    assert first.wait(timeout=500) == 0
    assert study.starts() == {"a": 1}
    owners = study.folder / ".snakemake/submitit/index/owners"
    assert not list(owners.glob("*.json"))


def test_a_run_is_stopped_for_good_though_its_snakemake_is_dead(study):
    study.points(**{name: {"seconds": 600} for name in ("a", "b")})
    kill(study.started("a", options=PACKED))
    assert study.lab.queue()
    assert "cancelling 1 allocations" in stop(study)
    idle(study)
    assert study.done() == set()


def test_a_second_checkout_with_the_same_study_is_left_alone(study, tmp_path, on_the_lab):
    (tmp_path / "other").mkdir()
    other = LabStudy(study.lab, tmp_path / "other/study")
    for checkout in (study, other):
        checkout.points(a=UNTIL_GO)
        run = checkout.started("a", options=PACKED)
    try:
        (mine,), (theirs,) = ask_queue(study.folder).jobs, ask_queue(other.folder).jobs
        assert mine.job_id != theirs.job_id
        stop(study)
        until("our job ends", lambda: mine.job_id not in study.lab.queue())
        assert theirs.job_id in study.lab.queue()
        (other.folder / "go").touch()
        assert run.wait(timeout=500) == 0, other.said
    finally:
        end(other.runs)
    assert (study.done(), other.done()) == (set(), {"a"})


@pytest.mark.usefixtures("on_the_lab")
def test_a_new_folder_is_told_partition_and_account_by_slurm():
    site = query_slurm()
    assert site is not None
    assert site.best.gpus_per_node == 4
    assert "lab" in site.accounts
    assert "two" in site.qos
    text = clusters_text(site)
    assert f"partition: {site.best.partition} # sinfo" in text
    assert f"account: {site.accounts[0]} # sacctmgr" in text
