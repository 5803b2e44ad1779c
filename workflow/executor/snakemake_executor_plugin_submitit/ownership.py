"""A lock on the files that a Snakemake makes, which ends with its owner.

Snakemake's own lock records no owner: after a kill it must be removed by hand (`--unlock`), and the
same command could not just continue. Profiles for this executor therefore set `nolock: true`.
"""

import contextlib
import json
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from .pack import write_json

# The heartbeat of an owner.
BEAT_S = 5.0
# An owner on another host is dead if it was silent for so long.
SILENCE_S = 30.0


class OwnedElsewhere(RuntimeError):
    """Another live Snakemake makes some of the same files; the message is a whole sentence."""


class Ownership:
    """This process's claim to make certain files, released at the end or with the process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{uuid.uuid4().hex}.json"
        self._claimed = False
        self._released = threading.Event()

    def claim(self, outputs: Iterable[str], say: Callable[[str], None] = lambda _: None) -> None:
        """Claim these files.

        The claim is written before others are looked at: of two processes that start at once, at
        least one sees the other. An owner on another host is watched until it shows a heartbeat or
        has been silent for long enough; `say` announces the wait.

        Raises:
            OwnedElsewhere: another live process has claimed one of the files.
        """
        wanted = sorted(outputs)
        if not wanted:  # nothing to do; Snakemake would not call `release` either
            return
        mine = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "created": psutil.Process().create_time(),
            "outputs": wanted,
        }
        write_json(self._file, mine)
        self._claimed = True
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        for path in self._file.parent.glob("*.json"):
            if path == self._file:
                continue
            try:
                other = json.loads(path.read_text())
                shared = set(other["outputs"]) & set(wanted)
                lives = shared and self._owner_lives(path, other, say)
            except FileNotFoundError:
                continue  # released just now
            if lives:
                self.release()
                raise OwnedElsewhere(
                    f"another snakemake (pid {other['pid']} on {other['host']}) is making "
                    f"{min(shared)} in this folder: wait for it or stop it, then run this again"
                )
            if shared:
                path.unlink(missing_ok=True)

    def _owner_lives(self, path: Path, other: dict[str, Any], say: Callable[[str], None]) -> bool:
        if other["host"] == socket.gethostname():
            return is_running(other)
        heard = path.stat().st_mtime
        self.heartbeat()  # to read the file server's clock, as in the other's heartbeats
        silent_s = self._file.stat().st_mtime - heard
        if silent_s >= SILENCE_S:
            return False
        who = f"pid {other['pid']} on {other['host']}"
        say(f"looking for {SILENCE_S:g} s whether another snakemake ({who}) still lives")
        end = time.monotonic() + SILENCE_S
        while time.monotonic() < end:
            path.read_text()  # opening it makes a network file system ask its server
            if path.stat().st_mtime != heard:
                return True
            time.sleep(0.2)
        return False

    def _beat(self) -> None:
        while not self._released.wait(BEAT_S):
            with contextlib.suppress(OSError):  # a file system that is briefly unavailable
                self.heartbeat()

    @property
    def is_lost(self) -> bool:
        """Whether another process took this one for dead, after a long silence, and took over."""
        return self._claimed and not self._released.is_set() and not self._file.exists()

    def heartbeat(self) -> None:
        """Show owners on other hosts that this one lives."""
        if self._file.exists():
            os.utime(self._file)  # by the clock of the file server

    def release(self) -> None:
        """Give the claim up."""
        self._released.set()
        self._file.unlink(missing_ok=True)


def live_owners(folder: Path, prefix: str) -> list[tuple[Path, dict[str, Any]]]:
    """Live owners of files whose names begin with `prefix`, with the files of their claims."""
    owners = []
    now = _server_time(folder)
    for path in folder.glob("*.json"):
        try:
            owner = json.loads(path.read_text())
            heard_s = now - path.stat().st_mtime
        except (FileNotFoundError, json.JSONDecodeError):  # released just now
            continue
        here = owner["host"] == socket.gethostname()
        lives = is_running(owner) if here else heard_s < SILENCE_S
        if lives and any(name.startswith(prefix) for name in owner["outputs"]):
            owners.append((path, owner))
    return owners


def _server_time(folder: Path) -> float:
    """The time by the clock of the file server, as of heartbeats; else by this host's."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # no such folder, or no room for a file
        return time.time()


def is_running(owner: Mapping[str, Any]) -> bool:
    """Whether this owner on this host still runs; a reused pid does not count."""
    try:
        process = psutil.Process(owner["pid"])
        created = process.create_time()
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
    except psutil.NoSuchProcess:
        return False
    return bool(abs(created - owner["created"]) < 1)  # else the pid was reused
