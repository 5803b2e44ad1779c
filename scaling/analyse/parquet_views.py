"""Views of stated columns over a study's Parquet files, whatever version wrote them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from scaling.errors import InputError, shortened
from scaling.record.row_files import quoted
from scaling.study.paths import StudyPaths


def make_view(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    types: Mapping[str, str],
    files: Sequence[Path],
) -> None:
    """Create a view of these columns over several files; it is empty without a file.

    Raises:
        InputError: see `select_from`.
    """
    empty = ", ".join(f'null::{kind} as "{column}"' for column, kind in types.items())
    body = select_from(connection, types, files) if files else f"select {empty} limit 0"
    connection.execute(f"create view {name} as {body}")


def select_from(
    connection: duckdb.DuckDBPyConnection,
    types: Mapping[str, str],
    files: Sequence[Path],
) -> str:
    """A query for the stated columns of several files.

    Columns that a file lacks are null.

    Raises:
        InputError: a file is not Parquet, or a column of it holds another type.
    """
    listed = ", ".join(quoted(str(file)) for file in files)
    source = f"read_parquet([{listed}], union_by_name=true, hive_partitioning=false)"
    try:
        kinds = {row[0]: row[1] for row in connection.execute(f"describe from {source}").fetchall()}
    except (duckdb.Error, UnicodeDecodeError) as error:
        raise unreadable_error(files, error) from error
    for column in types:  # in the order of the columns: the sentence names the first wrong one
        if column in kinds and not _casts(kinds[column], types[column]):
            place = files[0] if len(files) == 1 else files[0].parent
            raise InputError(
                f"{place}: column {column} holds {shortened(kinds[column])}, must hold "
                f"{types[column]}: the file is of another version, write it anew"
            )
    columns = ", ".join(
        f'"{column}"::{kind} as "{column}"' if column in kinds else f'null::{kind} as "{column}"'
        for column, kind in types.items()
    )
    return f"select {columns} from {source}"


def _casts(given: str, wanted: str) -> bool:
    """Whether one SQL type may be cast to another: no text to numbers, no list to a value."""
    if given.startswith(("STRUCT", "MAP", "UNION")) or given.endswith("]") != wanted.endswith("]"):
        return given == '"NULL"'
    return wanted.startswith("varchar") or not given.startswith(("VARCHAR", "BLOB"))


def unreadable_error(files: Sequence[Path], error: Exception) -> InputError:
    """An error that names the first unreadable file; DuckDB may name another."""
    for file in files:
        try:
            pq.read_schema(file)
        except (pa.ArrowInvalid, OSError) as reason:
            sentence = str(reason).splitlines()[0].rstrip(".")
            is_imported = file == StudyPaths(file.parent).published
            again = "`scaling import` makes it" if is_imported else "it is made"
            return InputError(
                f"{file}: is no Parquet file of this project: {sentence}; remove it, so that "
                f"{again} again"
            )
    return InputError(f"{files[0].parent}: its files do not go together: {error}")
