"""Orders ranks of fork servers, one on each node, and sees how the ranks end."""

import contextlib
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from scaling.launch.fork_server import protocol
from scaling.launch.fork_server.protocol import Answer, ForkServer, Order
from scaling.launch.start.starter import End, Launch, Ranks, all_or_none

FORK_SERVER = "SCALING_HOST"  # the folder of this run's
FORK_SERVERS_WANTED = "SCALING_HOSTS"  # 0: ranks are to start from nothing
_POLL_S = 0.02
_KILL_S = 20.0


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
