"""Ranks, marker and row when the parent itself is stopped."""

import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from scaling.launch import NotMeasured, measure
from scaling.record.files import write_rows
from scaling.record.running import mark_running
from tests.launch.conftest import LAUNCHER
from tests.points import tiny_point
from tests.processes import ended_pid, is_running, modules_after, until

pytestmark = pytest.mark.slow

SLEEPING = "print('pid', os.getpid(), flush=True)\ntime.sleep(600)"


def rank_pids(study):
    words = [log.read_text().split() for log in sorted(study.logs.glob("rank*.log"))]
    return [int(said[1]) for said in words if len(said) == 2]


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def number(request):
    """A signal that this process and its children heed, as not all do in the background."""
    before = signal.signal(request.param, lambda *_: None)
    yield request.param
    signal.signal(request.param, before)


@pytest.fixture
def parent(study):
    """A launcher whose two ranks sleep."""
    point = study.write(tiny_point(dp=2))
    command = [sys.executable, "-c", LAUNCHER, str(point), str(study.row_path)]
    with (study.root / "said").open("wb") as said:
        process = subprocess.Popen([*command, *study.program(SLEEPING)], stderr=said)
    until("both ranks run", lambda: len(rank_pids(study)) == 2)
    return process


def test_a_killed_parent_leaves_no_ranks(parent, study):
    pids = rank_pids(study)
    parent.kill()
    parent.wait()
    until("the ranks end", lambda: not any(map(is_running, pids)))
    assert not study.row_path.exists()


def test_an_interrupted_parent_leaves_no_ranks_no_row_and_no_marker(number, parent, study):
    pids = rank_pids(study)
    marked = json.loads(study.marker.read_text())
    assert (marked["pid"], marked["host"]) == (parent.pid, socket.gethostname())
    assert (marked["time_limit_s"], marked["started_at"][-6:]) == (400.0, "+00:00")
    parent.send_signal(number)
    assert parent.wait(timeout=300) == os.EX_TEMPFAIL
    said = (study.root / "said").read_text()
    assert said == f"ended by {number.name} before its ranks had ended; the next run repeats it\n"
    assert not any(map(is_running, pids))
    assert list(study.rows.iterdir()) == []


def test_a_signal_leaves_no_marker_that_is_not_on_the_disk_yet(
    measured, study, monkeypatch, number
):
    fsync = os.fsync

    def interrupted(descriptor):
        if study.marker.exists():
            os.kill(os.getpid(), number)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(NotMeasured, match=f"ended by {number.name} before its ranks had ended"):
        measured("finish()")
    assert list(study.rows.iterdir()) == []


@pytest.mark.parametrize("name", ["start.local.spawn", "start.forked.start_local"])
def test_a_signal_leaves_no_rank_that_has_started_and_is_not_watched_yet(
    measured, study, monkeypatch, name
):
    start, before = pkgutil.resolve_name(f"scaling.launch.{name}"), psutil.Process().children()

    def told(*words, **how):
        started = start(*words, **how)
        os.kill(os.getpid(), signal.SIGTERM)
        return started

    monkeypatch.setattr(f"scaling.launch.{name}", told)
    with pytest.raises(NotMeasured, match="ended by SIGTERM before its ranks had ended"):
        measured(SLEEPING, dp=2)
    assert {*psutil.Process().children()} <= {*before}  # some of which may be reaped now
    assert list(study.rows.iterdir()) == []


def test_a_signal_while_the_marker_is_removed_leaves_none(measured, study, monkeypatch):
    read = Path.read_text

    def told(path, *words, **how):
        text = read(path, *words, **how)
        if path == study.marker:
            os.kill(os.getpid(), signal.SIGTERM)
        return text

    monkeypatch.setattr(Path, "read_text", told)
    with pytest.raises(NotMeasured, match="rank 0 was killed by SIGTERM"):
        measured("os.kill(os.getpid(), signal.SIGTERM)")
    assert list(study.rows.iterdir()) == []


def test_a_running_point_is_awaited_and_not_measured_twice(study, monkeypatch):
    point = study.write(tiny_point(dp=1, measured_steps=1))
    waited = study.root / "waited"  # by whoever comes second
    waits = "print('pid', os.getpid(), flush=True)\n"
    waits += f"while not Path({str(waited)!r}).exists(): time.sleep(0.05)\nfinish()"
    command = [sys.executable, "-c", LAUNCHER, str(point), str(study.row_path)]
    first = subprocess.Popen([*command, *study.program(waits)])
    until("the first one's rank runs", lambda: len(rank_pids(study)) == 1)

    def sleep(seconds):
        waited.touch()
        time.sleep(seconds)

    monkeypatch.setattr("scaling.launch.point.time", SimpleNamespace(sleep=sleep))
    row = measure(point, study.row_path, rank_command=["/bin/false"])
    assert waited.exists()
    assert first.wait() == 0
    assert row.outcome == "ok"


def test_an_attempt_that_failed_while_it_was_waited_for_is_counted(measured, study, monkeypatch):
    def fails(_):
        study.marker.unlink()
        study.row_path.parent.joinpath("retried").mkdir()
        study.row_path.parent.joinpath("retried", "tiny.1.parquet").touch()

    monkeypatch.setattr("scaling.launch.point.time", SimpleNamespace(sleep=fails, time=time.time))
    with mark_running(study.row_path, time_limit_s=60.0):
        assert measured("finish()").attempt == 2


def test_a_marker_left_by_a_kill_does_not_keep_its_point_from_running(measured, study):
    study.marker.parent.mkdir(parents=True)
    left = {"pid": ended_pid(), "host": socket.gethostname(), "time_limit_s": 600}
    study.marker.write_text(json.dumps(left))
    assert measured("finish()").outcome == "ok"
    assert not study.marker.exists()


def test_what_was_measured_is_written_whatever_signal_comes_meanwhile(
    measured, study, monkeypatch, number
):
    def write(path, rows):
        write_rows(path, rows)
        os.kill(os.getpid(), number)

    monkeypatch.setattr("scaling.launch.point.write_rows", write)
    assert measured("finish()").outcome == "ok"
    assert study.row_path.exists()


def test_logs_of_an_earlier_attempt_are_not_mixed_with_this_ones(measured, study):
    measured("print('first'); finish()", dp=2)
    measured("print('second'); finish()")
    assert [path.name for path in study.logs.iterdir()] == ["rank0.log"]
    assert study.log(0).split() == ["second"]


def test_ranks_on_a_cpu_get_one_thread_and_no_gpu(measured, study, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # as Snakemake tells its jobs
    names = ("OMP_NUM_THREADS", "DS_ACCELERATOR", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK")
    measured(f"print([os.environ[name] for name in {names!r}]); finish()", dp=2)
    assert study.log(1).strip() == "['1', 'cpu', '', '1']"

    monkeypatch.setenv("SCALING_THREADS", "3")
    row = measured("print(os.environ['OMP_NUM_THREADS']); finish()")
    assert study.log(0).strip() == "3"
    assert row.threads_per_rank == 3


def test_the_parent_imports_no_torch():
    assert not {"torch", "deepspeed"} & modules_after("import scaling.launch")
