"""Fork servers, which import torch and the engines once for all points, and ranks ordered of them.

`scaling run` keeps one on this machine while its Snakemake runs; points find it by `$SCALING_HOST`,
a folder. In a Slurm allocation the first point starts one on each node, as a step of their own
which lives as long as the allocation; the points after it find them. Where there are none (a plain
`snakemake`), or they have ended or cannot be had, ranks start from nothing.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

import psutil

from scaling.launch.fork_server import protocol
from scaling.launch.fork_server.protocol import Answer, ForkServer, Order
from scaling.launch.start import slurm
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.starter import End, Launch, Ranks, Task, all_or_none, spawn, wait_until

FORK_SERVER = "SCALING_HOST"  # the folder of this run's
FORK_SERVERS_WANTED = "SCALING_HOSTS"  # 0: ranks are to start from nothing
_POLL_S = 0.02
_KILL_S = 20.0
_IMPORT_LIMIT_S, _IMPORT_EVERYWHERE_LIMIT_S = 120.0, 300.0  # on this machine, on many nodes
_ENDING_S = 10.0
_OLD_S = 30 * 86400.0  # nobody looks at the logs in a folder any more
_PID = "pid"


class NoForkServer(Exception):
    """No fork server can be had for these ranks; the text says why."""


def order_ranks(servers: Sequence[ForkServer], launch: Launch) -> Ranks:
    """Have these servers, one per node, fork the ranks.

    The last two words of the command are the point and the folder for the ranks' files.

    Raises:
        NoForkServer: one of them has too few GPUs, as where each rank is to see its own only.
        OSError: one of them does not answer.
    """
    *_, point, directory = launch.command
    fewest = min(server.gpus for server in servers)
    if launch.task.gpu != "cpu" and fewest < launch.per_node:
        raise NoForkServer(f"a fork server can use {fewest} of {launch.per_node} GPUs")
    ranks = ForkedRanks()
    with all_or_none(ranks):
        for node, server in enumerate(servers):
            first = node * launch.per_node
            order = Order(
                point=point,
                directory=directory,
                logs=str(launch.logs),
                ranks=list(range(first, first + launch.per_node)),
                world_size=launch.world_size,
                master=servers[0].name,
                environment=dict(launch.environment),
            )
            path = Path(directory) / f"order{node}.json"
            protocol.write(path, order)
            connection = protocol.call(server)
            ranks.nodes[connection] = server, order.ranks
            connection.send(str(path))
    return ranks


class ForkedRanks:
    """Ranks that fork servers have started, seen through one connection per node."""

    def __init__(self) -> None:
        self.nodes: dict[Connection, tuple[ForkServer, Sequence[int]]] = {}
        self._ends: dict[int, End] = {}

    def exits(self) -> dict[int, End]:
        """See `Ranks`."""
        while ready := wait(list(self.nodes), timeout=0):
            for connection in ready:
                assert isinstance(connection, Connection)
                self._receive(connection)
        return dict(self._ends)

    def _receive(self, connection: Connection) -> None:
        server, ranks = self.nodes[connection]
        try:
            answer: Answer = connection.recv()
        except (EOFError, OSError):
            lost_with = f"its host on {server.name}, which ended without a word"
            end = End(-signal.SIGKILL, lost_with=lost_with)
            del self.nodes[connection]
            connection.close()
        else:
            end = End(answer.code, answer.out_of_memory)
            ranks = ranks if answer.rank is None else [answer.rank]
        for rank in ranks:
            self._ends.setdefault(rank, end)

    def signal(self, number: int) -> None:
        """See `Ranks`."""
        for connection in self.nodes:
            with contextlib.suppress(OSError):  # it has gone, and its ranks with it
                connection.send(number)

    def kill(self) -> None:
        """See `Ranks`."""
        self.signal(signal.SIGKILL)
        end = time.monotonic() + _KILL_S
        while self.nodes and time.monotonic() < end:
            self.exits()
            time.sleep(_POLL_S)
        while self.nodes:
            self.nodes.popitem()[0].close()


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
    command = [*protocol.SERVER_COMMAND, str(place), str(os.getpid())]
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
    return order_ranks([protocol.read(record, ForkServer)], launch)


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


def start_on_fork_servers(launch: Launch) -> Ranks:
    """Have the fork servers of this allocation start the ranks.

    Raises:
        NoForkServer: they could not be started, or one of them does not answer.
    """
    job, restarts = slurm.job_id(launch.environment), slurm.restart_count(launch.environment)
    place = launch.logs.parent / f".hosts-{job}-{restarts}"
    try:
        return order_ranks(_servers(launch, place), launch)
    except OSError:  # ended with the steps of a point that failed: start them again
        for record in place.glob("node*.json"):
            record.unlink()
    try:
        return order_ranks(_servers(launch, place), launch)
    except OSError as error:
        raise NoForkServer(f"a fork server does not answer: {error}") from error


def _servers(launch: Launch, place: Path) -> list[ForkServer]:
    """Where the fork servers listen; started if there are none yet."""
    failed = place / "failed"
    if failed.exists():
        raise NoForkServer(failed.read_text())
    records = [place / f"node{node}.json" for node in range(launch.nodes)]

    def all_there() -> bool:
        return all(record.exists() for record in records)

    if not all_there():
        _remove_old(place)
        place.mkdir(parents=True, exist_ok=True)
        srun = slurm.fork_servers_command(launch, place)
        # in a session of its own: it outlives this point
        step = spawn(
            [*srun, *protocol.SERVER_COMMAND, str(place)],
            {**os.environ, **launch.environment},
            place / "srun.log",
        )
        if not wait_until(all_there, _IMPORT_EVERYWHERE_LIMIT_S, alive=lambda: step.poll() is None):
            step.terminate()
            failed.write_text(f"hosts did not start; see {place}")
            raise NoForkServer(failed.read_text())
    return [protocol.read(record, ForkServer) for record in records]


def _remove_old(place: Path) -> None:
    """Remove the folders of earlier starts of this job, and those that are old."""
    job = place.name.rpartition("-")[0]
    for other in place.parent.glob(".hosts-*"):
        earlier = other.name.rpartition("-")[0] == job and other != place
        if earlier or time.time() - other.lstat().st_mtime > _OLD_S:
            shutil.rmtree(other, ignore_errors=True)
