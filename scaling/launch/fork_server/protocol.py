"""What a launcher and fork servers say to each other, by `multiprocessing.connection`.

Each proves by its HMAC challenge that it knows the server's key, which lies in a file that only its
owner may read. An order is the path of another such file, so that the ranks' environment never
crosses the network. A server answers with an `Answer` for each rank that has ended; a launcher may
send numbers of signals for them, and if one of the two goes, the ranks go.
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
ANSWER_S = 10.0  # for each step of a greeting


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkServer:
    """Where a fork server listens, and the key that gives the right to order ranks of it."""

    name: str
    port: int
    key: str
    gpus: int  # that its ranks can use


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Ranks of one point to start on one node; `ranks` counts over all nodes."""

    point: str  # path of its JSON file
    directory: str  # for the ranks' files
    logs: str
    ranks: list[int]
    world_size: int
    master: str
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """A rank has ended. `rank` is None where the server itself was told to end, and all go."""

    rank: int | None
    code: int  # -n: by signal n
    out_of_memory: bool = False  # the kernel's killer has struck here since the order


Record = TypeVar("Record", ForkServer, Order)


def write_private(path: Path, text: str) -> None:
    """Write a file whole that nobody else may read."""
    part = path.with_name(f".{path.name}.part")
    part.touch(mode=0o600)
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def write(path: Path, record: ForkServer | Order) -> None:
    """Leave a fork server's whereabouts, or an order, for one's own processes only."""
    write_private(path, json.dumps(dataclasses.asdict(record)))


def read(path: Path, kind: type[Record]) -> Record:
    """What somebody left with `write`."""
    return kind(**json.loads(path.read_text(encoding="utf-8")))


def call(server: ForkServer) -> Connection:
    """A connection to a server that has proved to be the one, and knows us.

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


def answered(link: socket.socket, key: str) -> Connection:
    """The other end of `call`, as long as it may take.

    Raises:
        AuthenticationError, AssertionError, EOFError, OSError: it is somebody else.
    """
    connection = Connection(link.detach())
    deliver_challenge(connection, key.encode())
    answer_challenge(connection, key.encode())
    return connection
