"""Choices made while a study runs: their files and what these hold.

A file holds points of one size: whether each is measured, and if not why.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.errors import InputError
from scaling.record.files import REFUSALS, point_columns
from scaling.record.row import fields_of
from scaling.record.row_files import read_rows
from scaling.study.grid import Refusal
from scaling.study.paths import StudyPaths
from scaling.study.point import Point


def chosen_ids(path: Path) -> list[str]:
    """The points of one choice that are to be measured.

    Raises:
        InputError: the file is broken.
    """
    try:
        table = pq.read_table(path, columns=["point_id", "chosen"])
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: is no table of choices: {reason}; remove it and run") from None
    return [row["point_id"] for row in table.to_pylist() if row["chosen"]]


def row_values(
    paths: StudyPaths, points: Iterable[Point], columns: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """These columns of the points' rows, by point; points without a row are left out."""
    by_path = {paths.row(point.point_id): point.point_id for point in points}
    table = read_rows([path for path in by_path if path.exists()]).table
    records = table.select(["file", *columns]).to_pylist()
    return {by_path[Path(row["file"])]: row for row in records}


def choice_table(
    points: Sequence[Point],
    reasons: Mapping[str, str],
    more: Mapping[str, Mapping[str, Any]] | None = None,
) -> pa.Table:
    """A row per point: whether it is chosen, and if not the reason from `reasons`.

    `more` gives values of further columns by point: predicted_step_time_s (seconds),
    best_step_time_s (of its size and setting), hosts (of earlier runs).
    """
    columns = {
        "point_id": pa.string(),
        "repeat": pa.int64(),
        "chosen": pa.bool_(),
        "predicted_step_time_s": pa.float64(),
        "best_step_time_s": pa.float64(),
        "hosts": pa.list_(pa.string()),
    }
    records = [
        refusal_columns(point)
        | {"point_id": name, "repeat": point.repeat, "chosen": name not in reasons}
        | {"reason": reasons.get(name)}
        | {column: values.get(name) for column, values in (more or {}).items()}
        for point in points
        for name in [point.point_id]
    ]
    refusal_fields = [field.with_nullable(True) for field in REFUSALS]
    schema = pa.schema([*refusal_fields, *(pa.field(name, kind) for name, kind in columns.items())])
    return pa.Table.from_pylist(records, schema=schema)


def refusal_columns(point: Point) -> dict[str, Any]:
    """The columns of a refusal of this point, without the reason."""
    columns = point_columns(point)
    return {name: columns[name] for name in fields_of(Refusal) if name != "reason"}


def layout_key(point: Point) -> tuple[Any, ...]:
    """Equal for the repeats of one layout."""
    return point.model, point.cluster, point.study_kind, point.layout


def setting_key(point: Point) -> tuple[Any, ...]:
    """Equal for layouts of one size that are compared with each other."""
    layout = point.layout
    return (
        point.model, point.cluster, point.study_kind, layout.seq_length, layout.setting_values,
    )  # fmt: skip
