"""What launchers and fork servers send each other, over `multiprocessing.connection`.

Each side proves by an HMAC challenge that it knows the server's key, which lies in a file that only
its owner may read. An order is the path of another such file, so that the ranks' environment never
crosses the network. The server sends an `Answer` for each rank that has ended; the launcher may
send signal numbers for the ranks. If either side goes, the ranks are killed.
"""

import dataclasses
import json
import socket
import struct
import sys
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import TypeVar

SERVER_COMMAND = (sys.executable, "-m", "scaling.launch.fork_server.server")  # then its folder
ANSWER_S = 10.0  # limit for each step of the handshake


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkServer:
    """Where a fork server listens, and the key that entitles clients to order ranks."""

    name: str
    port: int
    key: str
    gpus: int  # usable by its ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The ranks of one point to start on one node, numbered over all nodes."""

    point: str  # path of its JSON file
    directory: str  # for the ranks' files
    logs: str
    ranks: list[int]
    world_size: int
    master: str
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """A rank has ended. `rank` is None if the server was told to end, and with it all ranks."""

    rank: int | None
    code: int  # exit code; -n: killed by signal n
    out_of_memory: bool = False  # the kernel's out-of-memory killer struck here since the order


Record = TypeVar("Record", ForkServer, Order)


def write_private(path: Path, text: str) -> None:
    """Write a file atomically that only its owner may read."""
    part = path.with_name(f".{path.name}.part")
    part.touch(mode=0o600)
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def write_record(path: Path, record: ForkServer | Order) -> None:
    """Write a record that only the user's own processes may read."""
    write_private(path, json.dumps(dataclasses.asdict(record)))


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read what `write_record` wrote."""
    return kind(**json.loads(path.read_text(encoding="utf-8")))


def connect(server: ForkServer) -> Connection:
    """Connect to a server, after both sides have proved that they know the key.

    Raises:
        OSError: it does not answer, or does not know the key.
    """
    link = socket.create_connection((server.name, server.port), timeout=ANSWER_S)
    link.settimeout(None)
    timeout = struct.pack("ll", int(ANSWER_S), 0)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    connection = Connection(link.detach())
    try:
        answer_challenge(connection, server.key.encode())
        deliver_challenge(connection, server.key.encode())
    except (AuthenticationError, AssertionError, EOFError, OSError) as error:
        connection.close()
        raise OSError(f"{server.name}:{server.port} is not our fork server any more") from error
    return connection


def accept(link: socket.socket, key: str) -> Connection:
    """The server's side of `connect`; waits without a limit.

    Raises:
        AuthenticationError, AssertionError, EOFError, OSError: the client does not know the key.
    """
    connection = Connection(link.detach())
    deliver_challenge(connection, key.encode())
    answer_challenge(connection, key.encode())
    return connection
