"""Who runs what here: a lock that a dead owner does not keep.

Snakemake's own lock knows no owner: after a kill it must be removed by hand (`--unlock`), and the
same command could not just go on. Profiles for this executor therefore say `nolock: true`.
"""

import json
import os
import socket
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from .pack import write_json

# an owner on another login node is taken for dead when it has not been heard of for so long
SILENCE_S = 600


class OwnedElsewhere(RuntimeError):
    """Another Snakemake that lives makes some of the same files; its text is a whole sentence."""


class Ownership:
    """The claim of this process to make certain files; released at the end, or with the process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{uuid.uuid4().hex}.json"

    def claim(self, outputs: Iterable[str]) -> None:
        """Claim these files, or learn who has.

        The claim is written down before others are looked at: of two processes that start at once,
        at least one sees the other.

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
        now = self._file.stat().st_mtime  # the file server's clock, as for the others' heartbeats
        for path in self._file.parent.glob("*.json"):
            if path == self._file:
                continue
            try:
                other = json.loads(path.read_text())
                silence = now - path.stat().st_mtime
            except FileNotFoundError:
                continue  # released just now
            if not _alive(other, silence):
                path.unlink(missing_ok=True)
            elif shared := set(other["outputs"]) & set(wanted):
                self.release()
                raise OwnedElsewhere(
                    f"another snakemake (pid {other['pid']} on {other['host']}) is making "
                    f"{min(shared)} in this folder: wait for it or stop it, then run this again"
                )

    def heartbeat(self) -> None:
        """Say that we live; for owners that are asked from another host."""
        if self._file.exists():
            os.utime(self._file)  # by the clock of the file server

    def release(self) -> None:
        """Give the claim up."""
        self._file.unlink(missing_ok=True)


def _alive(owner: dict[str, Any], silence_s: float) -> bool:
    if owner["host"] != socket.gethostname():
        return silence_s < SILENCE_S
    try:
        created = psutil.Process(owner["pid"]).create_time()
    except psutil.NoSuchProcess:
        return False
    return bool(abs(created - owner["created"]) < 1)  # else the pid was used again
