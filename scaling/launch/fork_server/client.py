"""Orders ranks of fork servers, one on each node, and sees how the ranks end."""

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from scaling.launch.fork_server import protocol
from scaling.launch.fork_server.protocol import Answer, ForkServer, Order
from scaling.launch.start.starter import End, Placement, Ranks, all_or_none

_POLL_S = 0.02
_KILL_S = 20.0


class NoForkServer(Exception):
    """No fork server can be had for these ranks; the text says why."""


def can_fork(command: Sequence[str]) -> bool:
    """Whether a fork server can start ranks of this program: it knows one only."""
    return list(command[:3]) == [sys.executable, "-m", "scaling.train"]


def order_ranks(
    servers: Sequence[ForkServer],
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
    if point.gpu != "cpu" and (fewest := min(server.gpus for server in servers)) < per_node:
        raise NoForkServer(f"a fork server can use {fewest} of {per_node} GPUs")
    ranks = ForkedRanks()
    with all_or_none(ranks):
        for node, server in enumerate(servers):
            order = Order(
                point=command[-2],
                directory=command[-1],
                logs=str(logs),
                ranks=list(range(node * per_node, (node + 1) * per_node)),
                world_size=world_size,
                master=servers[0].name,
                environment=dict(environment),
            )
            path = Path(order.directory) / f"order{node}.json"
            protocol.write(path, order)
            connection = protocol.call(server)
            ranks.add(connection, server, order.ranks)
            connection.send(str(path))
    return ranks


class ForkedRanks:
    """Ranks that fork servers have started, seen through one connection per node."""

    def __init__(self) -> None:
        self._ends: dict[int, End] = {}
        self._nodes: dict[Connection, tuple[ForkServer, Sequence[int]]] = {}

    def add(self, connection: Connection, server: ForkServer, ranks: Sequence[int]) -> None:
        """Have a fork server that will start these ranks."""
        self._nodes[connection] = server, ranks

    def exits(self) -> dict[int, End]:
        """See `Ranks`."""
        while ready := wait(list(self._nodes), timeout=0):
            for connection in ready:
                assert isinstance(connection, Connection)
                self._hear(connection)
        return dict(self._ends)

    def _hear(self, connection: Connection) -> None:
        server, ranks = self._nodes[connection]
        try:
            answer: Answer = connection.recv()
        except (EOFError, OSError):
            lost_with = f"its host on {server.name}, which ended without a word"
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
        self._say(protocol.DUMP)

    def kill(self) -> None:
        """See `Ranks`."""
        self._say(protocol.KILL)
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
