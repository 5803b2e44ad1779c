"""Rows become tables: DuckDB runs reports/sql/*.sql over the Parquet files of a study."""

import os
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from scaling.errors import InputError, did_you_mean
from scaling.grid import Refusal
from scaling.hardware import GPUS
from scaling.measurement import Row
from scaling.store import arrow_schema

GRAIN, NEEDS = "-- Grain: ", "-- Needs: "


def tabulate(study_dir: Path, sql_dir: Path) -> None:
    """Write tables/*.parquet of a study: one table per SQL file, all of them or none.

    A file is one select; its table has the file's name. It reads the study's `study.points`,
    `study.rows` and `study.refused`, the hardware's `catalogue.gpus`, and the tables its line
    `-- Needs: a, b` names, which therefore run before it.

    Args:
        study_dir: results/<study>; rows/ may be missing, empty or partial.
        sql_dir: the folder of SQL files, reports/sql.

    Raises:
        InputError: no plan in `study_dir`, an unreadable Parquet file, or an SQL file that fails.
    """
    queries = {
        path.stem: path.read_text(encoding="utf-8") for path in sorted(sql_dir.glob("*.sql"))
    }
    if not queries:
        raise InputError(f"{sql_dir}: holds no .sql file, so there is no table to write")
    with duckdb.connect() as connection:
        _attach_sources(connection, study_dir)
        for name in execution_order(queries, sql_dir):
            try:
                connection.execute(f'create table "{name}" as {queries[name]}')
            except duckdb.Error as error:
                raise InputError(f"{sql_dir / name}.sql: {error}") from error
        _write_tables(connection, list(queries), study_dir / "tables")


def execution_order(queries: Mapping[str, str], sql_dir: Path) -> list[str]:
    """Names of the SQL files, each after those its `-- Needs:` line names.

    Raises:
        InputError: a file without that line, a name that no file has, or a circle.
    """
    needs = {name: _needs(name, text, queries, sql_dir) for name, text in queries.items()}
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise InputError(f"{sql_dir}: the tables need each other in a circle: {circle}") from error


def _needs(name: str, text: str, queries: Mapping[str, str], sql_dir: Path) -> list[str]:
    for line in text.splitlines():
        if line.startswith(NEEDS):
            named = [word.strip() for word in line.removeprefix(NEEDS).split(",")]
            needed = [] if named == ["nothing"] else named
            for other in needed:
                if other not in queries:
                    hint = did_you_mean(other, queries)
                    raise InputError(f"{sql_dir / name}.sql: needs no table {other!r}: {hint}")
            return needed
    raise InputError(f"{sql_dir / name}.sql: has no line '{NEEDS}...' (tables, or nothing)")


def _attach_sources(connection: duckdb.DuckDBPyConnection, study_dir: Path) -> None:
    points = study_dir / "points.parquet"
    if not points.exists():
        raise InputError(f"{points}: is missing; `scaling plan` writes it")
    row_files = sorted((study_dir / "rows").glob("*.parquet"))
    sources = {
        "study.points": _read(points),
        "study.refused": _read(study_dir / "refused.parquet", arrow_schema(Refusal)),
        "study.rows": _concatenated(row_files),
        "catalogue.gpus": pa.Table.from_pylist(
            [
                {"name": gpu.name, "vendor": gpu.vendor, "memory_bytes": gpu.memory_bytes}
                for gpu in GPUS.values()
            ]
        ),
    }
    connection.execute("create schema study; create schema catalogue")
    for name, table in sources.items():
        connection.register("source", table)
        connection.execute(f"create table {name} as from source")
        connection.unregister("source")


def _concatenated(row_files: list[Path]) -> pa.Table:
    """All rows; columns that an older row lacks are null, columns nobody knows any more are left.

    Nullability is dropped for the same reason.
    """
    schema = pa.schema([field.with_nullable(True) for field in arrow_schema(Row)])
    return pa.concat_tables([schema.empty_table(), *(_read(file, schema) for file in row_files)])


def _read(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    try:
        return pq.read_table(path, schema=schema, partitioning=None)
    except FileNotFoundError as error:
        raise InputError(f"{path}: is missing; `scaling plan` writes it") from error
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: is no Parquet file of this project: {reason}") from error


def _write_tables(
    connection: duckdb.DuckDBPyConnection, names: list[str], tables_dir: Path
) -> None:
    """Write all, then rename all; tables whose SQL file is gone go too."""
    tables_dir.mkdir(parents=True, exist_ok=True)
    parts: dict[Path, Path] = {}
    for name in names:
        path = tables_dir / f"{name}.parquet"
        parts[path] = path.with_name(f".{path.name}.{os.getpid()}.part")
        connection.table(name).write_parquet(str(parts[path]), compression="zstd")
    for path, part in parts.items():
        part.replace(path)
    for path in tables_dir.glob("*.parquet"):
        if path not in parts:
            path.unlink()
