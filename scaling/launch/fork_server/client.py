"""Start ranks on fork servers, which import torch and the engines once for all points.

`scaling run` keeps one on this machine while its Snakemake runs; points find its folder in
`$SCALING_HOST`. In a Slurm allocation the first point starts one on each node, as a step that lives
as long as the allocation, and later points find them. Where there is none (a plain `snakemake`), or
it has ended or cannot start, ranks start as fresh processes.
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
from scaling.launch.start import slurm, starter
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.starter import Launch, PointOrProbe, RankExit, Ranks

FORK_SERVER = "SCALING_HOST"  # names the folder of this run's fork server
FORK_SERVERS_WANTED = "SCALING_HOSTS"  # 0: no fork servers
_POLL_S = 0.02
_KILL_S = 20.0
_IMPORT_LIMIT_S, _IMPORT_EVERYWHERE_LIMIT_S = 120.0, 300.0  # on this machine, on many nodes
_EXIT_S = 10.0
_OLD_S = 30 * 86400.0  # after which nobody needs the logs in a folder
_PID = "pid"


class NoForkServer(Exception):
    """No fork server can start these ranks; the message says why."""


def order_ranks(servers: Sequence[ForkServer], launch: Launch) -> Ranks:
    """Have these servers, one per node, fork the ranks.

    The last two words of the command are the point and the folder for the ranks' files.

    Raises:
        NoForkServer: a server has too few GPUs, for example where each rank may see only its own.
        OSError: a server does not answer.
    """
    *_, point, directory = launch.command
    fewest = min(server.gpus for server in servers)
    if launch.task.gpu != "cpu" and fewest < launch.per_node:
        raise NoForkServer(f"a fork server can use {fewest} of {launch.per_node} GPUs")
    ranks = ForkedRanks()
    with starter.all_or_none(ranks):
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
            protocol.write_record(path, order)
            connection = protocol.connect(server)
            ranks.nodes[connection] = server, order.ranks
            connection.send(str(path))
    return ranks


class ForkedRanks:
    """Ranks forked by fork servers, observed through one connection per node."""

    def __init__(self) -> None:
        self.nodes: dict[Connection, tuple[ForkServer, Sequence[int]]] = {}
        self._ends: dict[int, RankExit] = {}

    def exits(self) -> dict[int, RankExit]:
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
            lost_with = f"its fork server on {server.name}, which died"
            end = RankExit(-signal.SIGKILL, lost_with=lost_with)
            del self.nodes[connection]
            connection.close()
        else:
            end = RankExit(answer.code, answer.out_of_memory)
            ranks = ranks if answer.rank is None else [answer.rank]
        for rank in ranks:
            self._ends.setdefault(rank, end)

    def signal(self, number: int) -> None:
        """See `Ranks`."""
        for connection in self.nodes:
            with contextlib.suppress(OSError):  # the server is gone, and its ranks with it
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
def local_fork_server(point: PointOrProbe | None, logs: Path) -> Iterator[dict[str, str]]:
    """Keep a fork server for points like this one, if any; yields the environment for their jobs.

    Does not wait for it to start: the first point does. It ends with this block, or by itself once
    this process is gone and no point runs on it. All its ranks share the environment of its
    imports.
    """
    if point is None or os.environ.get(FORK_SERVERS_WANTED) == "0":
        yield {}
        return
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs.glob(".host-*"):  # left by a run that was killed together with its server
        if _is_dead(old):
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=".host-", dir=logs.absolute()))
    # `spawn` gives it a session of its own, so Ctrl-C does not reach it
    command = [*protocol.SERVER_COMMAND, str(folder), str(os.getpid())]
    server = starter.spawn(command, rank_environment(point, os.environ), folder / "node0.log")
    (folder / _PID).write_text(f"{server.pid} {socket.gethostname()}")
    try:
        yield {FORK_SERVER: str(folder)}
    finally:
        server.terminate()
        try:
            server.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def start_on_local_fork_server(launch: Launch) -> Ranks:
    """Have the fork server of this run start the ranks.

    Raises:
        NoForkServer: there is none, or the ranks need more than one node.
        OSError: it does not answer.
    """
    if launch.nodes > 1:
        raise NoForkServer("the fork server of this run serves one machine")
    folder = Path(launch.environment[FORK_SERVER])
    record = folder / "node0.json"
    if not starter.wait_until(record.exists, _IMPORT_LIMIT_S, alive=lambda: _lives(folder)):
        raise NoForkServer(f"no fork server listens at {folder}")
    return order_ranks([protocol.read_record(record, ForkServer)], launch)


def _lives(folder: Path) -> bool:
    try:
        process = psutil.Process(int((folder / _PID).read_text().split()[0]))
        return process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.NoSuchProcess):
        return False


def _is_dead(folder: Path) -> bool:
    """Whether a fork server of this machine had this folder and no longer lives."""
    try:
        _, machine = (folder / _PID).read_text().split()
    except (OSError, ValueError):  # it is just starting
        return False
    return machine == socket.gethostname() and not _lives(folder)


def start_on_fork_servers(launch: Launch) -> Ranks:
    """Have the fork servers of this allocation start the ranks.

    Raises:
        NoForkServer: they could not be started, or one does not answer.
    """
    job, restarts = slurm.job_id(launch.environment), slurm.restart_count(launch.environment)
    folder = launch.logs.parent / f".hosts-{job}-{restarts}"
    try:
        return order_ranks(_servers(launch, folder), launch)
    except OSError:  # they ended with the steps of a failed point: start them again
        for record in folder.glob("node*.json"):
            record.unlink()
    try:
        return order_ranks(_servers(launch, folder), launch)
    except OSError as error:
        raise NoForkServer(f"a fork server does not answer: {error}") from error


def _servers(launch: Launch, folder: Path) -> list[ForkServer]:
    """The allocation's fork servers, started if there are none yet."""
    failed = folder / "failed"
    if failed.exists():
        raise NoForkServer(failed.read_text())
    records = [folder / f"node{node}.json" for node in range(launch.nodes)]

    def all_listen() -> bool:
        return all(record.exists() for record in records)

    if not all_listen():
        _remove_old(folder)
        folder.mkdir(parents=True, exist_ok=True)
        srun = slurm.fork_servers_command(launch, folder)
        # `spawn` gives it a session of its own, so it outlives this point
        step = starter.spawn(
            [*srun, *protocol.SERVER_COMMAND, str(folder)],
            launch.environment,
            folder / "srun.log",
        )
        if not starter.wait_until(
            all_listen, _IMPORT_EVERYWHERE_LIMIT_S, lambda: step.poll() is None
        ):
            step.terminate()
            failed.write_text(f"the fork servers did not start; see {folder}")
            raise NoForkServer(failed.read_text())
    return [protocol.read_record(record, ForkServer) for record in records]


def _remove_old(folder: Path) -> None:
    """Remove the folders of earlier starts of this job, and old ones."""
    job = folder.name.rpartition("-")[0]
    for other in folder.parent.glob(".hosts-*"):
        earlier = other.name.rpartition("-")[0] == job and other != folder
        if earlier or time.time() - other.lstat().st_mtime > _OLD_S:
            shutil.rmtree(other, ignore_errors=True)
