"""Make the tables of a study: DuckDB runs reports/sql/*.sql over its Parquet files."""

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from scaling.analyse import drawn, layout_words, losses
from scaling.analyse.catalogue import attach_catalogue, make_table, set_variables
from scaling.analyse.replication import FOLDER
from scaling.analyse.sources import attach
from scaling.cluster.hardware import Cluster
from scaling.errors import CannotWrite, InputError
from scaling.record.row_files import Unusable, quoted
from scaling.study.paths import StudyPaths
from scaling.study.study import read_study_info

_PART, _ABANDONED_S = ".part-", 3600.0  # tables being written, and when nobody writes any more
# a column with more distinct values is written without a dictionary, which would be built in vain
_PARQUET = "format parquet, compression snappy, dictionary_size_limit 10000"
# Tables made at a time: Python functions and the last stage of a query use a single thread, so
# another table can use the other processors.
_AT_ONCE = 2
_ASKED = "asked"  # the name of a query's own table
_ERRNO = re.compile(r'"errno":"(\d+)"')

# Tables that Python computes: the tables they need, and the function that makes them. Those of the
# draws are made together, as the table `drawn_cells`, so the others need only that.
Make = Callable[[duckdb.DuckDBPyConnection], "pa.Table | dict[str, pa.Table]"]
COMPUTED: dict[str, tuple[tuple[str, ...], Make | None]] = {
    "losses": (("planned_points",), losses.compared_losses),
    "layout_words": (("layout_choices", "comparison_groups"), layout_words.layout_words),
    "drawn_cells": (("cells", "runs", "matched_pairs", "engine_pairs"), drawn.drawn_tables),
    **{name: (("drawn_cells",), None) for name in drawn.SCHEMAS if name != "drawn_cells"},
}


def tabulate(
    study_dir: Path, sql_dir: Path, *, clusters: Mapping[str, Cluster] | None = None
) -> list[Unusable]:
    """Write tables/*.parquet of a study: one table per SQL file, all of them or none.

    Each file holds one select, and its table has the file's name. It reads `study.points`,
    `study.rows`, `study.refused`, `study.predictions`, `study.options`, `catalogue.gpus`,
    `catalogue.clusters`, and other tables, which are made first.
    Tables of the folder inner/ are for other tables only and are not written.

    Args:
        study_dir: results/<study>; rows/ may be missing, empty or partial.
        sql_dir: the folder of SQL files, reports/sql.
        clusters: by name, for their prices.

    Returns:
        Files and rows that were left out because they are not valid.

    Raises:
        InputError: no plan in `study_dir`, a file that cannot be read, or an SQL file that fails.
        CannotWrite: the system refused; the earlier tables are kept.
    """
    inner = _read(sql_dir / "inner")
    queries = _read(sql_dir) | inner
    if not queries:
        raise InputError(f"{sql_dir}: holds no .sql file, so there is no table to write")
    needs = all_needs(queries)
    about, paths = read_study_info(study_dir), StudyPaths(study_dir)
    with _attached(study_dir, clusters or {}) as (connection, unusable):
        # keep the old replication table until `replicate` writes a new one: a page may read it now
        kept = {f"{FOLDER}.parquet"} if about.replicates is not None else set()
        try:
            with _replacing(paths.tables, kept) as parts:
                files = {
                    str(parts / f"{name}.parquet"): name
                    for name in needs
                    if name not in inner and name not in drawn.INNER
                }
                _make_all(connection, needs, queries, sql_dir, files)
        except OSError as error:
            raise CannotWrite(
                f"{paths.tables}: the tables cannot be written: {error.strerror}; what was there "
                "is kept"
            ) from error
    return unusable


def ask(study_dir: Path, sql_dir: Path, query: str) -> list[dict[str, Any]]:
    """The records of a query to a study's tables; only what it needs is made, nothing written."""
    queries = _read(sql_dir) | _read(sql_dir / "inner") | {_ASKED: query}
    needs, wanted, left = all_needs(queries), dict[str, list[str]](), [_ASKED]
    while left:
        if (table := left.pop()) not in wanted:
            wanted[table] = needs[table]
            left += needs[table]
    with _attached(study_dir, {}) as (connection, _):
        _make_all(connection, wanted, queries, sql_dir, {})
        set_variables(connection)
        records: list[dict[str, Any]] = connection.table(_ASKED).to_arrow_table().to_pylist()
        return records


@contextlib.contextmanager
def _attached(
    study_dir: Path, clusters: Mapping[str, Cluster]
) -> Iterator[tuple[duckdb.DuckDBPyConnection, list[Unusable]]]:
    """A connection to a study's files and the catalogue, and what is not valid of the files."""
    about = read_study_info(study_dir)
    with duckdb.connect() as connection:
        connection.execute("set preserve_insertion_order = false")
        # reuse the memory of dropped tables instead of asking the system for it page by page
        connection.execute("set block_allocator_memory = '2GiB'")
        attach_catalogue(connection, clusters)
        unusable = attach(connection, StudyPaths(study_dir))
        connection.execute(
            "create table study.options as select ?::varchar as mode, ?::double as knee_share",
            [about.mode, about.knee_share],
        )
        yield connection, unusable


def _read(folder: Path) -> dict[str, str]:
    """Read the SQL files of a folder, by the names of their tables."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.sql"))}


def _make_all(
    connection: duckdb.DuckDBPyConnection,
    needs: Mapping[str, list[str]],
    queries: Mapping[str, str],
    sql_dir: Path,
    files: Mapping[str, str],
) -> None:
    """Make each table as soon as the tables it needs exist; write each of `files` after its table.

    Raises:
        InputError: tables need each other in a circle, or one fails.
        OSError: the system refuses to write.
    """
    needed_by_others = {other for needed in needs.values() for other in needed}

    def make(name: str) -> None:
        if name in files:
            _write(connection, files[name], name, sql_dir)
        elif name not in COMPUTED:  # a view if nothing but the writing of its file reads it
            kind = "table" if name in needed_by_others else "view"
            _run(connection, f'create {kind} "{name}" as {queries[name]}', sql_dir / f"{name}.sql")
        elif function := COMPUTED[name][1]:
            cursor = connection.cursor()
            made = function(cursor)
            for table, content in made.items() if isinstance(made, dict) else [(name, made)]:
                make_table(cursor, f'"{table}"', content)

    unmade = TopologicalSorter({**needs, **{file: [name] for file, name in files.items()}})
    try:
        unmade.prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise InputError(f"{sql_dir}: the tables need each other in a circle: {circle}") from error
    making: dict[Future[None], str] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while unmade.is_active():
            for name in unmade.get_ready():
                making[pool.submit(make, name)] = name
            for made in wait(making, return_when=FIRST_COMPLETED).done:
                made.result()
                unmade.done(making.pop(made))


def _write(connection: duckdb.DuckDBPyConnection, name: str, file: str, sql_dir: Path) -> None:
    try:
        _run(connection, f'copy "{name}" to {quoted(file)} ({_PARQUET})', sql_dir / f"{name}.sql")
    except InputError as error:
        told = _ERRNO.search(str(error))
        if told and isinstance(error.__cause__, duckdb.IOException):
            raise OSError(int(told[1]), os.strerror(int(told[1]))) from error
        raise


def _run(connection: duckdb.DuckDBPyConnection, query: str, file: Path) -> None:
    cursor = connection.cursor()  # each has variables of its own
    set_variables(cursor)
    try:
        cursor.execute(query)
    except (duckdb.Error, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {error}") from error


def all_needs(queries: Mapping[str, str]) -> dict[str, list[str]]:
    """The tables of `queries` or of COMPUTED that each table reads, by the query or COMPUTED.

    Computed tables are included if all that they need is.
    """
    needs: dict[str, list[str]] = {name: [] for name in queries}
    for name, (needed, _) in COMPUTED.items():
        if needs.keys() >= set(needed):
            needs[name] = list(needed)
    with duckdb.cursor() as connection:
        for name, query in queries.items():
            needs[name] = sorted(needs.keys() & _tables_read(connection, query))
    return needs


def _tables_read(connection: duckdb.DuckDBPyConnection, query: str) -> set[str]:
    """The tables without a schema that a query names; none if it cannot be parsed."""
    read: set[str] = set()

    def visit(node: dict[str, Any]) -> None:
        if node.get("type") == "BASE_TABLE" and not node["schema_name"]:
            read.add(node["table_name"])

    parsed = connection.execute("select json_serialize_sql($1::varchar)", [query]).fetchall()[0][0]
    json.loads(parsed, object_hook=visit)
    return read


@contextlib.contextmanager
def _replacing(tables_dir: Path, kept: Container[str]) -> Iterator[Path]:
    """A folder whose files become the tables if all goes well; older ones but `kept` go."""
    tables_dir.mkdir(parents=True, exist_ok=True)
    for left in tables_dir.glob(f"{_PART}*"):  # by a process that was killed
        if time.time() - left.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PART, dir=tables_dir) as parts:
        yield Path(parts)
        new = {path.name: path for path in Path(parts).iterdir()}
        for name, path in new.items():
            path.replace(tables_dir / name)
    for path in (*tables_dir.glob("*.parquet"), *tables_dir.glob("*.csv")):  # older ones had both
        if path.name not in new and path.name not in kept:
            path.unlink(missing_ok=True)
