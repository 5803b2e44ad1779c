"""A host for the ranks of a run on this machine: torch and the engines are imported once for all.

`scaling run` keeps it while its Snakemake runs; points find it by `$SCALING_HOST`, a folder. Where
there is none (a plain `snakemake`), or it has ended, ranks start from nothing.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from scaling.launch.fork_server.client import (
    FORK_SERVER,
    FORK_SERVERS_WANTED,
    NoForkServer,
    order_ranks,
)
from scaling.launch.fork_server.protocol import SERVER_COMMAND, ForkServer, read
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.starter import Launch, Ranks, Task, spawn, wait_until

_IMPORT_LIMIT_S = 120.0
_ENDING_S = 10.0
_PID = "pid"


@contextlib.contextmanager
def local_fork_server(point: Task | None, logs: Path) -> Iterator[dict[str, str]]:
    """Keep a host for points like this one; yields what the environment of their jobs needs.

    It is not waited for: the first point does. It ends with this block, or by itself once this
    process is gone and no point runs on it any more.

    All ranks of a host share what was set when torch was imported; None: no host is wanted.
    """
    if point is None or os.environ.get(FORK_SERVERS_WANTED) == "0":
        yield {}
        return
    logs.mkdir(parents=True, exist_ok=True)
    for left in logs.glob(".host-*"):  # by a run that was killed outright, with its host
        if _is_dead(left):
            shutil.rmtree(left, ignore_errors=True)
    place = Path(tempfile.mkdtemp(prefix=".host-", dir=logs.absolute()))
    # in a session of its own: Ctrl-C is not meant for it
    command = [*SERVER_COMMAND, str(place), str(os.getpid())]
    host = spawn(command, rank_environment(point, os.environ), place / "node0.log")
    (place / _PID).write_text(f"{host.pid} {socket.gethostname()}")
    try:
        yield {FORK_SERVER: str(place)}
    finally:
        host.terminate()
        try:
            host.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            host.kill()
            host.wait()
        shutil.rmtree(place, ignore_errors=True)


def start_on_local_fork_server(launch: Launch) -> Ranks:
    """Have the fork server of this run start the ranks.

    Raises:
        NoForkServer: there is none, or more than one node is needed.
        OSError: it does not answer.
    """
    if launch.nodes > 1:
        raise NoForkServer("it serves one machine")
    place = Path(launch.environment[FORK_SERVER])
    record = place / "node0.json"
    if not wait_until(record.exists, _IMPORT_LIMIT_S, alive=lambda: _lives(place)):
        raise NoForkServer(f"no host listens at {place}")
    return order_ranks([read(record, ForkServer)], launch)


def _lives(place: Path) -> bool:
    try:
        process = psutil.Process(int((place / _PID).read_text().split()[0]))
        return process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.NoSuchProcess):
        return False


def _is_dead(place: Path) -> bool:
    """Whether this machine had a host there and has it no more."""
    try:
        _, machine = (place / _PID).read_text().split()
    except (OSError, ValueError):  # it has just begun
        return False
    return machine == socket.gethostname() and not _lives(place)
