"""Tiny studies, tabulated: numbers small enough to work out by hand."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pytest

from scaling.analyse import catalogue
from scaling.analyse.warehouse import COMPUTED, all_needs, tabulate
from scaling.importing.rows import import_rows
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.record.files import point_columns, write_points, write_rows
from scaling.record.row import Row
from scaling.record.row_files import Unusable
from scaling.study.grid import Plan, Refusal
from scaling.study.point import Point
from tests.conftest import PROJECT
from tests.predict.reference import write_csv
from tests.report.synthetic_study import point

SQL = PROJECT / "reports" / "sql"

Records = list[dict[str, Any]]
Table = Callable[[str], Records]


def layout(world_size: int = 1, *, tp: int = 1, zero_stage: int = 1, **choices: Any) -> Layout:
    """A layout of eight sequences a step, whatever the size."""
    dp = world_size // tp
    return Layout(
        tp=tp, dp=dp, zero_stage=zero_stage, gradient_accumulation_steps=8 // dp,
        **{"seq_length": 128, **choices},
    )  # fmt: skip


def some_point(
    world_size: int = 1, *, model: str = "tiny", repeat: int = 0, **choices: Any
) -> Point:
    return point(layout(world_size, **choices), model=model, repeat=repeat)


def refusal_of(point: Point, reason: str) -> Refusal:
    """The refusal of this reason, had it been this point."""
    known = point_columns(point)
    names = {field.name for field in dataclasses.fields(Refusal)} - {"reason"}
    return Refusal(**{name: known[name] for name in names}, reason=reason)


# Made together: the draws, which each of them needs, take longer than all else.
DRAWN = (
    "comparison_groups", "crossovers", "estimates", "hosts", "knees", "returns", "sizes",
)  # fmt: skip


@pytest.fixture
def tabulated(tmp_path: Path) -> Callable[..., Table]:
    """Write points, rows and refusals; read the tables that follow from them.

    Each is made when it is asked for, with what it needs and nothing else: all of them take a
    second. test_warehouse and tests/report make them all.
    """

    def run(
        points: Sequence[Point], rows: Sequence[Row] = (), refusals: Sequence[Refusal] = ()
    ) -> Table:
        write_points(tmp_path, Plan(points=tuple(points), refusals=tuple(refusals)))
        if rows:
            write_rows(tmp_path / "rows" / "all.parquet", rows)

        made: dict[str, Records] = {}

        def table(name: str) -> Records:
            if name not in made:
                names = DRAWN if name in DRAWN else (name,)
                tabulate_only(tmp_path, tmp_path / "sql" / name, *names)
                made.update((each, read(tmp_path / "tables" / f"{each}.parquet")) for each in names)
            return made[name]

        return table

    return run


@functools.cache
def sql_files() -> dict[str, Path]:
    """The SQL files by the names of their tables."""
    return {path.stem: path for path in sorted(SQL.rglob("*.sql"))}


def tabulate_only(study: Path, sql: Path, *names: str) -> list[Unusable]:
    """Tabulate with the SQL files of these tables alone, and of all that they need as inner ones.

    Those are not written, and what only other tables need is not computed: this takes half as long.
    """
    files = sql_files()
    needs = all_needs({stem: path.read_text(encoding="utf-8") for stem, path in files.items()})
    (sql / "inner").mkdir(parents=True, exist_ok=True)
    left, taken = list(names), set()
    while left:
        table = left.pop()
        if table not in taken:
            taken.add(table)
            left += needs[table]
    for table in taken & set(files):
        copy = sql / ("" if table in names else "inner") / f"{table}.sql"
        copy.write_bytes(files[table].read_bytes())
    computed = {name: made for name, made in COMPUTED.items() if name in taken}
    with mock.patch.dict(COMPUTED, computed, clear=True):
        return tabulate(study, sql)


def read(path: Path) -> Records:
    return duckdb.read_parquet(str(path)).to_arrow_table().to_pylist()


PAPER_ROW = {  # of a published table, as a CSV has it
    "source": "a paper", "framework": "Somebody 1.0", "model": "gpt", "num_layers": "2",
    "hidden_size": "64", "num_heads": "4", "num_kv_heads": "4", "ffn_hidden_size": "256",
    "gated_mlp": "false", "vocab_size": "1000", "tied_embeddings": "true", "seq_length": "128",
    "cluster": "a100-80gb-dgx", "gpus_per_node": "8", "world_size": "8", "tp": "2", "pp": "1",
    "cp": "1", "zero_stage": "1", "sequence_parallel": "false", "micro_batch_size": "2",
    "global_batch_size": "32", "activation_checkpointing": "none", "attention": "flash2",
    "fused_norm": "true", "precision": "bf16", "outcome": "ok", "step_time_s": "0.5",
}  # fmt: skip


TINY = ModelShape(  # of PAPER_ROW
    family="gpt", num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=4, head_dim=16,
    ffn_hidden_size=256, gated_mlp=False, vocab_size=1000, tied_embeddings=True,
)  # fmt: skip


@pytest.fixture
def imported(tmp_path):
    """Import rows, each PAPER_ROW with changes, into a study, and read what its tables say."""

    def run(*changes, drop=(), clusters=None, study="study", models=None):
        rows = [{k: v for k, v in (PAPER_ROW | one).items() if k not in drop} for one in changes]
        source = write_csv(tmp_path / "rows.csv", rows)
        run.said = import_rows(  # type: ignore[attr-defined]
            source, tmp_path / study, clusters or {}, models
        )

        def table(name):
            tabulate_only(tmp_path / study, tmp_path / "sql" / name, name)
            return read(tmp_path / study / "tables" / f"{name}.parquet")

        return table

    return run


def run_sql(
    name: str, *, knee_share: float = 0.75, mode: str = "measure", **tables: Records | pa.Table
) -> Records:
    """One SQL file over hand-written tables, without the rest of the warehouse.

    They are of one connection alone; a database for each would take as long as a query.
    """
    with duckdb.cursor() as connection:
        connection.execute("create schema if not exists study")
        catalogue.set_variables(connection)
        connection.execute(
            "create or replace table study.options as "
            f"select {knee_share} as knee_share, '{mode}' as mode"
        )
        for table, records in tables.items():
            known = pa.Table.from_pylist(records) if isinstance(records, list) else records
            connection.register(table, known)
        query = (SQL / f"{name}.sql").read_text(encoding="utf-8")
        return connection.sql(query).to_arrow_table().to_pylist()
