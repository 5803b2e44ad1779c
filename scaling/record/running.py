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

STALE_AFTER_LIMIT_S = 120.0  # a marker this much older than its point's limit was left by a kill


@contextlib.contextmanager
def marked(row_path: Path, *, time_limit_s: float) -> Iterator[None]:
    """Hold the marker while the point runs."""
    marker = running_marker(row_path)
    said = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "time_limit_s": time_limit_s,
    }
    write_text(marker, json.dumps(said) + "\n")
    try:
        yield
    finally:
        marker.unlink(missing_ok=True)


def is_alive(marker: Path) -> bool:
    """Whether the job that left this marker still runs, as far as can be told from here.

    On this host its process is looked for; a younger process with its number is another one. A
    marker of another host is believed until its point's limit is long past.
    """
    said = _said(marker)
    return said is not None and _still(said)


def runs_here_already(row_path: Path) -> bool:
    """Whether another process of this host measures this very point now."""
    said = _said(running_marker(row_path))
    return said is not None and said.host == socket.gethostname() and _still(said)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a marker says, and when it was written (seconds since the epoch)."""

    pid: int
    host: str
    time_limit_s: float
    written_at: float


def _said(marker: Path) -> _Said | None:
    try:
        said = json.loads(marker.read_text(encoding="utf-8"))
        written_at = marker.stat().st_mtime
        return _Said(
            pid=int(said["pid"]),
            host=str(said["host"]),
            time_limit_s=float(said["time_limit_s"]),
            written_at=written_at,
        )
    # it has just ended, or is none: a broken marker marks nothing
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _still(said: _Said) -> bool:
    if time.time() - said.written_at > said.time_limit_s + STALE_AFTER_LIMIT_S:
        return False
    if said.host != socket.gethostname():
        return True
    try:
        process = psutil.Process(said.pid)
        started = process.create_time()
    except (psutil.Error, ValueError, OverflowError):  # none of that number, or none of ours
        return False
    return process.status() != psutil.STATUS_ZOMBIE and started <= said.written_at + 1.0
