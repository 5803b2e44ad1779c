"""Failed points that shall run again: their rows are set aside, never thrown away."""

import typing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.errors import InputError, did_you_mean
from scaling.measurement import Outcome
from scaling.store import aside, attempts_aside


def outcomes(text: str) -> set[str]:
    """The outcomes named in `timeout,node_failed`.

    Raises:
        InputError: one of them is no outcome, or it is `ok`.
    """
    failures = set(typing.get_args(Outcome)) - {"ok"}
    named = {part.strip() for part in text.split(",") if part.strip()}
    for name in sorted(named - failures):
        raise InputError(f"--outcome: {name!r} is no failure: {did_you_mean(name, failures)}")
    if not named:
        raise InputError(f"--outcome: is empty; allowed: {', '.join(sorted(failures))}")
    return named


def set_aside(study_dir: Path, which: set[str]) -> int:
    """Move rows with these outcomes to rows/retried/<point_id>.<attempt>.parquet; how many.

    A row that cannot be read is moved with them.
    """
    moved = 0
    for path in sorted((study_dir / "rows").glob("*.parquet")):
        try:
            row = pq.read_table(path, columns=["outcome", "attempt"]).to_pylist()[-1]
        except (OSError, pa.ArrowException, IndexError):  # whatever it was, it is wanted again
            row = {"outcome": None, "attempt": 1 + attempts_aside(path)}
        if row["outcome"] in which or row["outcome"] is None:
            kept = aside(path, row["attempt"])
            kept.parent.mkdir(exist_ok=True)
            path.replace(kept)
            moved += 1
    return moved
