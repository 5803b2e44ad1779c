"""The files of rounds, and the keys by which points are one layout or one comparison."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.errors import InputError
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import Allocation
from scaling.study.point import Point, point_from_json


def chosen_ids(path: Path) -> tuple[list[str], bool]:
    """The points that a round measures, and whether it is followed by another one.

    The first round without a point that had no row yet is the last.

    Raises:
        InputError: the file is broken.
    """
    try:
        table = pq.read_table(path, columns=["point_id", "chosen", "measured"])
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: is no table of a round: {reason}; remove it and run") from None
    chosen = [row for row in table.to_pylist() if row["chosen"]]
    return [row["point_id"] for row in chosen], any(not row["measured"] for row in chosen)


def allocation_of_added(paths: StudyPaths, point_id: str) -> Allocation:
    """The allocation of a point that a round added to the plan."""
    text = paths.point(point_id).read_text(encoding="utf-8")
    return point_from_json(text).allocation


def layout_key(point: Point) -> tuple[Any, ...]:
    """Equal for the repeats of one layout."""
    return point.model, point.cluster, point.study_kind, point.layout


def setting_key(point: Point) -> tuple[Any, ...]:
    """Equal for layouts of one size that are compared with each other."""
    layout = point.layout
    return (
        point.model, point.cluster, point.study_kind, layout.seq_length, layout.setting_values,
    )  # fmt: skip
