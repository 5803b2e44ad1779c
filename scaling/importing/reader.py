"""Read a table of our columns, whoever wrote it, as our types: CSV, JSON lines or Parquet."""

import difflib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from scaling.arrays import Flags
from scaling.errors import InputError, did_you_mean, first_few, printable, shortened
from scaling.record import row_files
from scaling.record.row_checks import COLUMNS, invalid_row_reasons

# Columns of tables that others publish, besides those of a row -> their SQL types.
ROW_COLUMNS: Mapping[str, str] = {
    **COLUMNS, "framework": "varchar", "release": "varchar", "source": "varchar", "fsdp": "bigint",
    "attention_kind": "varchar",
}  # fmt: skip
# Our names of numbers that tables derive from rows; nothing reads them.
_DERIVED = {"tokens_per_s", "tokens_per_s_per_gpu", "mfu", "hfu"}
_MOST_BYTES, _LONGEST_LINE = 2**30, 2**20
_NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_KINDS = {
    "bigint": "whole numbers", "double": "numbers", "boolean": "true or false", "varchar": "text",
}  # fmt: skip
_SHORTEST_NEAR, _NEAR = 5, 0.85  # letters of a header that may be misspelt, and how much alike


@dataclass(frozen=True)
class Table:
    """The columns of a file that are ours, typed, null for an empty cell.

    `ignored` names its other columns; `numbers`, (n,), counts its rows from 1, without a header.
    """

    rows: pa.Table
    source: str
    numbers: npt.NDArray[np.int64]
    ignored: tuple[str, ...] = ()

    @property
    def remark(self) -> str | None:
        """A line that names the ignored columns, or None."""
        names = ", ".join(shortened(name, 40) for name in self.ignored)
        return f"{self.source}: ignored columns: {names}" if names else None

    def place(self, row: int) -> str:
        """The file and the row, for a sentence."""
        return f"{self.source}: row {self.numbers[row]}"

    def filter(self, chosen: Flags) -> "Table":
        """The rows where `chosen`, (n,), is true."""
        rows = self.rows.filter(pa.array(chosen))
        return Table(rows, self.source, self.numbers[chosen], self.ignored)


def read_rows(path: Path, *, rename: Mapping[str, str] | None = None) -> Table:
    """The rows of a table, or of a study's folder rows/, whose invalid rows stderr names."""
    try:
        is_folder = path.is_dir()
    except OSError as error:  # a name that no file system takes
        raise InputError(f"{shortened(path, 200)}: {error.strerror}") from error
    if not is_folder:
        return read_table(path, rename=rename)
    found = row_files.read_rows(sorted(row_files.row_files_in(path)))
    left_out = first_few([f"Left out: {unusable}" for unusable in found.unusable])
    sys.stderr.writelines(f"{line}\n" for line in left_out)
    rows = found.table.drop_columns(["file"])
    if not rows.num_rows:
        raise InputError(f"{path}: holds no valid row; give a table or a study's rows folder")
    return Table(rows, str(path), np.arange(1, rows.num_rows + 1))


def read_table(
    path: Path, *, columns: Mapping[str, str] = ROW_COLUMNS, rename: Mapping[str, str] | None = None
) -> Table:
    """The columns of a CSV, JSON lines or Parquet file that are ours, checked cell by cell.

    Args:
        path: of the file.
        columns: name -> SQL type.
        rename: header of the file -> our name, or '' to ignore the column.
    """
    rename = rename or {}
    raw = _raw(path)
    given = [header.strip() for header in raw.column_names]
    for header in set(rename) - {*given}:
        raise InputError(f"{path}: --rename {shortened(header)}=: {did_you_mean(header, given)}")
    for ours in {*rename.values()} - {*columns, ""}:
        raise InputError(f"{path}: --rename ={shortened(ours)}: {did_you_mean(ours, columns)}")
    headers = [rename.get(header, header) for header in given]
    for name in headers:
        if name and headers.count(name) > 1:
            raise InputError(f"{path}: has several columns {shortened(name)}; keep one")
    ignored = tuple(printable(name) for name in headers if name and name not in columns)
    if near := [*_near_names(ignored, set(columns) - {*headers})]:
        raise InputError(
            f"{path}: column {'; '.join(near)}: name it so, in our unit, or give --rename "
            "THEIRS=OURS; --rename THEIRS= ignores it"
        )
    names = {f"c{place}": name for place, name in enumerate(headers) if name in columns}
    if not names:
        others = f"; it has {shortened(', '.join(given), 200)}" if given else ""
        raise InputError(f"{path}: has none of our columns{others}")
    raw = raw.rename_columns([f"c{place}" for place in range(len(headers))]).select(list(names))
    rows = _typed(path, raw, names, columns)
    table = Table(rows.drop_columns(["row"]), str(path), rows["row"].to_numpy(), ignored)
    if columns is ROW_COLUMNS:
        reasons = invalid_row_reasons(table.rows, source="published", needed=False)
        for row, reason in enumerate(reasons):
            if reason is not None:
                raise InputError(f"{table.place(row)}: {reason}")
    return table


def _raw(path: Path) -> pa.Table:
    """The file's columns by its own headers: text, or a Parquet file's own types."""
    readers = {".csv": _read_csv, ".parquet": pq.read_table}
    readers |= dict.fromkeys((".jsonl", ".json"), _read_json)
    if not path.is_file():
        problem = "is no file" if path.exists() else "no such file"
        raise InputError(f"{path}: {problem}; give a CSV, JSON lines or Parquet table")
    if path.suffix not in readers:
        raise InputError(f"{path}: must end in one of {', '.join(readers)}")
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path}: is larger than {_MOST_BYTES // 2**30} GiB; split it")
    try:
        return readers[path.suffix](path)
    except (duckdb.Error, pa.ArrowException, OSError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = printable(shortened(" ".join(lines[:2]) or type(error).__name__, 200))
        raise InputError(f"{path}: cannot be read as a table: {reason}") from error


def _read_csv(path: Path) -> pa.Table:
    """Cells as text: beside the header, which is read as a row, no column looks like numbers."""
    table = pyarrow.csv.read_csv(
        path,
        pyarrow.csv.ReadOptions(autogenerate_column_names=True, block_size=_LONGEST_LINE),
        pyarrow.csv.ParseOptions(newlines_in_values=True),
    )
    if any(map(pa.types.is_binary, table.schema.types)):
        raise ValueError("it is no UTF-8 text")
    (header,) = table.slice(0, 1).to_pylist()
    return table.slice(1).rename_columns([str(cell or "") for cell in header.values()])


def _read_json(path: Path) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.sql(
            f"select columns(*) ->> '$' from read_json({row_files.quoted(str(path))}, "
            "format='newline_delimited', records=true, maximum_depth=1, sample_size=-1, "
            f"maximum_object_size={_LONGEST_LINE})"
        ).to_arrow_table()


def _near_names(headers: tuple[str, ...], missing: set[str]) -> Iterator[str]:
    """Say which headers are nearly one of our columns that the file lacks."""
    ours = {_letters(name): name for name in missing}
    for header in headers:
        letters = _letters(header)
        alike = [letters] if letters in ours else []
        if not alike and len(letters) >= _SHORTEST_NEAR and header not in _DERIVED:
            alike = difflib.get_close_matches(letters[:100], ours, n=1, cutoff=_NEAR)
        yield from (f"{shortened(header, 40)} is nearly {ours[name]}" for name in alike)


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _typed(
    path: Path, raw: pa.Table, names: Mapping[str, str], columns: Mapping[str, str]
) -> pa.Table:
    """The columns c0, c1, ... of `raw` by our names and types, and `row`, the number of each row.

    Rows without a cell are left out.
    """
    with duckdb.connect() as connection:
        try:
            raw = raw.append_column("row", pa.array(np.arange(1, raw.num_rows + 1)))
            connection.register("given", raw)
            kinds = {
                name: str(kind) for name, kind, *_ in connection.sql("describe given").fetchall()
            }
            said = {name: f"nullif(trim({name}::varchar), '')" for name in names}
            cells = {name: _cell(name, kinds[name], columns[ours]) for name, ours in names.items()}
            for name, cell in cells.items():
                bad = connection.sql(
                    f"select row, {said[name]} from given where {said[name]} is not null "
                    f"and ({cell}) is null order by row limit 1"
                ).fetchall()
                for row, text in bad:
                    kind = columns[names[name]]
                    lists = "lists of " if kind.endswith("[]") else ""
                    wanted = lists + _KINDS[kind.removesuffix("[]")]
                    value = f"{names[name]}={printable(shortened(text))}"
                    raise InputError(f"{path}: row {row}: {value}: the column holds {wanted}")
            listed = ", ".join(f'{cell} as "{names[name]}"' for name, cell in cells.items())
            any_said = f"coalesce({', '.join(said.values())}) is not null"
            return connection.sql(
                f"select {listed}, row from given where {any_said} order by row"
            ).to_arrow_table()
        except (duckdb.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path}: {printable(shortened(error, 200))}") from error


def _cell(name: str, given: str, wanted: str) -> str:
    """SQL for a cell as the wanted type; null if it is empty or not of it."""
    if given.lower() == wanted != "varchar" or given.endswith("[]") or wanted.endswith("[]"):
        return f"try_cast({name} as {wanted})"
    text = f"nullif(trim({name}::varchar), '')"
    number = f"if(regexp_full_match({text}, '{_NUMBER}'), try_cast({text} as double), null)"
    is_whole = f"abs({number}) <= 2 ** 53 and {number} = trunc({number})"
    return {
        "varchar": text,
        "double": f"if(isfinite({number}), {number}, null)",
        "bigint": f"if({is_whole}, ({number})::bigint, null)",
        "boolean": f"case lower({text}) when 'true' then true when 'false' then false end",
    }[wanted]
