"""Read CSV, JSON and Parquet files of other tools as Arrow tables with our column names."""

import csv
import io
import json
import re
import sys
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from scaling.errors import InputError, shortened
from scaling.foreign.renaming import renamed
from scaling.foreign.spellings import canonical_column
from scaling.record.probe_row import Probe
from scaling.record.row import Row, fields_of

# Columns that are text even if they look like numbers: a release may be called 25.10.
_TEXT = {
    name for name, (kind, _) in (fields_of(Row) | fields_of(Probe)).items() if kind == "str"
} | {"framework", "release", "source", "attention_kind"}
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
# How files begin that are no text, and what to do with them.
_NO_TEXT = {
    b"\xff\xfe": "is UTF-16; save it as UTF-8",
    b"\xfe\xff": "is UTF-16; save it as UTF-8",
    b"\x1f\x8b": "is compressed; unpack it",
    b"PK": "is an Excel workbook or a zip; give its table as CSV UTF-8",
    b"PAR1": "is Parquet; name it *.parquet",
}
_EMPTY = ["", "-", "–", "—", "/", "n/a", "N/A", "#N/A", "NA", "NaN", "nan", "None", "null", "NULL"]
_NONE_IS_A_WORD = ("activation_checkpointing", "optimizer_offload")
_JSON = (".json", ".jsonl")  # a list of records, or one record a line
_CSV = b"csv"  # key of a table's metadata: its file, to find line numbers


def read_rows(path: Path) -> pa.Table:
    """Rows of a CSV, JSON or Parquet file, or of a folder of Parquet files such as a study's rows/.

    Invalid rows in a study's folder are left out with a sentence on stderr.

    Raises:
        InputError: there is nothing to read.
    """
    from scaling.record import row_files  # imports duckdb, which other tables do not need

    try:
        files = sorted(row_files.row_files_in(path)) if path.is_dir() else None
    except (OSError, ValueError) as error:
        raise InputError(f"{shortened(path, 300)}: cannot be read: {_reason(error)}") from error
    if files is None:
        return read_table(path)
    if not files:
        raise InputError(f"{path}: holds no *.parquet; give a table or a study's rows folder")
    found = row_files.read_rows(files)
    if found.table.num_rows:
        sys.stderr.writelines(f"Left out: {unusable}\n" for unusable in found.unusable)
        return found.table.drop_columns(["file"])
    try:  # not our rows
        return pa.concat_tables([read_table(file) for file in files], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"{path}: its files do not go together: {_reason(error)}") from error


def read_table(path: Path) -> pa.Table:
    """A CSV, JSON or Parquet file with columns renamed to ours; columns without a name are dropped.

    Raises:
        InputError: the file is missing or neither CSV nor Parquet, is not UTF-8, is not separated
            by commas, or names a column twice.
    """
    try:
        if not path.is_file():
            problem = "is a folder" if path.is_dir() else "no such file"
            raise InputError(f"{path}: {problem}; give a CSV, JSON or Parquet table")
        table = _decoded(pq.read_table(path)) if path.suffix == ".parquet" else _read_csv(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not a readable table: {_reason(error)}") from error
    has_lines = path.suffix not in (".parquet", *_JSON)
    metadata = {_CSV: str(path).encode()} if has_lines else {}
    return renamed(table, path, metadata)


def _decoded(table: pa.Table) -> pa.Table:
    """The table with plain text in place of categories and of long strings."""
    for index, column in enumerate(table.columns):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            kind = pa.string()
        if kind != column.type:
            table = table.set_column(index, table.field(index).name, pc.cast(column, kind))
    return table


def _read_csv(path: Path) -> pa.Table:
    content = path.read_bytes()
    # spreadsheets end with lines of empty cells
    last_line_end = content.find(b"\n", len(content.rstrip(b" ,\t\r\n")))
    content = content[: last_line_end + 1] if last_line_end >= 0 else content
    for begin, problem in _NO_TEXT.items():
        if content.startswith(begin):
            raise InputError(f"{path}: {problem}")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"{path}: line {line}: byte 0x{content[error.start]:02x} is not UTF-8; save the table "
            "as UTF-8 (Excel: CSV UTF-8)"
        ) from None
    if path.suffix in _JSON:
        content = _csv_of_json(content.decode("utf-8-sig"))
    header = content.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8")
    for separator, words in _SEPARATORS.items():
        if separator in header and "," not in header:
            raise InputError(
                f"{path}: its columns are separated by {words}; separate them by commas, and write "
                "numbers with a point"
            )
    if not header.strip():
        raise InputError(f"{path}: its first line is empty; it must name the columns")
    if re.fullmatch("#[^,]*|sep=.*", header.strip()):
        raise InputError(f"{path}: line 1 is {shortened(header)!r}; it must name the columns")
    if header.lstrip()[:1] in ("{", "["):
        raise InputError(f"{path}: is JSON; name it *.json or *.jsonl")
    if content.count(b'"') % 2:
        _refuse_an_open_quote(path, content.decode("utf-8"))

    headers = [cell.strip('"') for cell in header.rstrip("\r").split(",")]
    texts = {name: pa.string() for name in headers if canonical_column(name)[0] in _TEXT}

    def read(empty: list[str], only: list[str]) -> pa.Table:
        return pyarrow.csv.read_csv(
            io.BytesIO(content),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                strings_can_be_null=True,
                column_types=texts | dict.fromkeys(only, pa.string()),
                null_values=empty,
                include_columns=only,
            ),
        )

    table = read(_EMPTY, [])
    # where `none` is a word of the column, `None` is not an empty cell
    names = [name for name in table.column_names if canonical_column(name)[0] in _NONE_IS_A_WORD]
    if names and len({*names}) == len(names) and b"None" in content:
        for name, column in zip(names, read([""], names).columns, strict=True):
            table = table.set_column(table.column_names.index(name), name, column)
    return table


def _csv_of_json(text: str) -> bytes:
    """The records of a JSON file as CSV, which gives their columns types.

    Raises:
        ValueError: it holds no records.
    """
    whole = text.lstrip().startswith("[")
    records = (
        json.loads(text)
        if whole
        else [json.loads(line) for line in text.split("\n") if line.strip()]
    )
    if not records or not all(isinstance(record, dict) for record in records):
        raise ValueError("JSON must be a list of records, or one record a line")
    names = dict.fromkeys(name for record in records for name in record)
    written = io.StringIO()
    writer = csv.DictWriter(written, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return written.getvalue().encode()


def _refuse_an_open_quote(path: Path, text: str) -> None:
    """Refuse a file whose last cell is quoted and never ends: it may hold many rows.

    Raises:
        InputError: it is such a file.
    """
    csv.field_size_limit(2**31 - 1)
    reader, end = csv.reader(io.StringIO(text, newline=""), strict=True), 0
    try:
        for _ in reader:
            end = reader.line_num
    except csv.Error as error:  # Arrow takes any other as it is
        if "end of data" in str(error):
            raise InputError(f"{path}: line {end + 1}: a quote is never closed") from None


def row_place(table: pa.Table, row: int) -> str:
    """Where a row is in its file, as an editor counts: `line 3` of a CSV, else `row 2`."""
    path = (table.schema.metadata or {}).get(_CSV)
    if path is None:
        return f"row {row + 1}"
    lines = _first_lines(path.decode(), Path(path.decode()).stat().st_mtime_ns)
    # the header is the first record
    return f"line {lines[row + 1]}" if row + 1 < len(lines) else f"row {row + 1}"


@lru_cache(maxsize=1)  # a table may have a sentence on each of its rows
def _first_lines(path: str, _changed_ns: int) -> list[int]:
    """The line on which each record of a CSV file begins; empty lines are none."""
    csv.field_size_limit(2**31 - 1)
    lines: list[int] = []
    end = 0
    with Path(path).open(newline="", encoding="utf-8") as text:
        reader = csv.reader(text)
        for cells in reader:
            if cells:
                lines.append(end + 1)
            end = reader.line_num
    return lines


def _reason(error: Exception) -> str:
    message = str(error) or type(error).__name__
    if "straddles two block boundaries" in message:
        return "a line is longer than a megabyte"
    return shortened(message.splitlines()[0], 200)
