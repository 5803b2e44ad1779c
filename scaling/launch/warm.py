"""Ranks forked by hosts that have torch and DeepSpeed imported: one host per node of an allocation.

The first point of an allocation starts the hosts as a step of their own, which lives as long as the
allocation; the points after it find them. Where they cannot be had, ranks start from nothing.
"""

import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.launch.starters import Placed, Ranks

_POLL_S = 0.02
_IMPORT_LIMIT_S = 300.0
_CONNECT_S = 10.0
_KILL_S = 20.0


class NoHosts(Exception):
    """There are no hosts in this allocation; the text says why."""


def knows(command: Sequence[str]) -> bool:
    """Whether a host can fork ranks of this program: hosts know one only."""
    return list(command[:3]) == [sys.executable, "-m", "scaling.train"]


def start_on_hosts(
    command: Sequence[str], point: Placed, environment: Mapping[str, str], logs: Path
) -> Ranks:
    """Have the hosts of this allocation fork the ranks, in block order.

    Args:
        command: of a rank that starts from nothing; its last two words are the point and the
            folder for the ranks' files.
        point: says how many ranks on how many nodes.
        environment: of the ranks.
        logs: rank r writes to logs/rank<r>.log.

    Raises:
        NoHosts: they could not be started, or one of them does not answer.
    """
    world_size = point.world_size
    per_node = min(world_size, point.gpus_per_node)
    nodes = -(-world_size // per_node)
    place = _place(environment, logs.parent)
    hosts = _hosts(nodes, per_node, environment, place)
    try:
        connections = [_connect(host) for host in hosts]
    except OSError:
        # ended with the steps of a point that failed: start them again
        for record in place.glob("node*.json"):
            record.unlink()
        hosts = _hosts(nodes, per_node, environment, place)
        try:
            connections = [_connect(host) for host in hosts]
        except OSError as error:
            raise NoHosts(f"a host does not answer: {error}") from error
    return _order(connections, hosts, command, point, environment, logs)


def order_ranks(
    hosts: Sequence[Mapping[str, Any]],
    command: Sequence[str],
    point: Placed,
    environment: Mapping[str, str],
    logs: Path,
) -> Ranks:
    """Have these hosts, one per node, fork the ranks; see `start_on_hosts`.

    Raises:
        OSError: one of them does not answer.
    """
    connections = [_connect(host) for host in hosts]
    return _order(connections, hosts, command, point, environment, logs)


def read_host(record: Path) -> dict[str, Any]:
    """Where a host said it listens."""
    said: dict[str, Any] = json.loads(record.read_text())
    return said


def _order(
    connections: Sequence[socket.socket],
    hosts: Sequence[Mapping[str, Any]],
    command: Sequence[str],
    point: Placed,
    environment: Mapping[str, str],
    logs: Path,
) -> Ranks:
    world_size = point.world_size
    per_node = min(world_size, point.gpus_per_node)
    for node, (connection, host) in enumerate(zip(connections, hosts, strict=True)):
        order = {
            "token": host["token"],
            "point": command[-2],
            "directory": command[-1],
            "logs": str(logs),
            "ranks": list(range(node * per_node, (node + 1) * per_node)),
            "world_size": world_size,
            "master": hosts[0]["host"],
            "environment": dict(environment),
        }
        connection.sendall((json.dumps(order) + "\n").encode())
    return HostedRanks(connections, per_node)


class HostedRanks:
    """Ranks that hosts have forked, seen through one connection per node."""

    def __init__(self, connections: Sequence[socket.socket], per_node: int) -> None:
        self._codes: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._text: dict[socket.socket, str] = {}
        for node, connection in enumerate(connections):
            connection.setblocking(False)
            ranks = range(node * per_node, (node + 1) * per_node)
            self._selector.register(connection, selectors.EVENT_READ, ranks)
            self._text[connection] = ""

    def exits(self) -> dict[int, int]:
        """See `Ranks`. Ranks of a host that has gone were ended with it, by SIGTERM as it was."""
        for key, _ in self._selector.select(timeout=0):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            self._read(connection, key.data)
        return dict(self._codes)

    def _read(self, connection: socket.socket, ranks: range) -> None:
        try:
            received = connection.recv(65536).decode()
        except ConnectionError:
            received = ""
        if not received:
            for rank in ranks:
                self._codes.setdefault(rank, -signal.SIGTERM)
            self._selector.unregister(connection)
            connection.close()
            return
        *lines, self._text[connection] = (self._text[connection] + received).split("\n")
        for line in lines:
            answer = json.loads(line)
            self._codes[answer["rank"]] = answer["code"]

    def dump_stacks(self) -> None:
        """See `Ranks`."""
        self._say("dump\n")

    def kill(self) -> None:
        """See `Ranks`."""
        self._say("kill\n")
        end = time.monotonic() + _KILL_S
        while self._selector.get_map() and time.monotonic() < end:
            self.exits()
            time.sleep(_POLL_S)
        for connection in self._open():
            connection.close()
        self._selector.close()

    def _say(self, word: str) -> None:
        for connection in self._open():
            try:
                connection.sendall(word.encode())
            except OSError:
                continue  # it has gone, and its ranks with it

    def _open(self) -> list[socket.socket]:
        registered = self._selector.get_map()
        if registered is None:  # closed
            return []
        return [
            key.fileobj for key in registered.values() if isinstance(key.fileobj, socket.socket)
        ]


def _connect(host: Mapping[str, Any]) -> socket.socket:
    return socket.create_connection((host["host"], host["port"]), timeout=_CONNECT_S)


def _place(environment: Mapping[str, str], folder: Path) -> Path:
    """Where the hosts of this allocation say where they listen."""
    restart = environment.get("SLURM_RESTART_COUNT", "0")
    return folder / f".hosts-{environment['SLURM_JOB_ID']}-{restart}"


def _hosts(
    nodes: int, per_node: int, environment: Mapping[str, str], place: Path
) -> list[dict[str, Any]]:
    """Where the hosts listen; started if there are none yet."""
    records = [place / f"node{node}.json" for node in range(nodes)]
    if (place / "failed").exists():
        raise NoHosts((place / "failed").read_text())
    if not all(record.exists() for record in records):
        place.mkdir(parents=True, exist_ok=True)
        _start(nodes, per_node, environment, place, records)
    return [read_host(record) for record in records]


def _start(
    nodes: int, per_node: int, environment: Mapping[str, str], place: Path, records: list[Path]
) -> None:
    cpus = per_node * int(environment.get("SLURM_CPUS_PER_TASK", "1"))
    command = [
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
        *(f"--cpus-per-task={cpus}", "--cpu-bind=none", "--kill-on-bad-exit=1", "--input=none"),
        *("--overlap", "--mem=0", "--job-name=hosts", f"--output={place}/node%t.log"),
        *shlex.split(environment.get("SRUN_ARGS", "")),
        *(sys.executable, "-m", "scaling.train.host", str(place)),
    ]
    with (place / "srun.log").open("wb") as log:
        srun = subprocess.Popen(
            command,
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
            raise NoHosts(why)
        time.sleep(_POLL_S)
