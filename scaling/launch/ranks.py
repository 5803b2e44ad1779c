"""One run of ranks, of a point or of a probe: started, watched to their end, judged."""

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scaling.launch.judge.verdict import Verdict, verdict
from scaling.launch.judge.watch import Evidence, watch
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.rank_exits import last_line
from scaling.launch.start.slurm import lost_nodes
from scaling.launch.start.starter import LaunchError, Placement, Starter
from scaling.launch.unsettled import KilledFromOutside
from scaling.record.rank_files import RankFiles, RankResult, Stack
from scaling.study.time_limits import HANG_AFTER_S, STARTUP_S

_MAY_BE_A_NODE = {"error", "hang", "timeout", "launch_failed"}  # the others are a rank's own word


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run of ranks that is over. Seconds; `started_at` since the epoch.

    The times in which everything was stopped from outside are no part of the duration.
    """

    verdict: Verdict
    started_at: float
    duration_s: float
    suspensions_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a point's ranks, over. Times in seconds.

    `started_at` is since the epoch, by the clock of the host they were launched on.
    """

    verdict: Verdict
    results: dict[int, RankResult]
    stacks: dict[int, Stack]
    started_at: float
    duration_s: float
    load_average: float | None = None
    excluded_hosts: list[str] = field(default_factory=list)
    launched_on: str = field(default_factory=socket.gethostname)


def run_ranks(
    point: Placement,
    command: Sequence[str],
    start: Starter,
    files: RankFiles,
    logs: Path,
    *,
    limit_s: float,
    hang_after_s: float = HANG_AFTER_S,
    start_hang_after_s: float = STARTUP_S,
) -> Ended:
    """Start the ranks, wait until none runs, and judge what became of them.

    Args:
        point: how many ranks on how many nodes.
        command: the program of one rank.
        start: starts it once per rank.
        files: where the ranks say what they do.
        logs: rank r writes to logs/rank<r>.log.
        limit_s: seconds after which they are ended.
        hang_after_s: seconds without any rank getting further that count as a hang.
        start_hang_after_s: the same until a rank has done its first step.

    Raises:
        KilledFromOutside: somebody ended the ranks, and no node was lost.
    """
    started_at, began = time.time(), time.monotonic()
    suspensions_s: tuple[float, ...] = ()
    interrupted: KilledFromOutside | None = None
    try:
        if lost := lost_nodes(os.environ, silent=False):  # srun would wait for it
            raise LaunchError("nothing was started")
        ranks = start(command, point, rank_environment(point, os.environ), logs)
    except LaunchError as error:
        judged = Verdict(outcome="launch_failed", message=str(error))
    else:
        with contextlib.ExitStack() as at_the_end:
            at_the_end.callback(ranks.kill)
            evidence = watch(
                ranks,
                files,
                world_size=point.world_size,
                limit_s=limit_s,
                hang_after_s=hang_after_s,
                start_hang_after_s=start_hang_after_s,
            )
        suspensions_s = evidence.suspensions_s
        try:
            judged = verdict(evidence, last_lines=_last_lines(logs, evidence))
        except KilledFromOutside as why:
            judged, interrupted = Verdict(outcome="error", message=str(why)), why
    if judged.outcome in _MAY_BE_A_NODE and (lost := lost or lost_nodes(os.environ, silent=True)):
        message = f"Slurm has lost {', '.join(lost)}: {judged.message}"
        judged = Verdict(outcome="node_failed", message=message)
    elif interrupted is not None:
        raise interrupted
    return Ended(
        verdict=judged,
        started_at=started_at,
        duration_s=time.monotonic() - began - sum(suspensions_s),
        suspensions_s=suspensions_s,
    )


def emptied(logs: Path) -> Path:
    """The folder, made if need be, without what an earlier run left."""
    logs.mkdir(parents=True, exist_ok=True)
    for old in [*logs.glob("rank*.log"), *logs.glob("rank*.gz"), *logs.glob(".run-*")]:
        if old.is_dir():  # left by a launcher that was killed outright
            shutil.rmtree(old)
        else:
            old.unlink()
    return logs


@contextlib.contextmanager
def run_directory(logs: Path) -> Iterator[Path]:
    """A fresh folder for the files of this run, where ranks on other nodes see it too."""
    with tempfile.TemporaryDirectory(prefix=".run-", dir=logs) as directory:
        yield Path(directory)


def _last_lines(logs: Path, evidence: Evidence) -> dict[int, str]:
    """The last line of the log of each rank that ended by itself."""
    last_lines = {}
    for rank in evidence.exits:
        log = logs / f"rank{rank}.log"
        if log.exists() and (line := last_line(log)):  # a rank that never began has no log
            last_lines[rank] = line
    return last_lines
