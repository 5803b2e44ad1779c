"""One point from its file to its row."""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from scaling.errors import InputError
from scaling.grid import Point, point_from_json
from scaling.launch.environment import rank_environment
from scaling.launch.interrupts import exits_on_signals
from scaling.launch.lost_nodes import lost_nodes
from scaling.launch.oom_killer import oom_kills
from scaling.launch.row import Run, row_of
from scaling.launch.seats import last_line
from scaling.launch.srun import starter
from scaling.launch.starters import LaunchError, Ranks, Starter
from scaling.launch.verdict import Verdict, verdict
from scaling.launch.watch import Evidence, watch
from scaling.measurement import Row
from scaling.rank_files import RankFiles
from scaling.running import marked, runs_here_already
from scaling.store import aside, read_row, write_rows

RANK_COMMAND = (sys.executable, "-m", "scaling.train")
_TAKE_OVER_POLL_S = 0.2
ATTEMPTS_ON_LOST_NODES = 3
_MAY_BE_A_NODE = {"error", "hang", "timeout", "launch_failed"}  # the others are a rank's own word
HANG_AFTER_S = 300.0  # start-up on a shared file system may be silent for minutes


class NodeLost(Exception):
    """The machine failed, not the point; the text says which node was lost."""


def measure(
    point_path: Path,
    row_path: Path,
    *,
    rank_command: Sequence[str] = RANK_COMMAND,
    start: Starter | None = None,
    hang_after_s: float = HANG_AFTER_S,
) -> Row:
    """Run a point's ranks and write its row, whatever becomes of them.

    For results/<study>/rows/<point_id>.parquet the ranks' logs are
    logs/<study>/ranks/<point_id>/rank<r>.log beside results; for a row elsewhere they lie beside it
    in <point_id>.logs/. While the ranks run, <point_id>.running lies beside the row. A point that
    another process of this host measures already (its parent was killed) is waited for instead.

    Args:
        point_path: points/<point_id>.json, as `scaling plan` wrote it.
        row_path: the Parquet file to write.
        rank_command: the program of one rank; POINT and a folder for its files are appended.
        start: starts the ranks; by default srun in a Slurm allocation, processes elsewhere.
        hang_after_s: seconds without any rank getting further that count as a hang.

    Returns:
        The row that was written.

    Raises:
        InputError: there is no such point, or the file is none.
        NodeLost: a node of the allocation was lost, and not for the third time: the row of this
            attempt is set aside, and the point is still wanted.
        SystemExit: SIGINT, SIGTERM or SIGHUP came; no rank runs and no row was written.
    """
    point = _read(point_path)
    row_path = row_path.absolute()
    attempt = 1 + _earlier_attempts(row_path)
    taken_over = _by_another_process(row_path)
    if taken_over is not None:
        return taken_over
    logs = _log_directory(row_path)
    command = [*rank_command, str(point_path.absolute())]
    with (
        exits_on_signals(),
        marked(row_path, time_limit_s=point.time_limit_s),
        _run_directory(logs) as directory,
    ):
        run = _run(
            point,
            [*command, str(directory)],
            start or starter(os.environ),
            RankFiles(directory),
            logs,
            hang_after_s,
        )
        row = row_of(point, attempt, run)
        if row.outcome == "node_failed" and attempt < ATTEMPTS_ON_LOST_NODES:
            write_rows(aside(row_path, attempt), [row])
            raise NodeLost(f"{row.error_message} (attempt {attempt}); it is to run elsewhere")
        write_rows(row_path, [row])
    return row


def _run(
    point: Point,
    command: Sequence[str],
    start: Starter,
    files: RankFiles,
    logs: Path,
    hang_after_s: float,
) -> Run:
    started_at, began = time.time(), time.monotonic()
    kills_before = oom_kills()
    world_size = point.layout.world_size
    evidence = None
    try:
        if lost := lost_nodes(os.environ, silent=False):  # srun would wait for it
            raise LaunchError("nothing was started")
        ranks = start(command, point, rank_environment(point, os.environ), logs)
    except LaunchError as error:
        judged = Verdict(outcome="launch_failed", message=str(error))
    else:
        with _killed_afterwards(ranks):
            evidence = watch(
                ranks,
                files,
                world_size=world_size,
                limit_s=point.time_limit_s,
                hang_after_s=hang_after_s,
            )
        kills_after = oom_kills()
        risen = 0 if kills_before is None or kills_after is None else kills_after - kills_before
        judged = verdict(evidence, oom_kills=risen, last_lines=_last_lines(logs, evidence))
    if judged.outcome in _MAY_BE_A_NODE and (lost := lost or lost_nodes(os.environ, silent=True)):
        message = f"Slurm has lost {', '.join(lost)}: {judged.message}"
        judged = Verdict(outcome="node_failed", message=message)
    return Run(
        verdict=judged,
        results=evidence.results if evidence else {},
        stacks=files.stacks(),
        started_at=started_at,
        duration_s=time.monotonic() - began,
    )


def _read(path: Path) -> Point:
    try:
        return point_from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such point; `scaling plan` writes points") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: is no point of this version ({error}); `scaling plan` writes points"
        ) from error


def _earlier_attempts(row_path: Path) -> int:
    """Rows that `scaling retry` has set aside; an id may hold what a glob would interpret."""
    aside = row_path.parent / "retried"
    if not aside.is_dir():
        return 0
    return sum(
        path.name.startswith(f"{row_path.stem}.") and path.suffix == ".parquet"
        for path in aside.iterdir()
    )


def _by_another_process(row_path: Path) -> Row | None:
    """The row of a process that measures this point already, once it has ended; None if none."""
    if not runs_here_already(row_path):
        return None
    while runs_here_already(row_path):
        time.sleep(_TAKE_OVER_POLL_S)
    return read_row(row_path) if row_path.exists() else None


def _log_directory(row_path: Path) -> Path:
    """An empty place for the ranks' logs; an earlier attempt's are overwritten."""
    rows = row_path.parent
    if rows.name == "rows" and rows.parent.parent.name == "results":
        study, root = rows.parent, rows.parent.parent.parent
        logs = root / "logs" / study.name / "ranks" / row_path.stem
    else:
        logs = rows / f"{row_path.stem}.logs"
    logs.mkdir(parents=True, exist_ok=True)
    for old in [*logs.glob("rank*.log"), *logs.glob(".run-*")]:
        if old.is_dir():  # left by a launcher that was killed outright
            shutil.rmtree(old)
        else:
            old.unlink()
    return logs


@contextlib.contextmanager
def _run_directory(logs: Path) -> Iterator[Path]:
    """A fresh folder for the files of this run, where ranks on other nodes see it too."""
    with tempfile.TemporaryDirectory(prefix=".run-", dir=logs) as directory:
        yield Path(directory)


@contextlib.contextmanager
def _killed_afterwards(ranks: Ranks) -> Iterator[None]:
    try:
        yield
    finally:
        ranks.kill()


def _last_lines(logs: Path, evidence: Evidence) -> dict[int, str]:
    """The last line of the log of each rank that ended by itself."""
    found = {}
    for rank in evidence.exits:
        log = logs / f"rank{rank}.log"
        if log.exists() and (line := last_line(log)):  # a rank that never began has no log
            found[rank] = line
    return found
