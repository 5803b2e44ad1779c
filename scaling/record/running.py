"""The marker of a point that runs now: rows/<point_id>.running beside the row to come."""

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
from scaling.study.plan_file import json_object

STALE_AFTER_LIMIT_S = 120.0  # a marker this much older than its point's limit was left by a kill


@contextlib.contextmanager
def mark_running(row_path: Path, *, time_limit_s: float) -> Iterator[None]:
    """Hold the marker while the point runs."""
    marker = running_marker(row_path)
    facts = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "time_limit_s": time_limit_s,
    }
    write_text(marker, json.dumps(facts) + "\n")
    try:
        yield
    finally:
        marker.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """The process that measures a point; `since` is when it began, seconds since the epoch."""

    pid: int
    host: str
    since: float

    @property
    def is_here(self) -> bool:
        """Whether it runs on this host."""
        return self.host == socket.gethostname()


def live_runner(marker: Path) -> Runner | None:
    """Who left this marker, None where it does not run any more, as far as can be told from here.

    On this host its process is looked for; a younger process with its number is another one. A
    marker of another host is believed until its point's limit is long past.
    """
    try:
        facts, since = json_object(marker), marker.stat().st_mtime
        runner = Runner(pid=int(facts["pid"]), host=str(facts["host"]), since=since)
        limit_s = float(facts["time_limit_s"])
    # it has just ended, or is none: a broken marker marks nothing
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    if time.time() - since > limit_s + STALE_AFTER_LIMIT_S:
        return None
    if not runner.is_here:
        return runner
    try:
        process = psutil.Process(runner.pid)
        is_it = process.create_time() <= since + 1.0
        return runner if is_it and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, ValueError, OverflowError):  # none of that number, or none of ours
        return None


def runners_here(rows: Path) -> list[Runner]:
    """Who measures points into this folder on this host now."""
    runners = map(live_runner, sorted(rows.glob("*.running")))
    return [runner for runner in runners if runner is not None and runner.is_here]
