"""Rows and points on disk: Parquet and JSON, each file written whole or not at all."""

import contextlib
import dataclasses
import errno
import functools
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.errors import InputError
from scaling.record.row import PointColumns, Row, fields_of
from scaling.study.grid import Plan, Refusal
from scaling.study.paths import StudyPaths, retried
from scaling.study.point import columns_of

_LONGEST_STEM = 200  # of the 255 bytes that a file's name may have
_SCALARS = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
_ARROW = _SCALARS | {f"list[{kind}]": pa.list_(of) for kind, of in _SCALARS.items()}


@functools.cache
def arrow_schema(row_type: type) -> pa.Schema:
    """The Arrow schema of a row dataclass: its fields, in order, nullable where it says so."""
    fields = fields_of(row_type).items()
    return pa.schema([pa.field(name, _ARROW[kind], nullable) for name, (kind, nullable) in fields])


class CannotWrite(InputError, OSError):
    """A file could not be written (disk full, no permission); the text names it and says why."""


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes `path` once it is whole and on the disk, or goes again.

    Data go to the disk before the name does, and the name before this returns: after a power cut
    there is the old file, the new one, or none, never half of one.

    Raises:
        CannotWrite: the system refused, and nothing was left behind.
    """
    # a name beside the file that no other writer uses
    part = path.with_name(f".{path.name[:_LONGEST_STEM]}.{os.getpid()}.part")
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            _to_disk(part)
            part.replace(path)
            _to_disk(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
    except OSError as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror or str(error).splitlines()[0]
        raise CannotWrite(f"{path}: cannot be written: {reason}") from error


def _to_disk(path: Path) -> None:
    """Ask for a file, or for the names in a folder, to be on the disk, where that can be asked."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, text.encode("utf-8", errors="replace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of bytes whole or not at all."""
    with whole(path) as part:
        part.write_bytes(content)


def write_text_if_changed(path: Path, text: str) -> None:
    """Leave a file that already says the same alone, so that its time keeps its meaning."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file whole or not at all: a killed job leaves no half file for DuckDB.

    One row needs neither dictionaries nor statistics, which are a third of what it costs to read.
    """
    many = len(table) > 1
    with whole(path) as part:
        pq.write_table(table, part, use_dictionary=many, write_statistics=many)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows/<point_id>.parquet."""
    write_table(path, table_of(rows))


def table_of(rows: Sequence[Any], row_type: type = Row) -> pa.Table:
    """Rows of one dataclass as a table with its columns."""
    records = [dataclasses.asdict(row) for row in rows]
    return pa.Table.from_pylist(records, schema=arrow_schema(row_type))


def read_row(path: Path) -> Row:
    """The row of rows/<point_id>.parquet.

    Raises:
        InputError: the file holds no row of this version.
    """
    try:
        (record,) = pq.ParquetFile(path).read().to_pylist()
        return Row(**record)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: holds no row of this version: {reason}") from error


def retried_attempts(row_path: Path) -> int:
    """Attempts at a point whose rows are kept aside."""
    folder = retried(row_path, 1).parent
    return len(list(folder.glob(f"{glob.escape(row_path.stem)}.*.parquet")))


def write_points(directory: Path, plan: Plan) -> None:
    """Write points/*.json, points.parquet and refused.parquet of a study.

    A file that already says the same is left alone, so that its time keeps its meaning.
    """
    paths = StudyPaths(directory)
    for point in plan.points:
        write_text_if_changed(paths.point(point.point_id), point.to_json())
    records = [columns_of(point) for point in plan.points]
    table = pa.Table.from_pylist(records, schema=arrow_schema(PointColumns))
    _write_table_if_changed(paths.points_table, table)
    _write_table_if_changed(paths.refused, table_of(plan.refusals, Refusal))


def _write_table_if_changed(path: Path, table: pa.Table) -> None:
    try:
        written = pq.read_table(path)
    except (OSError, pa.ArrowInvalid):  # none, or a broken one
        written = None
    if written is None or not written.equals(table):
        write_table(path, table)
