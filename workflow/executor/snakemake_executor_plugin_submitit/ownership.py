"""Who runs what here: a lock that a dead owner does not keep.

Snakemake's own lock knows no owner: after a kill it must be removed by hand (`--unlock`), and the
same command could not just go on. Profiles for this executor therefore say `nolock: true`.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from .pack import write_json

# an owner says so often that it lives
BEAT_S = 5.0
# and is dead on another host when nothing was heard of it for so long
SILENCE_S = 30.0


class OwnedElsewhere(RuntimeError):
    """Another Snakemake that lives makes some of the same files; its text is a whole sentence."""


class Ownership:
    """The claim of this process to make certain files; released at the end, or with the process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{uuid.uuid4().hex}.json"
        self._claimed = False
        self._released = threading.Event()

    def claim(self, outputs: Iterable[str], say: Callable[[str], None] = lambda _: None) -> None:
        """Claim these files, or learn who has.

        The claim is written down before others are looked at: of two processes that start at once,
        at least one sees the other. An owner on another host is watched until it is heard of, or
        has been silent for long enough; `say` is told of the wait.

        Raises:
            OwnedElsewhere: another live process has claimed one of them.
        """
        wanted = sorted(outputs)
        if not wanted:  # nothing to do, and Snakemake will not tell us when it is done with that
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
                lives = shared and self._lives(path, other, say)
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

    def _lives(self, path: Path, other: dict[str, Any], say: Callable[[str], None]) -> bool:
        if other["host"] == socket.gethostname():
            return _runs(other)
        heard = path.stat().st_mtime
        self.heartbeat()  # the file server's clock, as for the other's heartbeats
        silent_s = self._file.stat().st_mtime - heard
        if silent_s >= SILENCE_S:
            return False
        who = f"pid {other['pid']} on {other['host']}"
        say(f"looking for {SILENCE_S:g} s whether another snakemake ({who}) still lives")
        end = time.monotonic() + SILENCE_S
        while time.monotonic() < end:
            path.read_text()  # opened, so that a network file system asks its server
            if path.stat().st_mtime != heard:
                return True
            time.sleep(0.2)
        return False

    def _beat(self) -> None:
        while not self._released.wait(BEAT_S):
            with contextlib.suppress(OSError):  # a file system that is away for a moment
                self.heartbeat()

    @property
    def lost(self) -> bool:
        """Whether another process has taken us for dead (we were stopped for long) and goes on."""
        return self._claimed and not self._released.is_set() and not self._file.exists()

    def heartbeat(self) -> None:
        """Say that we live; for owners that are asked from another host."""
        if self._file.exists():
            os.utime(self._file)  # by the clock of the file server

    def release(self) -> None:
        """Give the claim up."""
        self._released.set()
        self._file.unlink(missing_ok=True)


def owners_of(folder: Path, prefix: str) -> list[tuple[Path, dict[str, Any]]]:
    """Who makes files whose names begin so: live here, or heard of lately on another host."""
    owners = []
    for path in folder.glob("*.json"):
        try:
            owner = json.loads(path.read_text())
            heard_s = time.time() - path.stat().st_mtime
        except (FileNotFoundError, json.JSONDecodeError):  # released just now
            continue
        here = owner["host"] == socket.gethostname()
        lives = _runs(owner) if here else heard_s < SILENCE_S
        if lives and any(name.startswith(prefix) for name in owner["outputs"]):
            owners.append((path, owner))
    return owners


def _runs(owner: dict[str, Any]) -> bool:
    try:
        created = psutil.Process(owner["pid"]).create_time()
    except psutil.NoSuchProcess:
        return False
    return bool(abs(created - owner["created"]) < 1)  # else the pid was used again
