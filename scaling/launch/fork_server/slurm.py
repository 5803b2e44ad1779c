"""Ranks forked by hosts that have torch and DeepSpeed imported: one host per node of an allocation.

The first point of an allocation starts the hosts as a step of their own, which lives as long as the
allocation; the points after it find them. Where they cannot be had, ranks start from nothing.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from scaling.launch.fork_server import protocol as wire
from scaling.launch.fork_server.protocol import Answer, ForkServer, Order
from scaling.launch.start.starter import End, Placement, Ranks

_POLL_S = 0.02
_IMPORT_LIMIT_S = 300.0
_KILL_S = 20.0


class NoForkServer(Exception):
    """There are no hosts in this allocation; the text says why."""


def can_fork(command: Sequence[str]) -> bool:
    """Whether a host can fork ranks of this program: hosts know one only."""
    return list(command[:3]) == [sys.executable, "-m", "scaling.train"]


def start_on_fork_servers(
    command: Sequence[str], point: Placement, environment: Mapping[str, str], logs: Path
) -> Ranks:
    """Have the hosts of this allocation fork the ranks, in block order.

    Args:
        command: of a rank that starts from nothing; its last two words are the point and the
            folder for the ranks' files.
        point: says how many ranks on how many nodes.
        environment: of the ranks.
        logs: rank r writes to logs/rank<r>.log.

    Raises:
        NoForkServer: they could not be started, or one of them does not answer.
    """
    per_node = min(point.world_size, point.gpus_per_node)
    nodes = -(-point.world_size // per_node)
    place = _place(environment, logs.parent)
    try:
        return order_ranks(
            _hosts(nodes, per_node, environment, place), command, point, environment, logs
        )
    except OSError:
        # ended with the steps of a point that failed: start them again
        for record in place.glob("node*.json"):
            record.unlink()
    try:
        return order_ranks(
            _hosts(nodes, per_node, environment, place), command, point, environment, logs
        )
    except OSError as error:
        raise NoForkServer(f"a host does not answer: {error}") from error


def order_ranks(
    hosts: Sequence[ForkServer],
    command: Sequence[str],
    point: Placement,
    environment: Mapping[str, str],
    logs: Path,
) -> Ranks:
    """Have these hosts, one per node, fork the ranks; see `start_on_fork_servers`.

    Raises:
        NoForkServer: one of them has too few GPUs, as where each rank is to see its own only.
        OSError: one of them does not answer.
    """
    world_size = point.world_size
    per_node = min(world_size, point.gpus_per_node)
    if point.gpu != "cpu" and (fewest := min(host.gpus for host in hosts)) < per_node:
        raise NoForkServer(f"a host can use {fewest} of {per_node} GPUs")
    ranks = ForkedRanks()
    try:
        for node, host in enumerate(hosts):
            order = Order(
                point=command[-2],
                directory=command[-1],
                logs=str(logs),
                ranks=list(range(node * per_node, (node + 1) * per_node)),
                world_size=world_size,
                master=hosts[0].name,
                environment=dict(environment),
            )
            path = Path(order.directory) / f"order{node}.json"
            wire.write(path, order)
            connection = wire.call(host)
            ranks.add(connection, host, order.ranks)
            connection.send(str(path))
    except BaseException:
        ranks.kill()
        raise
    return ranks


class ForkedRanks:
    """Ranks that hosts have forked, seen through one connection per node."""

    def __init__(self) -> None:
        self._ends: dict[int, End] = {}
        self._nodes: dict[Connection, tuple[ForkServer, Sequence[int]]] = {}

    def add(self, connection: Connection, host: ForkServer, ranks: Sequence[int]) -> None:
        """Have a host that will fork these ranks."""
        self._nodes[connection] = host, ranks

    def exits(self) -> dict[int, End]:
        """See `Ranks`."""
        while ready := wait(list(self._nodes), timeout=0):
            for connection in ready:
                assert isinstance(connection, Connection)
                self._hear(connection)
        return dict(self._ends)

    def _hear(self, connection: Connection) -> None:
        host, ranks = self._nodes[connection]
        try:
            answer: Answer = connection.recv()
        except (EOFError, OSError):
            lost_with = f"its host on {host.name}, which ended without a word"
            self._end(ranks, End(-signal.SIGKILL, lost_with=lost_with))
            del self._nodes[connection]
            connection.close()
            return
        end = End(answer.code, answer.out_of_memory)
        self._end(ranks if answer.rank is None else [answer.rank], end)

    def _end(self, ranks: Sequence[int], end: End) -> None:
        for rank in ranks:
            self._ends.setdefault(rank, end)

    def dump_stacks(self) -> None:
        """See `Ranks`."""
        self._say(wire.DUMP)

    def kill(self) -> None:
        """See `Ranks`."""
        self._say(wire.KILL)
        end = time.monotonic() + _KILL_S
        while self._nodes and time.monotonic() < end:
            self.exits()
            time.sleep(_POLL_S)
        while self._nodes:
            self._nodes.popitem()[0].close()

    def _say(self, what: str) -> None:
        for connection in self._nodes:
            try:
                connection.send(what)
            except OSError:
                continue  # it has gone, and its ranks with it


def _place(environment: Mapping[str, str], folder: Path) -> Path:
    """Where the hosts of this allocation say where they listen."""
    restart = environment.get("SLURM_RESTART_COUNT", "0")
    return folder / f".hosts-{environment['SLURM_JOB_ID']}-{restart}"


def _hosts(
    nodes: int, per_node: int, environment: Mapping[str, str], place: Path
) -> list[ForkServer]:
    """Where the hosts listen; started if there are none yet."""
    records = [place / f"node{node}.json" for node in range(nodes)]
    if (place / "failed").exists():
        raise NoForkServer((place / "failed").read_text())
    if not all(record.exists() for record in records):
        place.mkdir(parents=True, exist_ok=True)
        _start(nodes, per_node, environment, place, records)
    return [wire.read_server(record) for record in records]


def fork_servers_command(
    nodes: int, per_node: int, environment: Mapping[str, str], place: Path
) -> list[str]:
    """`srun` and its options, for one host on each node that may use all of it."""
    # -c would mean these cores only (--exact): all of the node, whatever was said of one task
    cpus = environment.get("SLURM_CPUS_ON_NODE") or str(
        per_node * int(environment.get("SLURM_CPUS_PER_TASK", "1"))
    )
    return [
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
        *(f"--cpus-per-task={cpus}", "--cpu-bind=none", "--kill-on-bad-exit=1", "--input=none"),
        *(
            "--overlap",
            "--mem=0",
            "--export=ALL",
            "--job-name=hosts",
            f"--output={place}/node%t.log",
        ),
        *shlex.split(environment.get("SRUN_ARGS", "")),
        *(sys.executable, "-m", "scaling.launch.fork_server.server", str(place)),
    ]


def _start(
    nodes: int, per_node: int, environment: Mapping[str, str], place: Path, records: list[Path]
) -> None:
    with (place / "srun.log").open("wb") as log:
        srun = subprocess.Popen(
            fork_servers_command(nodes, per_node, environment, place),
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # it outlives this point
        )
    end = time.monotonic() + _IMPORT_LIMIT_S
    while not all(record.exists() for record in records):
        if srun.poll() is not None or time.monotonic() > end:
            srun.terminate()
            why = f"hosts did not start; see {place}"
            (place / "failed").write_text(why)
            raise NoForkServer(why)
        time.sleep(_POLL_S)
