"""Set the rows of failed points aside, so that these points run again."""

import itertools
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scaling.errors import InputError, did_you_mean
from scaling.record.row import Outcome
from scaling.record.row_files import read_rows, row_files_in
from scaling.study.paths import StudyPaths, retried


def outcomes(text: str) -> set[str]:
    """Parse outcomes such as `timeout,node_failed`.

    Raises:
        InputError: a name is no outcome or is `ok`, or there is none.
    """
    failures = set(typing.get_args(Outcome)) - {"ok"}
    named = {part.strip() for part in text.split(",") if part.strip()}
    for name in sorted(named - failures):
        raise InputError(f"--outcome: {name!r} is no failure: {did_you_mean(name, failures)}")
    if not named:
        raise InputError(f"--outcome: is empty; allowed: {', '.join(sorted(failures))}")
    return named


def set_aside(study_dir: Path, outcomes: set[str]) -> int:
    """Move rows with these outcomes to rows/retried/<point_id>.<attempt>.parquet; their number."""
    return _set_aside(study_dir, lambda row: row["outcome"] in outcomes)


def set_aside_for_memory(study_dir: Path, mem_mb: int) -> int:
    """Set aside rows of points that a smaller memory limit of the job killed; their number.

    `mem_mb` is what jobs ask for now; 0 is all of a node.
    """
    asked = mem_mb * 2**20 or float("inf")
    return _set_aside(study_dir, lambda row: (row["memory_limit_bytes"] or asked) < asked)


def _set_aside(study_dir: Path, again: Callable[[dict[str, Any]], bool]) -> int:
    moved = 0
    rows = read_rows(sorted(row_files_in(StudyPaths(study_dir).rows)))
    names = ["file", "outcome", "attempt", "memory_limit_bytes"]
    for row in rows.table.select(names).to_pylist():
        if again(row):
            path = Path(row["file"])
            kept = next(  # its own number, unless that is taken
                kept
                for attempt in itertools.count(row["attempt"])
                if not (kept := retried(path, attempt)).exists()
            )
            kept.parent.mkdir(exist_ok=True)
            path.replace(kept)
            moved += 1
    return moved
