"""The files of rounds."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.errors import InputError


def chosen_ids(path: Path) -> tuple[list[str], bool]:
    """The points that a round measures, and whether it is followed by another one.

    The first round without a point that had no row yet is the last.
    """
    try:
        table = pq.read_table(path, columns=["point_id", "chosen", "measured"])
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: is no table of a round: {reason}; remove it and run") from None
    chosen = [row for row in table.to_pylist() if row["chosen"]]
    return [row["point_id"] for row in chosen], any(not row["measured"] for row in chosen)
