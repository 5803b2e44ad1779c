"""The interface between the launcher and the ways to start ranks."""

import contextlib
import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scaling.launch.not_measured import end_if_told
from scaling.probe.plan import ProbePlan
from scaling.record.rank_files import RankExit
from scaling.study.point import Point

PointOrProbe = Point | ProbePlan
_POLL_S = 0.02
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class LaunchError(Exception):
    """The ranks could not be started; its text is the row's error message."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One process per rank of a point or probe, in block order: neighbouring ranks share a node."""

    command: Sequence[str]  # the program of one rank
    task: PointOrProbe
    environment: Mapping[str, str]  # of all ranks
    logs: Path  # rank r writes to logs/rank<r>.log

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.task.world_size

    @property
    def per_node(self) -> int:
        """Ranks on each node."""
        return min(self.task.world_size, self.task.gpus_per_node)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return -(-self.world_size // self.per_node)


class Ranks(Protocol):
    """The ranks of one point or probe, running or ended."""

    def exits(self) -> dict[int, RankExit]:
        """How each rank ended, for those that have ended."""

    def signal(self, number: int) -> None:
        """Send every running rank a signal; on SIGUSR1 a rank writes its stacks to its log."""

    def kill(self) -> None:
        """Kill every running rank and its children, and wait until they are gone."""


# Starts all ranks, or raises LaunchError and leaves none running.
Starter = Callable[[Launch], Ranks]


@contextlib.contextmanager
def all_or_none(ranks: Ranks) -> Iterator[None]:
    """Kill the ranks started so far if the block fails."""
    try:
        yield
    except BaseException:
        ranks.kill()
        raise


def wait_until(
    done: Callable[[], object], limit_s: float, alive: Callable[[], object] = lambda: True
) -> bool:
    """Wait until `done`, at most `limit_s` seconds and only while `alive`; whether it is done."""
    end = time.monotonic() + limit_s
    while not done():
        end_if_told()
        if not alive() or time.monotonic() > end:
            time.sleep(_POLL_S)  # its last action may not be visible yet
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
    """Start a process in its own session, with its output in `log`.

    Raises:
        OSError: the program is missing, or no process could be created.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            command, env=dict(environment), stdin=stdin, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=preexec_fn,
        )  # fmt: skip


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Called in a child: have the kernel send it this signal when its parent dies (Linux only)."""
    if _libc is not None:
        _libc.prctl(_SET_PARENT_DEATH_SIGNAL, number)
