"""The worker of an allocation, run here."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_executor_plugin_submitit import pack as pack_module
from snakemake_executor_plugin_submitit.pack import Pack
from snakemake_executor_plugin_submitit.schedulers.slurm.allocation import SlurmContext

from tests.executor.conftest import write_pack
from tests.processes import is_running, until, write_program

pytestmark = pytest.mark.usefixtures("keep_signal_handler")


@pytest.fixture
def pack(tmp_path):
    """Write a pack of commands; returns its folder."""
    return lambda *commands, **more: write_pack(tmp_path / "pack", *commands, **more)


def started(folder):
    """A process that runs the pack, once a job has made the file `ready`."""
    code = (
        "import pathlib, sys; from snakemake_executor_plugin_submitit.pack import Pack;"
        "Pack(pathlib.Path(sys.argv[1]))()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)])
    until("a job is ready", (folder.parent / "ready").exists)
    return process


def finished(folder, number=0):
    """Exit code and reason of a job's end; None for one that has not ended."""
    path = folder / f"{number}.finished.json"
    if not path.exists():
        return None
    end = json.loads(path.read_text())
    return end["code"], end["reason"]


def codes(folder):
    return [finished(folder, n)[0] for n in range(len(list(folder.glob("*.finished.json"))))]


def session(folder, number=0):
    return json.loads((folder / f"{number}.running.json").read_text())["pid"]


@pytest.mark.parametrize(("outputs_are_complete", "ran"), [(True, "b\n"), (False, "a\nb\n")])
def test_a_job_killed_after_its_output_is_not_repeated(pack, tmp_path, outputs_are_complete, ran):
    folder = pack("echo a >> ran", "echo b >> ran", outputs_are_complete=outputs_are_complete)
    wanted = json.loads((folder / "pack.json").read_text())
    for item, output in zip(wanted["items"], ("a.row", "b.row"), strict=True):
        item["outputs"] = [output]
    (folder / "pack.json").write_text(json.dumps(wanted))
    (folder / "0.running.json").write_text("{}")
    (tmp_path / "a.row").touch()
    Pack(folder)()
    assert (tmp_path / "ran").read_text() == ran
    assert codes(folder) == [0, 0]


def later_by(monkeypatch, seconds):
    """Let the pack's clock be so many seconds ahead at each look."""
    clock = time.monotonic
    ours = SimpleNamespace(monotonic=lambda: clock() + seconds(), time=time.time, sleep=time.sleep)
    monkeypatch.setattr(pack_module, "time", ours)


@pytest.fixture
def limit_passes(tmp_path, monkeypatch):
    """Once `ready` is there, each look at the clock finds it a second later, for one job."""

    def ahead():
        reached = (tmp_path / "ready").exists() and not (tmp_path / "pack/0.finished.json").exists()
        seconds[0] += reached
        return seconds[0]

    seconds = [0.0]
    later_by(monkeypatch, ahead)


@pytest.mark.usefixtures("limit_passes")
def test_a_job_at_its_time_limit_ends_and_the_next_one_runs(pack, tmp_path):
    folder = pack("sleep 300 & echo $! > child; touch ready; wait", "true", limit_s=60)
    Pack(folder)()
    code, reason = finished(folder)
    assert code != 0
    assert reason == "time limit"
    assert finished(folder, 1) == (0, "ended")
    assert not is_running(int((tmp_path / "child").read_text()))


def test_time_in_which_all_of_it_was_suspended_counts_against_no_limit(pack, tmp_path, monkeypatch):
    folder = pack("touch runs; sleep 1", limit_s=25)
    # as if an hour had passed since the job began
    later_by(monkeypatch, lambda: 3600 * (tmp_path / "runs").exists())
    Pack(folder)()
    assert finished(folder) == (0, "ended")


@pytest.mark.usefixtures("limit_passes")
def test_a_job_that_heeds_no_signal_is_killed(pack):
    folder = pack("trap '' TERM; touch ready; while true; do sleep 0.1; done", "true", limit_s=60)
    Pack(folder)()
    assert codes(folder) == [-signal.SIGKILL, 0]


def test_a_withdrawn_job_is_ended_unfinished(pack):
    folder = pack("touch pack/0.withdrawn; sleep 300", "true")
    Pack(folder)()
    assert finished(folder) is None
    assert finished(folder, 1) == (0, "ended")


def test_what_a_dead_shell_has_started_gets_time_to_clean_up(pack, tmp_path):
    (tmp_path / "job.py").write_text(
        "import signal, sys, time, pathlib\n"
        "def end(*_): time.sleep(1); pathlib.Path('clean').touch(); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path('ready').touch()\n"
        "time.sleep(60)"
    )
    folder = pack(f"{shlex.quote(sys.executable)} job.py; true", limit_s=60)
    process = started(folder)
    os.killpg(session(folder), signal.SIGTERM)  # as Slurm signals every process of the job
    process.terminate()
    process.wait(timeout=300)
    assert (tmp_path / "clean").exists()


def test_when_every_job_failed_so_did_the_allocation(pack):
    folder = pack("exit 3", "exit 4")
    with pytest.raises(SystemExit, match=r"all jobs of this pack failed, with exit codes \[3, 4\]"):
        Pack(folder)()
    assert codes(folder) == [3, 4]


# a job that has released the machine and writes until `go` is there
WRITES = "touch $SUBMITIT_RELEASED; until [ -e go ]; do sleep 0.05; done; touch written"


def test_the_next_job_starts_while_a_released_one_writes(pack):
    folder = pack(WRITES, "[ ! -e written ]; code=$?; touch go; exit $code", "true")
    assert Pack(folder)() == 3
    assert codes(folder) == [0, 0, 0]


def test_no_third_job_starts_while_one_writes(pack):
    folder = pack(
        "touch $SUBMITIT_RELEASED; sleep 1; touch written",
        "touch $SUBMITIT_RELEASED; until [ -e written ]; do sleep 0.05; done",
        "ls written",
    )
    Pack(folder)()
    assert finished(folder, 2) == (0, "ended")


def test_time_limit_lets_writers_finish_and_requeues_running_jobs(pack, tmp_path):
    folder = pack(WRITES, "trap 'touch go; exit 1' TERM; touch ready; while :; do sleep 0.1; done")
    process = started(folder)
    process.terminate()
    assert process.wait(timeout=300) == 128 + signal.SIGTERM
    assert (tmp_path / "written").exists()
    assert finished(folder) == (0, "ended")
    assert finished(folder, 1) is None
    for number in range(2):
        with pytest.raises(ProcessLookupError):
            os.killpg(session(folder, number), 0)


def test_a_signal_that_comes_while_a_job_starts_ends_that_job(pack, monkeypatch):
    popen, jobs = subprocess.Popen, []

    def told(*words, **how):
        jobs.append(popen(*words, **how))
        os.kill(os.getpid(), signal.SIGTERM)
        return jobs[0]

    monkeypatch.setattr(subprocess, "Popen", told)
    folder = pack("sleep 600", "touch started")
    with pytest.raises(SystemExit) as ended:
        Pack(folder)()
    assert ended.value.code == 128 + signal.SIGTERM
    assert jobs[0].poll() is not None
    assert codes(folder) == []


def test_a_second_signal_does_not_disturb_the_end(pack, tmp_path):
    again = "kill -TERM $PPID; sleep 1; touch clean; exit 1"
    folder = pack(f"trap '{again}' TERM; touch ready; while :; do sleep 0.1; done")
    process = started(folder)
    process.terminate()
    assert process.wait(timeout=300) == 128 + signal.SIGTERM
    assert (tmp_path / "clean").exists()
    assert finished(folder) is None


def test_a_job_that_cannot_write_what_it_has_takes_the_next_one_back(pack):
    folder = pack("touch $SUBMITIT_RELEASED; until [ -e ready ]; do :; done; exit 74",
                  "touch ready; sleep 300")  # fmt: skip
    with pytest.raises(SystemExit, match="job 0 could not write its results"):
        Pack(folder)()
    assert not list(folder.glob("*.finished*"))
    assert not list(folder.glob("*.running.json"))  # both count as not begun


def test_a_full_disk_stops_the_pack_and_leaves_its_jobs_wanted(pack, tmp_path, monkeypatch):
    write = pack_module.write_json

    def full(path, value):
        if "finished" in path.name:
            raise OSError(28, "No space left on device")
        write(path, value)

    monkeypatch.setattr(pack_module, "write_json", full)
    folder = pack("true", "touch started")
    with pytest.raises(OSError, match="No space left"):
        Pack(folder)()
    assert not list(folder.glob("*.finished*"))
    assert not (tmp_path / "started").exists()


def test_a_job_that_was_left_for_later_runs_behind_those_that_had_no_turn(pack, monkeypatch):
    monkeypatch.setattr(pack_module, "OUR_TURN_S", 0.0)
    folder = pack("exit 75", "touch started")
    for _ in range(2):
        with pytest.raises(SystemExit, match="job 0 was ended from outside"):
            Pack(folder)()
    assert finished(folder, 1) == (0, "ended")
    assert (folder / "0.returned").read_text() == ".."


def test_a_worker_ends_once_its_allocation_was_started_again_elsewhere(pack, monkeypatch):
    monkeypatch.setattr(pack_module, "_LOOK_EVERY_S", 0.1)
    folder = pack("sleep 600")

    def start_elsewhere():
        until("the job runs", (folder / "0.running.json").exists)
        newer = {"restarts": 1, "host": "elsewhere"}
        pack_module.write_json(folder / "started.json", newer)

    threading.Thread(target=start_elsewhere).start()
    with pytest.raises(SystemExit, match="started again elsewhere"):
        Pack(folder)()
    assert not is_running(session(folder))
    assert finished(folder) is None


@pytest.mark.parametrize(("kills", "reason"), [(1, "memory limit"), (0, "ended")])
def test_a_launcher_that_the_memory_limit_killed_says_so(pack, monkeypatch, kills, reason):
    counts = iter([5, 5 + kills])
    monkeypatch.setattr(pack_module, "oom_kills", lambda: next(counts))
    folder = pack("kill -KILL $$")
    with pytest.raises(SystemExit, match="all jobs of this pack failed"):
        Pack(folder)()
    assert finished(folder) == (-signal.SIGKILL, reason)


def test_the_kernel_tells_how_often_it_has_killed_for_memory():
    assert pack_module.oom_kills() >= 0
    assert "\noom_kill " in Path("/proc/vmstat").read_text()


def test_a_pack_with_fewer_restarts_left_gives_up_sooner(pack, monkeypatch):
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with pytest.raises(RuntimeError, match="restarted 1 times"):
        Pack(pack("true", restarts=0), SlurmContext())()


@pytest.mark.parametrize("code", [0, 1])
def test_an_allocation_that_slurm_does_not_requeue_waits_for_no_restart(
    tmp_path, monkeypatch, code
):
    for name, text in (("squeue", "echo RUNNING"), ("scontrol", f"exit {code}")):
        write_program(tmp_path / name, f"#!/bin/sh\n{text}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert SlurmContext().requeue() == (code == 0)
