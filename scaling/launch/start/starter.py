"""What a launcher asks of whoever starts ranks, and all that the watcher knows of them."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class LaunchError(Exception):
    """The ranks could not be started; its text is the row's error message."""


class Placement(Protocol):
    """What a starter must know of a point, or of a probe: how many ranks, and where."""

    @property
    def world_size(self) -> int:
        """Ranks."""

    @property
    def gpus_per_node(self) -> int:
        """Ranks a node holds at most."""

    @property
    def gpu(self) -> str:
        """The catalogue's name; `cpu` where a rank is no GPU."""


@dataclass(frozen=True, slots=True)
class End:
    """How a rank ended."""

    code: int  # its exit code; -n: killed by signal n
    out_of_memory: bool = False  # the kernel's out-of-memory killer struck where it lived meanwhile
    lost_with: str | None = None  # what took it along, of a rank that could not end by itself


class Ranks(Protocol):
    """The ranks of one point, running or ended."""

    def exits(self) -> dict[int, End]:
        """How each rank ended, for those that have."""

    def dump_stacks(self) -> None:
        """Ask every rank that still runs to write all its stacks into its log."""

    def kill(self) -> None:
        """End every rank that still runs, and what it started, and wait until they are gone."""


class Starter(Protocol):
    """Starts one process per rank."""

    def __call__(
        self, command: Sequence[str], point: Placement, environment: Mapping[str, str], logs: Path
    ) -> Ranks:
        """Start them; rank r writes to logs/rank<r>.log.

        Raises:
            LaunchError: not all could be started; none is left running.
        """


@contextlib.contextmanager
def all_or_none(ranks: Ranks) -> Iterator[None]:
    """Kill the ranks that have started where not all of them can be."""
    try:
        yield
    except BaseException:
        ranks.kill()
        raise


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    stdin: int = subprocess.DEVNULL,
    preexec_fn: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """A process in a session of its own that writes into a log of its own.

    Raises:
        OSError: there is no such program, or no room for a process.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=preexec_fn,
        )
