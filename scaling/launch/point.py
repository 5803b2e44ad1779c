"""One point from its file to its row."""

import contextlib
import dataclasses
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from scaling.cluster import node
from scaling.cluster.hardware import gpu_named
from scaling.cluster.node import NvidiaGpu
from scaling.launch.judge import Limits, Verdict
from scaling.launch.point_files import read_point
from scaling.launch.ranks import Run, rank_files, run_ranks
from scaling.launch.start import slurm
from scaling.launch.start.choose import starter
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.starter import Launch, Starter
from scaling.launch.start.torchrun import nodes_of
from scaling.launch.unsettled import (
    KilledFromOutside,
    NodeLost,
    NoDevices,
    NotWritten,
    exits_on_signals,
)
from scaling.record.files import read_row, retried_attempts, write_rows
from scaling.record.rank_files import RankResult, Stack
from scaling.record.row import Row
from scaling.record.running import live_runner, mark_running
from scaling.study.paths import rank_logs, retried, running_marker
from scaling.study.point import Point
from scaling.study.time_limits import STARTUP_S, point_limits

RANK_COMMAND = (sys.executable, "-m", "scaling.train")
_OTHER_VENDORS = Path("/dev/kfd")  # AMD's driver
_RELEASED = "SUBMITIT_RELEASED"  # a word of the executor's: the file that says so
_TAKE_OVER_POLL_S = 0.2
ATTEMPTS_ON_LOST_NODES = 3
_MOST_OF = 0.9  # of a stop: ranks and their launcher are not stopped in one instant


def measure(
    point_path: Path,
    row_path: Path,
    *,
    rank_command: Sequence[str] = RANK_COMMAND,
    start: Starter | None = None,
    hang_after_s: float | None = None,
    excluded: Sequence[str] = (),
) -> Row:
    """Run a point's ranks and write its row, whatever becomes of them.

    For results/<study>/rows/<point_id>.parquet the ranks' logs are
    logs/<study>/ranks/<point_id>/rank<r>.log beside results; for a row elsewhere they lie beside it
    in <point_id>.logs/. While the ranks run, <point_id>.running lies beside the row. A point that
    another process of this host measures already (its parent was killed) is waited for instead.

    To `rank_command`, the program of one rank, POINT and a folder for its files are appended;
    `start` starts the ranks, by default as `starter` says. Seconds without any rank getting further
    that count as a hang are by default what the point's predicted step time says, and more while
    ranks start. The allocation was to leave out the hosts `excluded`.

    Raises:
        InputError: there is no such point, or the file is none.
        NodeLost: a node of the allocation was lost, and not for the third time: the row of this
            attempt is set aside, and the point is still wanted.
        KilledFromOutside: somebody ended the ranks; no row was written.
        NoDevices: this node of an allocation does not show the point's GPUs; no row was written.
        NotWritten: a file could not be, as on a full disk; what was measured is in the log.
        SystemExit: SIGINT, SIGTERM or SIGHUP came; no rank runs and no row was written.
    """
    point = read_point(point_path)
    row_path = row_path.absolute()
    attempt = 1 + retried_attempts(row_path)
    waited = False
    while (runner := live_runner(running_marker(row_path))) is not None and runner.is_here:
        waited = True
        time.sleep(_TAKE_OVER_POLL_S)
    if waited and row_path.exists():
        return read_row(row_path)
    command = [*rank_command, str(point_path.absolute())]
    start = start or starter(os.environ)
    try:
        with exits_on_signals(), mark_running(row_path, time_limit_s=point.time_limit_s):
            run = _run(point, command, start, row_path, hang_after_s)
            # numpy and DuckDB come with it: the ranks need not wait for them
            from scaling.launch.row import row_of

            row = row_of(point, attempt, dataclasses.replace(run, excluded_hosts=list(excluded)))
            lost = row.outcome == "node_failed" and attempt < ATTEMPTS_ON_LOST_NODES
            path = retried(row_path, attempt) if lost else row_path
            try:
                write_rows(path, [row])
            except OSError as error:
                # what it cost to know goes to the log
                print(json.dumps(dataclasses.asdict(row)), file=sys.stderr)  # noqa: T201
                raise NotWritten(
                    f"{path}: the row could not be written ({error.strerror or error}); "
                    "its numbers are above"
                ) from error
            if lost:
                raise NodeLost(
                    f"node_failed: {row.error_message} (attempt {attempt}); it is to run elsewhere"
                )
    except OSError as error:
        raise NotWritten(f"{error.filename or row_path}: {error.strerror or error}") from error
    return row


def _run(
    point: Point, command: Sequence[str], start: Starter, row_path: Path, hang_after_s: float | None
) -> Run:
    """Run the point's ranks, unless their devices are not there."""
    load_average = os.getloadavg()[0]
    logs = rank_logs(point.study, point.point_id, row_path)
    with rank_files(logs) as files:
        if missing := missing_devices(point, os.environ):
            if slurm.job_id(os.environ) is not None:  # another node may have them
                raise NoDevices(missing)
            judged = Verdict(outcome="launch_failed", message=missing)
            return Run(verdict=judged, started_at=time.time(), duration_s=0.0)
        _, usual_hang_after_s = point_limits(
            point.expected_step_s, point.warmup_steps, point.measured_steps, point.time_limit_s
        )
        run = run_ranks(
            Launch(
                [*command, str(files.directory)], point, rank_environment(point, os.environ), logs
            ),
            files,
            start,
            Limits(
                limit_s=point.time_limit_s,
                hang_after_s=hang_after_s or usual_hang_after_s,
                start_hang_after_s=hang_after_s or STARTUP_S,
            ),
        )
        # the next point of this pack may start: no rank runs any more, and a row is yet to be
        # written. A point that failed may have left something behind; its end is waited for.
        if run.verdict.outcome == "ok" and (released := os.environ.get(_RELEASED)) is not None:
            with contextlib.suppress(OSError):  # then the next one starts when this one has ended
                Path(released).touch()
        for trace in files.directory.glob("rank*.trace.json.gz"):
            trace.replace(logs / trace.name)
        run = dataclasses.replace(
            run,
            results=files.read(RankResult),
            stacks=files.read(Stack),
            load_average=load_average,
        )
    _not_while_suspended(run)
    return run


def _not_while_suspended(run: Run) -> None:
    """Raises KilledFromOutside where a measured step holds a time in which everything stood still.

    Such a step is longer by that time than the usual one of its kind: the full ones, or short ones
    of as many micro-batches.
    """
    if run.verdict.outcome != "ok" or not run.suspensions_s:
        return
    shortest = min(run.suspensions_s)
    for result in run.results.values():
        alike = {0: result.step_times_s} if result.step_times_s else {}
        short = zip(result.short_accumulations or (), result.short_step_times_s or (), strict=True)
        for accumulation, seconds in short:
            alike.setdefault(accumulation, []).append(seconds)
        for times in alike.values():
            if max(times) - statistics.median(times) > _MOST_OF * shortest:
                raise KilledFromOutside(
                    f"all was stopped for {shortest:.0f} s within a measured step, which says "
                    "nothing"
                )


def missing_devices(point: Point, environment: Mapping[str, str]) -> str | None:
    """What is missing of the point's GPUs on this host; None where nothing is.

    Where ranks run on other hosts only (from a login node), nothing can be said here. A card that
    has fallen off its bus is missing too: one of eight is enough for the point to fail.
    """
    if point.gpu == "cpu" or gpu_named(point.gpu).vendor != "nvidia":
        return None
    in_slurm = slurm.job_id(environment) is not None
    if in_slurm and slurm.node_name(environment) is None:
        return None
    if not in_slurm and len(nodes_of(environment)) > 1:
        return None
    gpus, reason = node.nvidia_gpus()
    if not gpus and _OTHER_VENDORS.exists():
        return None
    needed = min(point.world_size, point.gpus_per_node)
    shown = shown_devices(gpus, node.visible_devices(environment))
    if shown >= needed:
        return None
    host = slurm.node_name(environment) or socket.gethostname()
    text = f"{host} shows {shown} of the {needed} GPUs that the point needs on a node"
    return f"{text} ({reason})" if reason else text


def shown_devices(gpus: Sequence[NvidiaGpu], named: Sequence[str] | None) -> int:
    """How many devices ranks on this host can have.

    Each rank may be told one of its own by Slurm, so a list of some counts for all; an empty one
    for none. A slice of a GPU (MIG) is a device.
    """
    if named is None:
        return len(gpus)
    slices = sum(entry.startswith("MIG-") for entry in named)
    return slices if slices or not named else len(gpus)
