"""Write and read rows and points, Parquet and JSON; a file is written whole or not at all."""

import contextlib
import dataclasses
import errno
import glob
import os
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.errors import CannotWrite, InputError
from scaling.layout.shapes import counts_per_token
from scaling.record.row import PointColumns, Row, fields_of
from scaling.study.grid import Plan, Refusal
from scaling.study.paths import StudyPaths, retried
from scaling.study.point import Point

_LONGEST_STEM = 200  # of the 255 bytes that a file's name may have
_SCALARS = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
_ARROW = _SCALARS | {f"list[{kind}]": pa.list_(of) for kind, of in _SCALARS.items()}


def arrow_schema(row_type: type) -> pa.Schema:
    """The Arrow schema of a row dataclass: its fields in order, nullable where None is allowed."""
    fields = fields_of(row_type).items()
    return pa.schema([pa.field(name, _ARROW[kind], nullable) for name, (kind, nullable) in fields])


POINTS, REFUSALS, ROWS = map(arrow_schema, (PointColumns, Refusal, Row))


@contextlib.contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which then replaces `path`; on an error it is removed.

    The data are on the disk before the file gets its name, and the name before this returns: after
    a power cut there is the old file, the new one or none, but never half of one.

    Raises:
        CannotWrite: the system refused; nothing is left behind.
    """
    if not path.name:  # `.` or `/`
        raise CannotWrite(f"{path}: cannot be written: {os.strerror(errno.EISDIR)}")
    # in the same folder, under a name that no other writer uses, be it a thread or on another host
    part = path.with_name(f".{path.name[:_LONGEST_STEM]}.{secrets.token_hex(4)}.part")
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
        # Arrow wraps the system's words in its own
        reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
        raise CannotWrite(f"{path}: cannot be written: {reason}") from error


def _to_disk(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk if the file system can do that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file system cannot
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, text.encode("utf-8", errors="replace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of bytes whole or not at all."""
    with replacement(path) as part:
        part.write_bytes(content)


def write_text_if_changed(path: Path, text: str) -> None:
    """Write a text file unless it already has this text, so that its time says when it changed."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file whole or not at all, so that a killed job leaves no half file."""
    # for one row, dictionaries and statistics are a third of the cost of reading
    many = len(table) > 1
    with replacement(path) as part:
        pq.write_table(table, part, use_dictionary=many, write_statistics=many)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows/<point_id>.parquet."""
    write_table(path, table_of(rows))


def table_of(rows: Sequence[Any], schema: pa.Schema = ROWS) -> pa.Table:
    """Make a table of rows of the dataclass that has this schema."""
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names}
    return pa.Table.from_pydict(columns, schema=schema)


def read_row(path: Path) -> Row:
    """Read the row of rows/<point_id>.parquet."""
    try:
        (record,) = pq.ParquetFile(path).read().to_pylist()
        return Row(**record)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: holds no row of this version: {reason}") from error


def retried_rows(row_path: Path) -> list[Path]:
    """The rows of earlier attempts at a point, which were moved so that it runs again."""
    folder = retried(row_path, 1).parent
    return sorted(folder.glob(f"{glob.escape(row_path.stem)}.*.parquet"))


def write_points(directory: Path, plan: Plan) -> None:
    """Write refused.parquet, points/*.json and points.parquet of a study.

    A file that would not change is not written, so that its time says when it changed.
    """
    paths = StudyPaths(directory)
    _write_table_if_changed(paths.refused, table_of(plan.refusals, REFUSALS))

    def write(point: Point) -> None:
        write_text_if_changed(paths.point(point.point_id), point.to_json())

    with ThreadPoolExecutor(16) as pool:  # each write waits for the disk
        list(pool.map(write, plan.points))
    records = [point_columns(point) for point in plan.points]
    _write_table_if_changed(paths.points_table, pa.Table.from_pylist(records, schema=POINTS))


def _write_table_if_changed(path: Path, table: pa.Table) -> None:
    try:
        written = pq.read_table(path)
    except (OSError, pa.ArrowInvalid):  # none, or a broken one
        written = None
    if written is None or not written.equals(table):
        write_table(path, table)


def read_round(path: Path) -> tuple[list[str], list[str], bool]:
    """The points that a round measures, those it leaves, and whether another round follows.

    The first round without a point that had no row yet is the last.
    """
    try:
        table = pq.read_table(path, columns=["point_id", "chosen", "measured"])
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: is no table of a round: {reason}; remove it and run") from None
    rows = table.to_pylist()
    chosen = [row["point_id"] for row in rows if row["chosen"]]
    left = [row["point_id"] for row in rows if not row["chosen"]]
    return chosen, left, any(row["chosen"] and not row["measured"] for row in rows)


_NO_COLUMNS = (  # fields that the row replaces by its own columns
    "shape", "layout", "measured_steps", "keep_trace", "expected_step_s", "at_least_steps", "until",
    "accumulation",
)  # fmt: skip


def _fields_and_values(record: Any) -> dict[str, Any]:
    """As `dataclasses.asdict` without its copies, which are half of the cost of a large plan."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def point_columns(point: Point) -> dict[str, Any]:
    """The columns of the row that are known before the point runs, by name."""
    shape, layout = point.shape, point.layout
    columns = _fields_and_values(point)
    for name in _NO_COLUMNS:
        del columns[name]
    return {
        **columns,
        **_fields_and_values(shape),
        **_fields_and_values(layout),
        "world_size": point.world_size,
        "layout": layout.label,
        "global_batch_size": layout.global_batch_size,
        # a model without experts has no router
        **({} if shape.num_experts else {"router": None, "normalised_router": None}),
        "tokens_per_step": layout.global_batch_size * shape.tokens_per_sequence(layout.seq_length),
        **counts_per_token(shape, layout.seq_length, layout.activation_checkpointing),
    }
