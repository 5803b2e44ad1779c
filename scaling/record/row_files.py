"""Read the rows of a study as one table, checked once, and name what is no valid row."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from scaling.errors import InputError, printable
from scaling.record.files import ROWS
from scaling.record.row_checks import COLUMNS, invalid_row_reason_sql
from scaling.study.paths import StudyPaths

_SCHEMA: pa.Schema = pa.schema([field.with_nullable(True) for field in ROWS])
_LARGE_BYTES = 4 << 20  # a larger file holds very many rows and is queried where it is


@dataclass(frozen=True, slots=True)
class Unusable:
    """A file, or one row of it, that holds no valid row; `reason` says why.

    One that the system `refused` to give may hold a good row.
    """

    path: Path
    reason: str
    row: int = 0  # counted from 0
    refused: bool = False

    def __str__(self) -> str:
        """The sentence with the file and the row."""
        where = f"{self.path}: row {self.row + 1}" if self.row else str(self.path)
        return f"{printable(where)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Rows:
    """The valid rows, with their columns and `file`, and what was not valid."""

    table: pa.Table
    unusable: tuple[Unusable, ...]

    def without_a_row(self) -> list[Unusable]:
        """The files that were read and hold no valid row."""
        good = {*self.table["file"].to_pylist()}
        return [o for o in self.unusable if not (o.row or o.refused or str(o.path) in good)]


def read_rows(paths: Sequence[Path], *, source: str = "measured") -> Rows:
    """Read the rows of these files; files that have been removed meanwhile are left out.

    Args:
        paths: Parquet files of one row or of many.
        source: 'measured', or 'published' for rows that others published.
    """
    with duckdb.connect() as connection:
        connection.execute("set preserve_insertion_order = false")  # else files wait for each other
        unusable = create_rows(connection, paths, source=source)
        rows = connection.sql("from valid_rows order by file, row_number").to_arrow_table()
    kept = pa.schema([*_SCHEMA, pa.field("file", pa.string())])
    return Rows(rows.select(kept.names).cast(kept), tuple(unusable))


def create_rows(
    connection: duckdb.DuckDBPyConnection,
    paths: Sequence[Path],
    *,
    source: str = "measured",
    schema: str = "main",
) -> list[Unusable]:
    """Create the view `valid_rows` of a schema, with `file`, `row_number` and `source`.

    Columns that a file lacks are null, unknown columns are dropped. Small files are read once, in
    one scan; only if it fails are they read by halves. Copies of a row do not count.

    Returns:
        Files and rows that are not valid, in the order of their files.
    """
    unusable: list[Unusable] = []
    files = [path for path in paths if path.exists()]
    kind = "view" if any(file.stat().st_size > _LARGE_BYTES for file in files) else "table"
    rows = f"select *, {quoted(source)} as source from"
    try:
        connection.execute(f"create {kind} {schema}.every_row as {rows} ({_scan(files)})")
        _judge(connection, source, schema)
    except (duckdb.Error, UnicodeError):  # the second quotes bytes that are no text
        connection.execute(f"drop {kind} if exists {schema}.every_row")
        connection.execute(f"create table {schema}.every_row as {rows} ({_scan([])})")
        middle = len(files) // 2
        waiting = [files[:middle], files[middle:]]  # all of them have failed already
        while waiting:
            some = waiting.pop()
            try:
                connection.execute(f"insert into {schema}.every_row {rows} ({_scan(some)})")
            except (duckdb.Error, UnicodeError) as error:
                if half := len(some) // 2:
                    waiting += [some[:half], some[half:]]
                elif some[0].exists():
                    unusable.append(_unusable(some[0], error))
        _judge(connection, source, schema)
    judged = f"from {schema}.judged_rows"
    invalid = f"select file, reason, row_number {judged} where reason is not null"
    for file, reason, row in connection.sql(invalid).fetchall():
        unusable.append(Unusable(Path(file), _one_line(reason), row))
    with_rows = connection.sql(f"select distinct file {judged}").fetchall()
    told = {str(one.path) for one in unusable} | {file for (file,) in with_rows}
    unusable += [
        Unusable(file, "holds no row; a point leaves one")
        for file in files
        if str(file) not in told and file.exists()
    ]
    return sorted(unusable, key=lambda one: (one.path, one.row))


def _judge(connection: duckdb.DuckDBPyConnection, source: str, schema: str) -> None:
    """Create judged_rows of every_row, with what is wrong with each, and valid_rows.

    A large file is scanned once for the judgement, however many questions follow.
    """
    connection.execute(
        f"create table {schema}.judged_rows as select file, row_number, "
        f"hash(point_id, attempt) as run, {invalid_row_reason_sql()} as reason "
        f"from {schema}.every_row"
    )
    ((invalid, copied),) = connection.execute(
        f"select count(reason) > 0, count(*) > count(distinct run) from {schema}.judged_rows"
    ).fetchall()
    wrong = f"(from {schema}.judged_rows where reason is not null)"
    others = f"anti join {wrong} using (file, row_number)" if invalid else ""
    once = (
        "qualify row_number() over (partition by point_id, attempt order by file, row_number) = 1"
    )
    connection.execute(
        f"create view {schema}.valid_rows as from {schema}.every_row {others} "
        f"{once if copied and source == 'measured' else ''}"
    )


def _scan(files: Sequence[Path]) -> str:
    """A query for the columns of a row in these files, with `file` and `row_number`."""
    absent = ", ".join(f'null::{kind} as "{name}"' for name, kind in COLUMNS.items())
    placed = "null::varchar as file, null::bigint as row_number"
    empty = f"select {absent}, {placed} limit 0"
    if not files:
        return empty
    listed = ", ".join(quoted(str(file)) for file in files)
    typed = ", ".join(f'"{name}"::{kind} as "{name}"' for name, kind in COLUMNS.items())
    return (
        f"select {typed}, file, row_number from (({empty}) union all by name (select *, "
        f"filename as file, file_row_number as row_number from read_parquet([{listed}], "
        "union_by_name=true, filename=true, file_row_number=true, hive_partitioning=false)))"
    )


def _unusable(file: Path, error: Exception) -> Unusable:
    """A file that no query can read, with the system's reason if it refuses the file."""
    try:
        with file.open("rb") as content:
            content.read()
    except OSError as refusal:
        reason = f"cannot be read: {os.strerror(refusal.errno or 0)}"
        return Unusable(file, reason, refused=True)
    problem = _one_line(str(error).replace(str(file), file.name))
    return Unusable(file, f"holds no row of this project: {problem}")


def attempts_set_aside(study: StudyPaths) -> list[dict[str, Any]]:
    """`duration_s` and `world_size` of the rows in rows/retried/, which have cost time too."""
    rows = read_rows(sorted(study.retried.glob("*.parquet"))).table
    return list(rows.select(["duration_s", "world_size"]).to_pylist())


def row_files_in(folder: Path) -> Iterator[Path]:
    """The row files of a folder, without the temporary files of writers."""
    if folder.is_symlink() and not folder.exists():
        raise InputError(f"{folder}: is a link to {folder.readlink()}, which is not there")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is no folder, so it holds no rows")
    if folder.is_dir():
        for path in folder.iterdir():
            if path.suffix == ".parquet" and not path.name.startswith(".") and path.is_file():
                yield path


def _one_line(text: str) -> str:
    """The first line of a message, printable and at most 200 characters."""
    return printable(next(iter(text.splitlines()), ""))[:200]


def quoted(text: str) -> str:
    """The text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
