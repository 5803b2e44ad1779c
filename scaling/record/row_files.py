"""Read the rows of a study as one table, and set aside files that hold no valid row."""

import contextlib
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scaling.errors import printable
from scaling.record.files import ROWS, write_text
from scaling.record.row_checks import COLUMNS, invalid_row_reason_sql, invalid_row_reasons
from scaling.study.paths import StudyPaths, row_of_unreadable, unreadable

AT_ONCE = 2000  # files per scan; starting a scan costs as much as a hundred files
ALONE = 16  # if a scan of so many files fails, they are read one by one
_SCHEMA: pa.Schema = pa.schema([field.with_nullable(True) for field in ROWS])
_PLACED = pa.schema([*_SCHEMA, pa.field("file", pa.string()), pa.field("row_number", pa.int64())])
_MAGIC = b"PAR1"
# what DuckDB raises for a bad file; the second if its message quotes bytes that are no text
_SCAN_ERRORS = (duckdb.Error, UnicodeDecodeError)


@dataclass(frozen=True, slots=True)
class Unusable:
    """A file, or one row of it, that holds no valid row; `reason` says why.

    One that the system `refused` to give may hold a good row. A copy holds the row of a point that
    has it in its own file.
    """

    path: Path
    reason: str
    row: int = 0  # counted from 0
    refused: bool = False
    is_copy: bool = False

    def __str__(self) -> str:
        """The sentence with the file and the row."""
        where = f"{self.path}: row {self.row + 1}" if self.row else str(self.path)
        return f"{printable(where)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Rows:
    """The valid rows, with their columns and `file`, and what was not valid."""

    table: pa.Table
    unusable: tuple[Unusable, ...]


def read_rows(paths: Sequence[Path], *, series: str = "measured") -> Rows:
    """Read the rows of these files; files that have been removed meanwhile are left out.

    Columns that a file lacks are null, unknown columns are dropped. Thousands of small files are
    read in a few scans; files are read one by one only if a scan fails.

    Args:
        paths: Parquet files of one row or of many.
        series: 'measured', or 'published' for rows that others published.
    """
    unusable: list[Unusable] = []
    files = list(_plausible(paths, unusable))
    tables = [_PLACED.empty_table()]
    for start in range(0, len(files), AT_ONCE):
        with _template() as template:
            tables += _scanned(files[start : start + AT_ONCE], template, unusable)
    rows = pa.concat_tables(tables, promote_options="default").combine_chunks()
    rows = rows.sort_by([("file", "ascending"), ("row_number", "ascending")])
    reasons = invalid_row_reasons(rows, series=series) if rows.num_rows else []
    judged = rows.append_column("reason", pa.array(reasons, pa.string()))
    invalid = judged.filter(pc.is_valid(judged["reason"]))
    if invalid.num_rows:
        unusable += _unusable(invalid)
        rows = rows.filter(pc.is_null(judged["reason"]))
    if series == "measured" and (copies := _copies(rows)):
        unusable += [one for one in copies if one is not None]
        rows = rows.filter(pa.array([one is None for one in copies]))
    unusable.sort(key=lambda one: (one.path, one.row))
    return Rows(rows.drop_columns(["row_number"]), tuple(unusable))


def find_invalid_rows(
    paths: Sequence[Path], *, series: str = "measured"
) -> tuple[list[Path], list[Unusable]]:
    """Check files of very many rows: return the readable files, and what is not valid.

    Nothing is kept in memory, for files that are later queried where they are.
    """
    unusable: list[Unusable] = []
    readable = list(_plausible(paths, unusable))
    if not readable:
        return [], unusable
    with _template() as template, duckdb.connect() as connection:
        source = _source([template, *readable], by_name=True)
        query = (
            f"select file, row_number, reason from (select *, {invalid_row_reason_sql()} as reason "
            f"from (select *, {quoted(series)} as series from ({source}))) "
            "where reason is not null"
        )
        try:
            unusable += _unusable(connection.sql(query).to_arrow_table())
            return readable, sorted(unusable, key=lambda one: (one.path, one.row))
        except _SCAN_ERRORS as error:
            if len(readable) == 1:
                return [], [*unusable, _no_row(readable[0], error)]
    # read each alone to find the one that fails
    scanned: list[Path] = []
    for path in readable:
        scanned_alone, unusable_alone = find_invalid_rows([path], series=series)
        scanned += scanned_alone
        unusable += unusable_alone
    return scanned, sorted(unusable, key=lambda one: (one.path, one.row))


def _scanned(files: list[Path], template: Path, unusable: list[Unusable]) -> list[pa.Table]:
    """Read all files in one scan; if that fails, each half, and finally each file.

    The template comes first and fixes the columns and their types. Each scan has its own database,
    so that a file that breaks DuckDB does not affect the others.
    """
    for by_name in (False, True):  # by name for files of older versions: reads every schema first
        try:
            with duckdb.connect() as connection:
                # keeping the order of many small files would make threads wait for each other
                connection.execute("set preserve_insertion_order = false")
                query = _source([template, *files], by_name=by_name)
                table = connection.sql(query).to_arrow_table().cast(_PLACED)
                # a copy, because the arrays from DuckDB have room for far more rows
                return [table.take(pa.array(range(len(table))))]
        except _SCAN_ERRORS:
            continue
    if len(files) > ALONE:
        half = len(files) // 2
        first = _scanned(files[:half], template, unusable)
        return first + _scanned(files[half:], template, unusable)
    tables = []
    for file in files:
        try:
            tables.append(_alone(file))
        except FileNotFoundError:
            continue
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            unusable.append(_no_row(file, error))
    return tables


def _source(files: Sequence[Path], *, by_name: bool) -> str:
    listed = ", ".join(quoted(str(file)) for file in files)
    typed = ", ".join(  # by position, every file is read with the types of the template
        f'"{column}"::{kind} as "{column}"' if by_name else f'"{column}"'
        for column, kind in COLUMNS.items()
    )
    return (
        f"select {typed}, filename as file, file_row_number as row_number from read_parquet("
        f"[{listed}], union_by_name={str(by_name).lower()}, filename=true, file_row_number=true, "
        "hive_partitioning=false)"
    )


def _alone(file: Path) -> pa.Table:
    """Read the known columns of one file, cast to their types; invalid text raises."""
    whole = pq.ParquetFile(file).read(use_threads=False)
    table = whole.select([name for name in whole.column_names if name in COLUMNS])
    wanted = pa.schema([_SCHEMA.field(name) for name in table.column_names])
    if table.schema.remove_metadata() != wanted:
        table = table.cast(wanted)
    table.validate(full=True)
    table = table.append_column("file", pa.array([str(file)] * len(table), pa.string()))
    return table.append_column("row_number", pa.array(range(len(table)), pa.int64()))


@contextlib.contextmanager
def _template() -> Iterator[Path]:
    """Yield a temporary Parquet file with all columns and no row."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.parquet"
        pq.write_table(_SCHEMA.empty_table(), path)
        yield path


def _no_row(path: Path, error: Exception) -> Unusable:
    if isinstance(error, OSError) and error.errno is not None:
        return Unusable(path, f"cannot be read: {error.strerror}", refused=True)
    return Unusable(path, f"holds no row of this project: {_one_line(str(error))}")


def _unusable(invalid: pa.Table) -> list[Unusable]:
    records = invalid.select(["file", "reason", "row_number"]).to_pylist()
    return [
        Unusable(Path(one["file"]), _one_line(one["reason"]), one["row_number"]) for one in records
    ]


def _copies(rows: pa.Table) -> list[Unusable | None]:
    """For each row whether its point has one in its own file too; empty if no point has two."""
    if pc.count_distinct(rows["point_id"]).as_py() == rows.num_rows:
        return []
    ids, numbers = rows["point_id"].to_pylist(), rows["row_number"].to_pylist()
    files = [Path(file) for file in rows["file"].to_pylist()]
    own = {point for point, file in zip(ids, files, strict=True) if file.stem == point}
    return [
        Unusable(file, f"holds the row of {point}, which has a file of its own", row, is_copy=True)
        if point in own and file.stem != point
        else None
        for point, file, row in zip(ids, files, numbers, strict=True)
    ]


def set_unreadable_aside(folder: Path) -> list[Unusable]:
    """Move files of rows/ without a valid row to rows/unreadable/, so that their points run again.

    Each file is kept there, beside a .txt with the reason; returns what was moved. Not for use
    within Snakemake, which would miss an output that it has seen.

    Raises:
        InputError: the folder cannot be written to.
    """
    rows = read_rows(sorted(row_files_in(folder)))
    good = set(rows.table["file"].to_pylist())
    moved = []
    for one in rows.unusable:
        if one.row or one.refused or one.is_copy or str(one.path) in good:
            continue
        kept = next(  # the first number that is free
            path for n in itertools.count(1) if not (path := unreadable(one.path, n)).exists()
        )
        try:
            write_text(kept.with_suffix(".txt"), f"{one.reason}\n")
            one.path.replace(kept)
            moved.append(one)
        except FileNotFoundError:  # another process was faster
            kept.with_suffix(".txt").unlink(missing_ok=True)
    return moved


def unreadable_set_aside(folder: Path) -> list[Unusable]:
    """The files set aside earlier in rows/unreadable/ whose points have no row since."""
    kept = []
    for path in sorted(folder.glob("*.txt")):
        if not row_of_unreadable(path).exists():
            reason = path.read_text(encoding="utf-8", errors="replace").strip()
            kept.append(Unusable(path.with_suffix(".parquet"), _one_line(reason)))
    return kept


def attempts_set_aside(study: StudyPaths) -> list[dict[str, Any]]:
    """`duration_s` and `world_size` of the rows in rows/retried/, which have cost time too."""
    rows = read_rows(sorted(study.retried.glob("*.parquet"))).table
    return list(rows.select(["duration_s", "world_size"]).to_pylist())


def row_files_in(folder: Path) -> Iterator[Path]:
    """The row files of a folder, without the temporary files of writers."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.suffix == ".parquet" and not path.name.startswith(".") and path.is_file():
                yield path


def _plausible(paths: Iterable[Path], unusable: list[Unusable]) -> Iterator[Path]:
    """Yield the files that may be Parquet, by size and last bytes; report the others."""
    for path in paths:
        try:
            with path.open("rb") as content:
                size = content.seek(0, 2)
                content.seek(max(0, size - 8))
                end = content.read()
        except FileNotFoundError:  # removed since it was listed, so that its point runs again
            continue
        except OSError as error:
            unusable.append(Unusable(path, f"cannot be read: {error.strerror}", refused=True))
            continue
        if not str(path).isprintable():
            unusable.append(Unusable(path, "has a name that cannot be printed"))
            continue
        if size == 0:
            unusable.append(Unusable(path, "is empty; a point leaves one row of Parquet"))
        elif size < 12 or end[4:] != _MAGIC or int.from_bytes(end[:4], "little") > size - 12:
            unusable.append(Unusable(path, "is cut short, or no Parquet file"))
        else:
            yield path


def _one_line(text: str) -> str:
    """The first line of a message, printable and at most 200 characters."""
    return printable(next(iter(text.splitlines()), ""))[:200]


def quoted(text: str) -> str:
    """The text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
