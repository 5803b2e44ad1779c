"""The ranks of a point or a probe, from their start to the verdict on them."""

import contextlib
import dataclasses
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scaling.cluster.node import host_name
from scaling.launch.judge import Limits, Verdict, verdict, watch
from scaling.launch.not_measured import KilledFromOutside, end_if_told
from scaling.launch.start.rank_exits import last_error, last_line
from scaling.launch.start.slurm import lost_nodes, memory_limit_bytes
from scaling.launch.start.starter import Launch, LaunchError, Starter
from scaling.record.rank_files import RankFiles, RankResult, Stack

# Outcomes that a lost node may have caused; ranks report the others themselves.
_STACK = re.compile(r"\(most recent call first\)")  # as faulthandler writes it
_MAYBE_LOST = {"error", "hang", "timeout", "launch_failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """One finished run of ranks and, for a point, what they left. Times in seconds.

    `started_at` is seconds since the epoch by the clock of the host they were launched on.
    `duration_s` excludes suspensions from outside.
    """

    verdict: Verdict
    started_at: float = field(default_factory=time.time)
    duration_s: float = 0.0
    suspensions_s: tuple[float, ...] = ()
    results: dict[int, RankResult] = field(default_factory=dict)
    stacks: dict[int, Stack] = field(default_factory=dict)
    load_average: float | None = None
    excluded_hosts: list[str] = field(default_factory=list)
    launched_on: str = field(default_factory=lambda: host_name(os.environ))


def run_ranks(launch: Launch, files: RankFiles, start: Starter, limits: Limits) -> FinishedRun:
    """Start the ranks, wait until none runs, and judge the outcome.

    Raises:
        KilledFromOutside: somebody ended the ranks, and no node was lost; or this process.
    """
    run = FinishedRun(verdict=Verdict(outcome="ok"), load_average=os.getloadavg()[0])
    began = time.monotonic()
    try:
        if lost := lost_nodes(os.environ, silent=False):  # srun would wait for the lost node
            raise LaunchError("nothing was started")
        ranks = start(launch)
    except LaunchError as error:
        judged = Verdict(outcome="launch_failed", message=str(error))
    else:
        try:
            evidence = watch(ranks, files, launch.world_size, limits)
        finally:
            ranks.kill()
        run = dataclasses.replace(run, suspensions_s=evidence.suspensions_s)
        if evidence.stopped is not None and files.leave_stacks:
            evidence = dataclasses.replace(evidence, mute=_mute(launch))
        judged = verdict(
            evidence,
            lambda rank: last_error(launch.logs / f"rank{rank}.log"),
            on_cpu=launch.task.gpu == "cpu",
            memory_limit_bytes=memory_limit_bytes(os.environ),
        )
    if judged.outcome != "ok":  # perhaps by the same signal
        end_if_told()
    if judged.outcome in _MAYBE_LOST and (lost := lost or lost_nodes(os.environ, silent=True)):
        message = f"Slurm has lost {', '.join(lost)}: {judged.message}"
        judged = Verdict(outcome="node_failed", message=message)
    elif judged.lost_peers and launch.nodes > 1:
        hosts = sorted({stack.host for stack in files.read(Stack).values()})
        message = f"the network between {', '.join(hosts) or 'the nodes'} was cut: {judged.message}"
        judged = Verdict(outcome="node_failed", message=message)
    elif judged.from_outside:
        raise KilledFromOutside(judged.message)
    duration_s = time.monotonic() - began - sum(run.suspensions_s)
    return dataclasses.replace(run, verdict=judged, duration_s=duration_s)


def _mute(launch: Launch) -> frozenset[int]:
    """The ranks whose logs hold no stack, although all were asked for theirs."""
    ranks = range(launch.world_size)
    return frozenset(r for r in ranks if last_line(launch.logs / f"rank{r}.log", _STACK) is None)


@contextlib.contextmanager
def rank_files(logs: Path) -> Iterator[RankFiles]:
    """A fresh folder below `logs` for the files of one run, where ranks on other nodes see it too.

    Logs and folders of earlier runs are removed.
    """
    logs.mkdir(parents=True, exist_ok=True)
    for old in [*logs.glob("rank*.log"), *logs.glob("rank*.gz"), *logs.glob(".run-*")]:
        if old.is_dir():  # left by a launcher that was killed
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink()
    # what cannot be removed, such as a file that is still open on NFS, costs no measurement
    with tempfile.TemporaryDirectory(
        prefix=".run-", dir=logs, ignore_cleanup_errors=True
    ) as directory:
        yield RankFiles(Path(directory))
