"""The marker of a point that is running: rows/<point_id>.running, beside its future row."""

import contextlib
import datetime
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from scaling.record.files import write_text
from scaling.study.paths import running_marker
from scaling.study.plan_file import read_json_object

# A marker of another host that is older than its point's time limit by this much was left by a
# killed process. On this host one can see: a point may wait or be suspended beyond its limit.
STALE_AFTER_LIMIT_S = 120.0
_TICKS_S = 0.05  # the kernel counts hundredths


@contextlib.contextmanager
def mark_running(row_path: Path, *, time_limit_s: float) -> Iterator[None]:
    """Keep the marker while the point runs, unless a restart of it has taken the marker over."""
    marker = running_marker(row_path)
    facts = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        "time_limit_s": time_limit_s,
        "since_boot_s": _since_boot_s(psutil.Process()),
        "job": os.environ.get("SLURM_JOB_ID"),
        "slurm": os.environ.get("SLURM_CLUSTER_NAME"),
    }
    text = json.dumps(facts) + "\n"
    try:
        # within the try: a signal may come once the marker has its name, but is not on the disk yet
        write_text(marker, text)
        yield
    finally:
        with contextlib.suppress(OSError):  # a marker that stays is that of an ended process
            if marker.read_text(encoding="utf-8") == text:
                marker.unlink()


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """The process that measures a point; `since` is its start, seconds since the epoch."""

    pid: int
    host: str
    since: float
    job: str | None = None  # of Slurm
    slurm: str | None = None  # the name of the Slurm to which the job belongs

    @property
    def is_here(self) -> bool:
        """Whether it runs on this host."""
        return self.host == socket.gethostname()


def live_runner(marker: Path) -> Runner | None:
    """The process that wrote this marker, or None if it seems to have ended.

    On this host the process must exist and be the one that wrote it, because process numbers are
    reused: it began as long after the system's start, which no setting of the clock changes. A
    marker of another host counts until its point's time limit is long past.
    """
    try:
        facts = read_json_object(marker)
        since = datetime.datetime.fromisoformat(facts["started_at"]).timestamp()
        runner = Runner(
            pid=int(facts["pid"]),
            host=str(facts["host"]),
            since=since,
            job=facts.get("job"),
            slurm=facts.get("slurm"),
        )
        if not runner.is_here:
            ends_s = since + float(facts["time_limit_s"])
            return None if time.time() - ends_s > STALE_AFTER_LIMIT_S else runner
        process = psutil.Process(runner.pid)
        same = abs(_since_boot_s(process) - float(facts["since_boot_s"])) < _TICKS_S
        return runner if same and process.status() != psutil.STATUS_ZOMBIE else None
    # no such marker or process, no access to it, or a broken marker
    except (psutil.Error, OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _since_boot_s(process: psutil.Process) -> float:
    """When a process began, in seconds since the system's start."""
    return process.create_time() - psutil.boot_time()


def runners_here(rows: Path) -> list[Runner]:
    """The processes of this host that are measuring points into this folder."""
    runners = map(live_runner, sorted(rows.glob("*.running")))
    return [runner for runner in runners if runner is not None and runner.is_here]
