"""Measure one point: from its file to its row."""

import contextlib
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from scaling.cluster import node
from scaling.cluster.hardware import gpu_named
from scaling.errors import CannotWrite
from scaling.launch.judge import Limits, Verdict
from scaling.launch.not_measured import (
    KilledFromOutside,
    NodeLost,
    NoDevices,
    NotWritten,
    file_errors_as_not_written,
    noting_signals,
)
from scaling.launch.other_program import run_trainer
from scaling.launch.point_files import read_point
from scaling.launch.ranks import FinishedRun, rank_files, run_ranks
from scaling.launch.start import slurm
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.forked import RANK_COMMAND, start_ranks
from scaling.launch.start.starter import Launch, Starter
from scaling.layout.engines import ENGINES
from scaling.record.files import read_row, retried_rows, write_rows
from scaling.record.rank_files import Stack
from scaling.record.row import Outcome, Row
from scaling.record.running import live_runner, mark_running
from scaling.study.paths import check_writable, rank_logs, retried, running_marker
from scaling.study.point import Point
from scaling.study.time_limits import MOST_STARTUP_S, point_limits

_AMD_DRIVER = Path("/dev/kfd")
_RELEASED = "SUBMITIT_RELEASED"  # the executor's variable: a file that frees the machine
_TAKE_OVER_POLL_S = 0.2
ATTEMPTS_ON_LOST_NODES = 3
_SUSPENDED_SHARE = 0.9  # of a suspension: ranks and launcher are not suspended in one instant


def measure(
    point_path: Path,
    row_path: Path,
    *,
    rank_command: Sequence[str] = RANK_COMMAND,
    start: Starter = start_ranks,
    hang_after_s: float | None = None,
    excluded: Sequence[str] = (),
    implied: bool = True,
) -> Row:
    """Run a point's ranks and write its row, whatever becomes of them.

    The row is results/<study>/rows/<point_id>.parquet; while the ranks run, <point_id>.running lies
    beside it. Their logs are logs/<study>/ranks/<point_id>/rank<r>.log beside results. A row
    elsewhere has them in <point_id>.logs/ beside it. If another process of this host still measures
    the point (its parent was killed), it is waited for.

    Args:
        point_path: the point's file.
        row_path: the row to write.
        rank_command: the program of one rank; a copy of the point and a folder are appended.
        start: starts the ranks.
        hang_after_s: seconds without progress of any rank that count as a hang; by default they
            follow from the predicted step time and are more while ranks start.
        excluded: the hosts that the allocation was to leave out, for the row.
        implied: whether a point is ruled out unstarted if its twin with a smaller micro-batch ran
            out of memory.

    Raises:
        InputError: the point's file is missing or invalid.
        NotMeasured: no row was written. A node was lost or srun failed, and attempts remain; or
            somebody ended the ranks or this process (SIGINT, SIGTERM, SIGHUP); or this node of an
            allocation lacks the point's GPUs; or a file could not be written, and then the log has
            the measurement.
    """
    point = read_point(point_path)
    row_path = row_path.absolute()
    waited = False
    while (runner := live_runner(running_marker(row_path))) is not None and runner.is_here:
        waited = True
        time.sleep(_TAKE_OVER_POLL_S)
    if waited and row_path.exists():
        return read_row(row_path)
    earlier = retried_rows(row_path)
    attempt = 1 + len(earlier)
    with (
        file_errors_as_not_written(row_path),
        noting_signals(),
        mark_running(row_path, time_limit_s=point.time_limit_s),
    ):
        check_writable(row_path)
        # imported late: they load numpy and DuckDB, and the ranks need not wait for them
        if implied and point.layout.micro_batch_size > 1:
            from scaling.launch.make_row import implied_row

            if (row := implied_row(point, attempt, row_path.parent)) is not None:
                write_rows(row_path, [row])
                return row
        run = _run(point, rank_command, start, row_path, hang_after_s)
        from scaling.launch.make_row import row_of

        row = row_of(point, attempt, dataclasses.replace(run, excluded_hosts=list(excluded)))
        lost = _is_to_run_elsewhere(row.outcome, earlier)
        path = retried(row_path, attempt) if lost else row_path
        try:
            write_rows(path, [row])
        except CannotWrite as error:
            # the log keeps the measurement
            print(json.dumps(dataclasses.asdict(row)), file=sys.stderr)  # noqa: T201
            raise NotWritten(f"{error}; the row's numbers are above") from error
        if lost:
            raise NodeLost(
                f"{row.outcome}: {row.error_message} (attempt {attempt}); it is to run elsewhere"
            )
    return row


def _run(
    point: Point,
    rank_command: Sequence[str],
    start: Starter,
    row_path: Path,
    hang_after_s: float | None,
) -> FinishedRun:
    logs = rank_logs(point.study, point.point_id, row_path)
    with rank_files(logs) as files:
        if missing := missing_devices(point, os.environ):
            if slurm.job_id(os.environ) is not None:  # another node may have devices
                raise NoDevices(missing)
            return FinishedRun(verdict=Verdict(outcome="launch_failed", message=missing))
        _, usual_hang_after_s = point_limits(
            point.expected_step_s, point.warmup_steps, point.measured_steps, point.time_limit_s
        )
        limits = Limits(
            limit_s=point.time_limit_s,
            hang_after_s=hang_after_s or usual_hang_after_s,
            start_hang_after_s=hang_after_s or MOST_STARTUP_S,
        )
        if point.layout.engine not in ENGINES:
            return run_trainer(point, start, logs, files.directory, limits)
        command = [*rank_command, str(files.write_task(point.to_json())), str(files.directory)]
        launch = Launch(command, point, rank_environment(point, os.environ), logs)
        run = run_ranks(launch, files, start, limits)
        # No rank runs any more, so the next point of this pack may start while the row is written.
        # Not after a failure, which may have left processes behind.
        all_finished = len(files.finished()) == point.world_size
        if all_finished and (released := os.environ.get(_RELEASED)) is not None:
            with contextlib.suppress(OSError):  # then the next point starts after this one
                Path(released).touch()
        for trace in files.directory.glob("rank*.trace.json.gz"):
            trace.replace(logs / trace.name)
        run = dataclasses.replace(run, results=files.results(), stacks=files.read(Stack))
    _check_no_step_was_suspended(run)
    return run


def _is_to_run_elsewhere(outcome: Outcome, earlier: Sequence[Path]) -> bool:
    """Whether a node was lost or srun failed, and attempts remain after these earlier rows."""
    in_slurm = slurm.job_id(os.environ) is not None
    if outcome != "node_failed" and not (outcome == "launch_failed" and in_slurm):
        return False
    from scaling.record.row_files import read_rows

    outcomes: list[str] = read_rows(earlier).table["outcome"].to_pylist()
    # with each final row that `scaling retry` moves, as many attempts begin again
    lost = outcomes.count("node_failed") + outcomes.count("launch_failed")
    return (lost + 1) % ATTEMPTS_ON_LOST_NODES != 0


def _check_no_step_was_suspended(run: FinishedRun) -> None:
    """Refuse a run with a suspension inside a measured step.

    Such a step exceeds the median by about the suspension. A long short step may do so too, and
    then the point runs again for nothing.

    Raises:
        KilledFromOutside: a measured step was suspended.
    """
    if run.verdict.outcome != "ok" or not run.suspensions_s:
        return
    shortest = min(run.suspensions_s)
    for result in run.results.values():
        for times in filter(None, (result.step_times_s, result.short_step_times_s)):
            if max(times) - statistics.median(times) > _SUSPENDED_SHARE * shortest:
                raise KilledFromOutside(
                    f"all was stopped for {shortest:.0f} s within a measured step, which says "
                    "nothing"
                )


def missing_devices(point: Point, environment: Mapping[str, str]) -> str | None:
    """A sentence about the GPUs that this host lacks for the point; None if it has enough.

    Also None where ranks run on other hosts only (from a login node). A card that has fallen off
    its bus is missing: one of eight is enough for the point to fail.
    """
    if point.gpu == "cpu" or gpu_named(point.gpu).vendor != "nvidia":
        return None
    if slurm.job_id(environment) is not None and not node.is_on_a_node(environment):
        return None
    gpus, reason = node.nvidia_gpus()
    if not gpus and _AMD_DRIVER.exists():
        return None
    needed, shown = min(point.world_size, point.gpus_per_node), len(gpus)
    # Slurm may show each rank one GPU of its own, so a list with entries does not limit the count.
    # An empty list means no GPU. MIG slices are devices.
    if (named := node.visible_devices(environment)) is not None:
        slices = sum(entry.startswith("MIG-") for entry in named)
        shown = slices if slices or not named else shown
    if shown >= needed:
        return None
    host = node.host_name(environment)
    text = f"{host} shows {shown} of the {needed} GPUs that the point needs on a node"
    return f"{text} ({reason})" if reason else text
