"""Rows and points on disk: Parquet and JSON, each file written whole or not at all."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.grid import Plan, Refusal, columns_of
from scaling.measurement import Row, fields_of

_ASIDE = "retried"
_ARROW = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "list[float]": pa.list_(pa.float64()),
    "list[str]": pa.list_(pa.string()),
}


def arrow_schema(row_type: type) -> pa.Schema:
    """The Arrow schema of a row dataclass: its fields, in order, nullable where it says so."""
    return pa.schema(
        [
            pa.field(name, _ARROW[kind], nullable=nullable)
            for name, (kind, nullable) in fields_of(row_type).items()
        ]
    )


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    part = _part(path)
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of bytes whole or not at all."""
    part = _part(path)
    part.write_bytes(content)
    part.replace(path)


def write_text_if_new(path: Path, text: str) -> None:
    """Leave a file that already says the same alone, so that its time keeps its meaning."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file whole or not at all: a killed job leaves no half file for DuckDB."""
    part = _part(path)
    pq.write_table(table, part)
    part.replace(path)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows/<point_id>.parquet."""
    records = [dataclasses.asdict(row) for row in rows]
    write_table(path, pa.Table.from_pylist(records, schema=arrow_schema(Row)))


def read_row(path: Path) -> Row:
    """The row of rows/<point_id>.parquet."""
    (record,) = pq.read_table(path).to_pylist()
    return Row(**record)


def aside(row_path: Path, attempt: int) -> Path:
    """Where the row of a failed attempt is kept once the point shall run again."""
    return row_path.parent / _ASIDE / f"{row_path.stem}.{attempt}.parquet"


def attempts_aside(row_path: Path) -> int:
    """Attempts at a point whose rows are kept aside; an id may hold what a glob would interpret."""
    folder = row_path.parent / _ASIDE
    if not folder.is_dir():
        return 0
    return sum(
        path.name.startswith(f"{row_path.stem}.") and path.suffix == ".parquet"
        for path in folder.iterdir()
    )


def write_plan(directory: Path, plan: Plan) -> None:
    """Write points/*.json, points.parquet and refused.parquet of a study.

    A file that already says the same is left alone, so that its time keeps its meaning.
    """
    for point in plan.points:
        write_text_if_new(directory / "points" / f"{point.point_id}.json", point.to_json())
    records = [columns_of(point) for point in plan.points]
    _write_table_if_new(directory / "points.parquet", _known_table(records))
    refusals = [dataclasses.asdict(refusal) for refusal in plan.refusals]
    table = pa.Table.from_pylist(refusals, schema=arrow_schema(Refusal))
    _write_table_if_new(directory / "refused.parquet", table)


def _write_table_if_new(path: Path, table: pa.Table) -> None:
    try:
        known = pq.read_table(path)
    except (OSError, pa.ArrowInvalid):  # none, or a broken one
        known = None
    if known is None or not known.equals(table):
        write_table(path, table)


def _known_table(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Points as a table: the row's columns that are known beforehand, in the row's order."""
    schema = pa.schema([field for field in arrow_schema(Row) if field.name in records[0]])
    return pa.Table.from_pylist(list(records), schema=schema)


def _part(path: Path) -> Path:
    """A name beside the file that no other writer uses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}.part")
