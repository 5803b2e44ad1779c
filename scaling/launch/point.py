"""One point from its file to its row."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scaling.launch.interrupts import exits_on_signals
from scaling.launch.ranks import HANG_AFTER_S, emptied, run_directory, run_ranks
from scaling.launch.row import Run, row_of
from scaling.launch.srun import starter
from scaling.launch.starters import Starter
from scaling.measurement import Row
from scaling.point_files import read_point
from scaling.rank_files import RankFiles
from scaling.running import marked, runs_here_already
from scaling.store import aside, attempts_aside, read_row, write_rows

RANK_COMMAND = (sys.executable, "-m", "scaling.train")
_TAKE_OVER_POLL_S = 0.2
ATTEMPTS_ON_LOST_NODES = 3


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
    point = read_point(point_path)
    row_path = row_path.absolute()
    attempt = 1 + attempts_aside(row_path)
    taken_over = _by_another_process(row_path)
    if taken_over is not None:
        return taken_over
    logs = _log_directory(row_path)
    command = [*rank_command, str(point_path.absolute())]
    with (
        exits_on_signals(),
        marked(row_path, time_limit_s=point.time_limit_s),
        run_directory(logs) as directory,
    ):
        files = RankFiles(directory)
        load_average = os.getloadavg()[0]
        ended = run_ranks(
            point,
            [*command, str(directory)],
            start or starter(os.environ),
            files,
            logs,
            limit_s=point.time_limit_s,
            hang_after_s=hang_after_s,
        )
        for trace in directory.glob("rank*.trace.json.gz"):
            trace.replace(logs / trace.name)
        run = Run(
            verdict=ended.verdict,
            results=files.results(),
            stacks=files.stacks(),
            started_at=ended.started_at,
            duration_s=ended.duration_s,
            load_average=load_average,
        )
        row = row_of(point, attempt, run)
        if row.outcome == "node_failed" and attempt < ATTEMPTS_ON_LOST_NODES:
            write_rows(aside(row_path, attempt), [row])
            raise NodeLost(f"{row.error_message} (attempt {attempt}); it is to run elsewhere")
        write_rows(row_path, [row])
    return row


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
        return emptied(root / "logs" / study.name / "ranks" / row_path.stem)
    return emptied(rows / f"{row_path.stem}.logs")
