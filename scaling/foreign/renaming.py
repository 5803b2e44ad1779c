"""Give the columns of a table of others our names and units, and remember what they were."""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from scaling.errors import InputError, shortened
from scaling.foreign.numbers import parse_numbers
from scaling.foreign.spellings import MEASURED, canonical_column, canonical_columns, is_known

_MOST_TOLD = 20  # columns that a remark names
# Keys of a table's metadata: sentences about how it was read, and `headers_of`.
_REMARKS, _HEADERS = b"remarks", b"headers"


def renamed(table: pa.Table, path: Path, metadata: Mapping[bytes, bytes]) -> pa.Table:
    """The table with our columns; those without a name are dropped.

    Args:
        table: with the headers of its file.
        path: of its file, for errors.
        metadata: of the result, which has more.

    Raises:
        InputError: two columns have one name, or a column with a unit holds no numbers.
    """
    names = [name.strip() for name in table.column_names]
    for index, column in enumerate(table.columns):  # names of hosts are in our own rows
        if names[index].lower() == "hosts" and pa.types.is_integer(column.type):
            names[index] = "nodes"
        elif _has_memory_units(names[index], column):
            names[index] += " (bytes)"
    for name, count in Counter(names).items():
        if count > 1 and name:
            raise InputError(
                f"{path}: names the column {shortened(name)!r} {count} times; keep one"
            )
    columns = canonical_columns(names)
    remarks = [*_remarks(table, names, [name for name, _ in columns])]
    table = table.rename_columns([name for name, _ in columns])
    for index, (name, factor) in enumerate(columns):
        if name in MEASURED:
            table = table.set_column(index, name, _without_minus_one(table.column(index)))
        if factor != 1.0:
            try:
                column, doubts = _multiplied(table.column(index), name, factor)
            except pa.ArrowException:
                kind = table.column(index).type
                raise InputError(
                    f"{path}: column {shortened(names[index])} holds {kind}, not numbers"
                ) from None
            remarks += doubts
            table = table.set_column(index, name, column)
    table = _with_fillers(table, names)
    table = table.select([name for name, _ in columns if name])
    table = _with_precision(table)
    if _has_only_0_and_1(table, "fsdp"):  # all rows say so, a part of them may not
        remarks.append("fsdp is 0 or 1 in all rows: 1 is read as on")
        words = pc.if_else(pc.equal(pc.cast(table["fsdp"], pa.float64()), 1.0), "on", "off")
        table = table.set_column(table.column_names.index("fsdp"), "fsdp", words)
    headers = {
        header: name
        for header, (name, factor) in zip(names, columns, strict=True)
        if factor == 1.0 and header.lower() != name
    }
    return table.replace_schema_metadata(
        {
            **metadata,
            _REMARKS: "\n".join(remarks).encode(),
            _HEADERS: json.dumps(headers).encode(),
        }
    )


def remarks_of(table: pa.Table) -> list[str]:
    """Sentences about how the columns of a table were read."""
    return list((table.schema.metadata or {}).get(_REMARKS, b"").decode().splitlines())


def _remarks(table: pa.Table, headers: list[str], names: list[str]) -> Iterator[str]:
    """What a reader of the table should know about its headers; `names` are ours for them."""
    read = dict(zip(names, headers, strict=True))
    unread = []
    for header, name, column in zip(headers, names, table.columns, strict=True):
        told = shortened(header, 40)
        in_ms = canonical_column(f"{header} (ms)")
        if name == "step_time_s" and (canonical_column(header)[1], in_ms) == (1.0, (name, 1e-3)):
            yield f"column {told} states no unit: taken as seconds"
        if not name or is_known(name) or column.null_count == len(column):
            continue
        if is_known(meant := canonical_column(header)[0]):
            told += f" ({shortened(read[meant], 40)} counts)"
        elif canonical_column(f"{header} (bytes)")[0] == "peak_memory_bytes":
            told += " (states no unit)"
        unread.append(told)
    if (more := len(unread) - _MOST_TOLD) > 0:
        unread[_MOST_TOLD:] = [f"{more} more"]
    if unread:
        yield f"columns that are not read: {', '.join(unread)}"


def _with_precision(table: pa.Table) -> pa.Table:
    """Split `System: DGX-H100, Precision: BF16`, which states two columns in one."""
    if "gpu" not in table.column_names or "precision" in table.column_names:
        return table
    cells = [cell and str(cell) for cell in table["gpu"].to_pylist()]
    found = [re.search(r"(?i)\W*precision\W+([\w-]+).*", cell or "") for cell in cells]
    if not any(found):
        return table
    pairs = zip(cells, found, strict=True)
    systems = [cell[: match.start()] if cell and match else cell for cell, match in pairs]
    table = table.set_column(table.column_names.index("gpu"), "gpu", pa.array(systems, pa.string()))
    return table.append_column("precision", pa.array([m and m[1] for m in found], pa.string()))


def _with_fillers(table: pa.Table, headers: list[str]) -> pa.Table:
    """Fill empty cells from a column that means the same: sections of a page differ in headers."""
    for header, name, column in zip(headers, table.column_names, table.columns, strict=True):
        meant, factor = canonical_column(header)
        if name != meant and meant in table.column_names and factor == 1.0:
            index = table.column_names.index(meant)
            with contextlib.suppress(pa.ArrowException):  # text beside numbers stays apart
                filled = pc.coalesce(table.column(index), column)
                table = table.set_column(index, meant, filled)
    return table


def headers_of(table: pa.Table) -> dict[str, str]:
    """Headers as the file spells them, where they are not ours -> columns that hold their cells."""
    return dict(json.loads((table.schema.metadata or {}).get(_HEADERS, b"{}")))


def _has_only_0_and_1(table: pa.Table, name: str) -> bool:
    if name not in table.column_names:
        return False
    cells = {str(cell).strip() for cell in table[name].unique().to_pylist() if cell is not None}
    return bool({"1", "1.0"} & cells) and cells <= {"0", "1", "0.0", "1.0"}


def _has_memory_units(header: str, column: pa.ChunkedArray) -> bool:
    """Whether a column of memory, whose header states no unit, states one in each cell."""
    if not pa.types.is_string(column.type) or canonical_column(header)[0] == "peak_memory_bytes":
        return False
    if canonical_column(f"{header} (bytes)")[0] != "peak_memory_bytes":
        return False
    cells = {cell.strip() for cell in column.unique().to_pylist() if re.search(r"\d", cell or "")}
    return bool(cells) and all(re.fullmatch(r"(?i)[\d.,]+\s*[mg]i?b", cell) for cell in cells)


def _without_minus_one(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Null for -1, which sweeps write for a run that failed."""
    with contextlib.suppress(pa.ArrowException):  # a duration, or a list
        failed = pc.equal(column, pc.cast(pa.scalar(-1), column.type))
        return pc.if_else(failed, pa.scalar(None, column.type), column)
    return column


def _multiplied(
    column: pa.ChunkedArray, name: str, factor: float
) -> tuple[pa.ChunkedArray, list[str]]:
    """A column in our unit, and what is doubtful; cells of text that are no numbers stay."""
    if pa.types.is_duration(column.type):
        raise pa.ArrowInvalid("a duration has a unit of its own")
    if not pa.types.is_string(column.type):
        return pc.multiply(pc.cast(column, pa.float64()), factor), []
    cells = column.to_pylist()
    numbers, doubts = parse_numbers(cells, name, factor)
    cells = [
        cell if number is None or not isfinite(number) else repr(number)
        for cell, number in zip(cells, numbers, strict=True)
    ]
    return pa.chunked_array([cells], pa.string()), doubts
