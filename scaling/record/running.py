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


def is_alive(marker: Path) -> bool:
    """Whether the job that left this marker still runs, as far as can be told from here.

    On this host its process is looked for; a younger process with its number is another one. A
    marker of another host is believed until its point's limit is long past.
    """
    facts = _read_marker(marker)
    return facts is not None and _still_runs(facts)


def runs_here_already(row_path: Path) -> bool:
    """Whether another process of this host measures this very point now."""
    facts = _read_marker(running_marker(row_path))
    return facts is not None and facts.host == socket.gethostname() and _still_runs(facts)


def running_here(rows: Path) -> list[int]:
    """Process ids on this host that measure points into this folder now."""
    markers = [_read_marker(marker) for marker in sorted(rows.glob("*.running"))]
    return [
        facts.pid
        for facts in markers
        if facts is not None and facts.host == socket.gethostname() and _still_runs(facts)
    ]


def started_on(marker: Path) -> tuple[str, float] | None:
    """The host of the job that left this marker, and when it began, in seconds since the epoch."""
    facts = _read_marker(marker)
    return None if facts is None else (facts.host, facts.written_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MarkerFacts:
    """What a marker says, and when it was written (seconds since the epoch)."""

    pid: int
    host: str
    time_limit_s: float
    written_at: float


def _read_marker(marker: Path) -> _MarkerFacts | None:
    try:
        facts = json.loads(marker.read_text(encoding="utf-8"))
        written_at = marker.stat().st_mtime
        return _MarkerFacts(
            pid=int(facts["pid"]),
            host=str(facts["host"]),
            time_limit_s=float(facts["time_limit_s"]),
            written_at=written_at,
        )
    # it has just ended, or is none: a broken marker marks nothing
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _still_runs(facts: _MarkerFacts) -> bool:
    if time.time() - facts.written_at > facts.time_limit_s + STALE_AFTER_LIMIT_S:
        return False
    if facts.host != socket.gethostname():
        return True
    try:
        process = psutil.Process(facts.pid)
        started = process.create_time()
    except (psutil.Error, ValueError, OverflowError):  # none of that number, or none of ours
        return False
    return process.status() != psutil.STATUS_ZOMBIE and started <= facts.written_at + 1.0
