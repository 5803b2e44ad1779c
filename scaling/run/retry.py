"""Set the rows of failed points aside, so that these points run again."""

import itertools
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scaling.errors import CannotWrite, InputError, did_you_mean
from scaling.record.row import Outcome
from scaling.record.row_files import Unusable, read_rows, row_files_in
from scaling.study.paths import StudyPaths, retried


def outcomes(text: str) -> set[str]:
    """Parse outcomes such as `timeout,node_failed`."""
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
    """Move rows of points that a smaller memory limit of the job killed; their number.

    `mem_mb` is what jobs ask for now; 0 is all of a node.
    """
    asked = mem_mb * 2**20 or float("inf")
    return _set_aside(study_dir, lambda row: (row["memory_limit_bytes"] or asked) < asked)


def set_unreadable_aside(study_dir: Path) -> list[Unusable]:
    """Move row files that hold no valid row too, so that their points run; which they were.

    Not for use within Snakemake, which would miss an output that it has seen.
    """
    rows = read_rows(sorted(row_files_in(StudyPaths(study_dir).rows)))
    return [unusable for unusable in rows.without_a_row() if _move(unusable.path, 1)]


def _set_aside(study_dir: Path, again: Callable[[dict[str, Any]], bool]) -> int:
    rows = read_rows(sorted(row_files_in(StudyPaths(study_dir).rows)))
    records = rows.table.select(["file", "outcome", "attempt", "memory_limit_bytes"]).to_pylist()
    return sum(_move(Path(row["file"]), row["attempt"]) for row in records if again(row))


def _move(path: Path, attempt: int) -> bool:
    """Move a row to the number of its attempt, or the next that is free; False if it is gone."""
    kept = next(kept for n in itertools.count(attempt) if not (kept := retried(path, n)).exists())
    try:
        kept.parent.mkdir(exist_ok=True)
        path.replace(kept)
    except FileNotFoundError:  # another process was faster
        return False
    except OSError as error:
        raise CannotWrite(f"{kept}: cannot be written: {error.strerror}") from error
    return True
