"""A sweep that is killed loses nothing, repeats nothing, and goes on."""

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import psutil
import pytest

from scaling.record.running import live_runner
from tests.ran import rows_of, scaling_warm
from tests.workflow.conftest import stand_in

pytestmark = [pytest.mark.ranks, pytest.mark.snakemake, pytest.mark.timeout(600)]


def start(root):
    """`scaling run small` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "scaling", "run", "small"], cwd=root, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
        # a test run in the background of a shell ignores Ctrl-C, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def until_one_more_is_running(process, results, rows):
    """Wait until that many rows are there and another point runs."""
    limit = time.monotonic() + 240
    while time.monotonic() < limit:
        assert process.poll() is None, "the run ended before it could be killed"
        done = len(list((results / "rows").glob("*.parquet")))
        # a kill leaves markers behind: only one whose process lives is a running point
        running = [m for m in (results / "rows").glob("*.running") if live_runner(m)]
        if done >= rows and running and not (running[0].with_suffix(".parquet")).exists():
            return running[0].stem
        time.sleep(0.05)
    raise AssertionError("no point came to run")


def bytes_of_rows(results):
    return {path.name: path.read_bytes() for path in (results / "rows").glob("*.parquet")}


def test_a_killed_sweep_is_taken_over_and_only_what_is_missing_runs(small):
    stand_in(small)
    results = small / "results" / "small"

    # the whole process group dies at once, as with a machine that is switched off
    first = start(small)
    until_one_more_is_running(first, results, rows=1)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    kept = bytes_of_rows(results)
    assert len(kept) >= 1

    # then only snakemake and its parent die, and the point they had started goes on alone
    second = start(small)
    orphan = until_one_more_is_running(second, results, rows=len(kept) + 1)
    snakemakes = [
        p
        for p in psutil.process_iter(["ppid", "cmdline"])
        if p.info["ppid"] == second.pid and "snakemake" in " ".join(p.info["cmdline"] or [])
    ]
    for process in [psutil.Process(second.pid), *snakemakes]:
        process.kill()
    second.wait()
    killed_at = datetime.now(UTC)
    kept |= bytes_of_rows(results)

    last = scaling_warm(small, "run", "small")
    assert last.returncode == 0, last.stdout + last.stderr
    assert "Removing the lock of a snakemake that was killed." in last.stdout

    rows = {row["point_id"]: row for row in rows_of(results)}
    assert len(rows) == 5
    after = bytes_of_rows(results)
    assert {name: after[name] for name in kept} == kept
    assert datetime.fromisoformat(rows[orphan]["started_at"]) < killed_at
    assert (results / "report.html").exists()
    assert not list(results.rglob("*.running"))

    # the kernel that is missing is an outcome: it stopped nobody, and can be asked for again
    (unavailable,) = [row for row in rows.values() if row["outcome"] != "ok"]
    assert unavailable["outcome"] == "kernel_unavailable"
    assert "flash" in unavailable["error_message"]
    assert unavailable["step_time_s"] is None
    status = scaling_warm(small, "status", "small").stdout
    assert status == "4 done · 1 failed (kernel_unavailable 1) · 0 running · 0 left of 5\n"

    retried = scaling_warm(small, "retry", "small", "--outcome", "kernel_unavailable")
    assert "1 point will run again" in retried.stdout
    assert scaling_warm(small, "run", "small").returncode == 0
    again = {row["point_id"]: row for row in rows_of(results)}
    assert again[unavailable["point_id"]]["attempt"] == 2
    others = set(rows) - {unavailable["point_id"]}
    assert {i: again[i] for i in others} == {i: rows[i] for i in others}


def test_ctrl_c_stops_the_sweep_and_keeps_what_is_measured(small):
    results = small / "results" / "small"
    run = start(small)
    interrupted = until_one_more_is_running(run, results, rows=1)
    kept = bytes_of_rows(results)
    os.killpg(run.pid, signal.SIGINT)
    run.wait(timeout=300)
    assert run.returncode == 128 + signal.SIGINT
    assert bytes_of_rows(results) == kept
    # the launcher ends its ranks first, and may need a moment longer than those above it
    limit = time.monotonic() + 300
    while (still := left_behind(small, results, interrupted)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not still


def left_behind(root, results, point_id):
    """The marker of that point and the processes that work on this checkout."""
    marker = results / "rows" / f"{point_id}.running"
    processes = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
    return [marker] * marker.exists() + [c for c in processes if str(root) in " ".join(c)]
