"""What a launcher asks of whoever starts ranks, and all that the watcher knows of them."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scaling.probe.plan import ProbePlan
from scaling.study.point import Point

Task = Point | ProbePlan  # ranks on nodes; its GPU is `cpu` where a rank is none
_POLL_S = 0.02


class LaunchError(Exception):
    """The ranks could not be started; its text is the row's error message."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One process per rank of a task, in block order: neighbours in rank share a node."""

    command: Sequence[str]  # of a rank
    task: Task
    environment: Mapping[str, str]  # of all ranks
    logs: Path  # rank r writes to logs/rank<r>.log

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self.task.world_size

    @property
    def per_node(self) -> int:
        """Ranks on each node."""
        return min(self.task.world_size, self.task.gpus_per_node)

    @property
    def nodes(self) -> int:
        """Nodes that hold them."""
        return -(-self.world_size // self.per_node)


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

    def signal(self, number: int) -> None:
        """Send every rank that still runs a signal; on SIGUSR1 it writes its stacks to its log."""

    def kill(self) -> None:
        """End every rank that still runs, and what it started, and wait until they are gone."""


# Starts all ranks, or raises LaunchError and leaves none running.
Starter = Callable[[Launch], Ranks]


@contextlib.contextmanager
def all_or_none(ranks: Ranks) -> Iterator[None]:
    """Kill the ranks that have started where not all of them can be."""
    try:
        yield
    except BaseException:
        ranks.kill()
        raise


def wait_until(
    done: Callable[[], object], limit_s: float, alive: Callable[[], object] = lambda: True
) -> bool:
    """Whether it is done within so many seconds, while what does it is alive."""
    end = time.monotonic() + limit_s
    while not done():
        if not alive() or time.monotonic() > end:
            time.sleep(_POLL_S)  # what it did last may not be seen yet
            return bool(done())
        time.sleep(_POLL_S)
    return True


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
            command, env=dict(environment), stdin=stdin, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=preexec_fn,
        )  # fmt: skip
