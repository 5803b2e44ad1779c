"""Tables are written in a stated order, whole or not at all, and bad input gets a sentence."""

import dataclasses
import os
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling.analyse import drawn
from scaling.analyse.sources import make_view
from scaling.analyse.warehouse import COMPUTED, all_needs, tabulate
from scaling.errors import CannotWrite, InputError
from scaling.record import row_files
from scaling.record.files import arrow_schema, write_points, write_rows
from scaling.study.grid import Plan
from scaling.study.point import Point
from tests.analyse.conftest import SQL, layout, read, some_point, tabulate_only
from tests.processes import largest_file
from tests.report.synthetic_study import cpu_plan, timed_row, write_study
from tests.report.synthetic_study import point as point_of

pytestmark = pytest.mark.slow


@pytest.fixture
def study(tmp_path: Path) -> Path:
    write_points(tmp_path, Plan(points=(some_point(1), some_point(2)), refusals=()))
    return tmp_path


def cpu_point(world_size: int) -> Point:
    return point_of(layout(world_size), model="tiny", cluster="here", gpu="cpu")


def sql(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.sql").write_text(text, encoding="utf-8")
    return folder


def test_a_table_runs_after_those_it_needs_whatever_the_alphabet_says(study, tmp_path):
    folder = sql(tmp_path / "sql", a="select b.n + c.n as n from b, c",
                 b="select n + 1 as n from c",
                 c="select 1 as n")  # fmt: skip
    tabulate(study, folder)
    assert read(study / "tables" / "a.parquet") == [{"n": 3}]


def test_tables_in_a_circle_are_refused(study, tmp_path):
    folder = sql(tmp_path / "sql", a="from b", b="from a")
    with pytest.raises(InputError, match=r"circle: (a -> b -> a|b -> a -> b)$"):
        tabulate(study, folder)


def test_an_unknown_table_names_the_file(study, tmp_path):
    folder = sql(tmp_path / "sql", layouts="select 1 as n", best="from layout")
    with pytest.raises(InputError, match=r"best\.sql: .*Table with name layout does not exist"):
        tabulate(study, folder)


def test_a_query_that_is_no_sql_names_its_file(study, tmp_path):
    with pytest.raises(InputError, match=r"best\.sql: Parser Error"):
        tabulate(study, sql(tmp_path / "sql", best="select from where"))


def test_a_query_needs_the_tables_it_reads_however_they_are_read():
    text = """
    with found as (select n, 'from dear' as word from "near" as one join two using (n))
    from found where n in (select n from three) and n > (select max(n) from study.rows)
    """
    tables = dict.fromkeys(("near", "two", "three", "dear", "rows"), "select 1 as n")
    assert all_needs({"all": text, **tables})["all"] == ["near", "three", "two"]


def test_every_sql_file_leaves_a_table_of_its_name(study):
    tabulate(study, SQL)
    written = {path.stem for path in (study / "tables").glob("*.parquet")}
    assert written == {path.stem for path in SQL.glob("*.sql")} | set(COMPUTED) - drawn.INNER


def test_tables_are_the_same_in_whichever_order_rows_and_their_files_come(tmp_path):
    written = []
    for seed in range(2):
        study = write_study(tmp_path / str(seed), cpu_plan())
        (file,) = (study / "rows").iterdir()
        rows = pq.read_table(file)
        rows = rows.take(np.random.default_rng(seed).permutation(rows.num_rows))
        pq.write_table(rows.slice(0, 20), file)
        pq.write_table(rows.slice(20), study / "rows" / f"{'ab'[seed]}.parquet")
        tabulate(study, SQL)
        tables = (study / "tables").glob("*.parquet")
        written.append({path.stem: read(path) for path in tables})

    one, other = written
    assert len(one["statistics"]) >= 20
    assert [name for name in one if one[name] != other[name]] == []


@pytest.mark.parametrize("two", ["select error('two') as n from good", "select two from good"])
def test_a_table_that_fails_is_named_and_the_earlier_tables_stay(study, tmp_path, two):
    folder = sql(tmp_path / "sql", good="select 1 as one")
    tabulate(study, folder)
    with pytest.raises(InputError, match=r"bad\.sql: .*two"):
        tabulate(study, sql(folder, good="select 2 as one", bad=two))
    assert [path.name for path in (study / "tables").iterdir()] == ["good.parquet"]
    assert read(study / "tables" / "good.parquet") == [{"one": 1}]


def test_a_full_disk_is_called_that_and_the_earlier_tables_stay(study, tmp_path):
    folder = sql(tmp_path / "sql", one="select 1 as one")
    tabulate(study, folder)
    sql(folder, one="select range as one from range(1000)")
    with largest_file(1000), pytest.raises(CannotWrite) as told:
        tabulate(study, folder)
    tables = study / "tables"
    assert str(told.value) == (
        f"{tables}: the tables cannot be written: File too large; what was there is kept"
    )
    assert read(tables / "one.parquet") == [{"one": 1}]


def test_a_table_without_its_sql_file_goes(study, tmp_path):
    folder = sql(tmp_path / "sql", one="select 1 as one",
                 two="select 2 as two")  # fmt: skip
    tabulate(study, folder)
    (folder / "two.sql").unlink()
    tabulate(study, folder)
    assert sorted(path.name for path in (study / "tables").iterdir()) == ["one.parquet"]


def test_a_row_of_an_older_version_has_nulls_in_newer_columns(study):
    row = timed_row(some_point(1), 2.0)
    record = {name: getattr(row, name) for name in arrow_schema(type(row)).names}
    del record["nccl_version"]
    record["a_column_of_the_past"] = 1
    (study / "rows").mkdir()
    pq.write_table(pa.Table.from_pylist([record]), study / "rows" / "old.parquet")
    tabulate_only(study, study / "sql", "measurements", "provenance")
    (found,) = read(study / "tables" / "measurements.parquet")
    assert found["step_time_s"] == 2.0
    (stack,) = read(study / "tables" / "provenance.parquet")
    assert stack["nccl_version"] is None


def test_a_half_written_row_file_is_named_and_costs_no_other_row(study):
    write_rows(study / "rows" / "whole.parquet", [timed_row(some_point(1), 2.0)])
    (study / "rows" / "half.parquet").write_bytes(b"PAR1")
    (unusable,) = tabulate_only(study, study / "sql", "measurements", "excluded")
    named, reason = str(unusable).removeprefix(f"{study}/").split(": ", 1)
    assert named == "rows/half.parquet"
    assert reason.startswith("holds no row of this project: ")
    assert "too small to be a Parquet file" in reason
    assert [row["step_time_s"] for row in read(study / "tables" / "measurements.parquet")] == [2.0]
    assert read(study / "tables" / "excluded.parquet") == [
        {"reason": f"{named}: {reason}", "rows_excluded": 1}
    ]
    assert (study / "rows" / "half.parquet").exists()  # Snakemake would miss what goes


def test_what_a_killed_process_left_among_the_tables_goes_after_an_hour(study):
    for name, age_s in ((".part-old", 7200), (".part-new", 0)):
        (study / "tables" / name).mkdir(parents=True)
        then = time.time() - age_s
        os.utime(study / "tables" / name, (then, then))
    tabulate_only(study, study / "sql", "measurements")
    assert [path.name for path in (study / "tables").glob(".part-*")] == [".part-new"]


def test_one_impossible_row_of_a_large_file_costs_no_other(study, monkeypatch):
    monkeypatch.setattr(row_files, "_LARGE_BYTES", 0)
    rows = [timed_row(some_point(size), 2.0) for size in (1, 2)]
    write_rows(study / "rows" / "both.parquet", [dataclasses.replace(rows[0], dp=3), rows[1]])
    (study / "rows" / "none.parquet").write_bytes(b"PAR1" * 9)
    said = [str(one) for one in tabulate_only(study, study / "sql", "measurements")]
    assert said[0] == f"{study}/rows/both.parquet: world_size=1: is not tp x pp x cp x dp"
    assert said[1].startswith(f"{study}/rows/none.parquet: holds no row of this project: ")
    (found,) = read(study / "tables" / "measurements.parquet")
    assert found["point_id"] == rows[1].point_id


def test_probes_that_cannot_be_are_left_out_and_said(study):
    good = {"cluster": "here", "kind": "all_reduce", "outcome": "ok", "seconds": 1.0}
    ill = [{**good, "kind": "../../../x"}, {**good, "seconds": -1.0}, {**good, "cluster": None}]
    pq.write_table(pa.Table.from_pylist([good, *ill]), study / "probes.parquet")
    said = [one.reason for one in tabulate_only(study, study / "sql", "collectives")]
    assert len(said) == 3
    assert said[1].startswith("a probe's kind='../../../x': must be one of gemm, attention")
    assert said[2] == "a probe's seconds=-1.0: must be a finite number above 0"


def test_a_study_folder_may_hold_what_a_glob_would_interpret(tmp_path):
    folder, beside = tmp_path / "what[12]?*", tmp_path / "what1xy"
    for one, seconds in ((folder, 1.0), (beside, 2.0)):
        write_points(one, Plan(points=(some_point(1),), refusals=()))
        write_rows(one / "rows" / "a[b]*.parquet", [timed_row(some_point(1), seconds)])
    tabulate_only(folder, tmp_path / "sql", "measurements")
    (found,) = pq.ParquetFile(folder / "tables" / "measurements.parquet").read().to_pylist()
    assert found["step_time_s"] == 1.0


def test_a_folder_without_a_plan_is_named(tmp_path):
    with pytest.raises(InputError, match=r"points\.parquet: is missing; `scaling plan`"):
        tabulate(tmp_path, SQL)


def test_a_folder_without_sql_is_named(study, tmp_path):
    with pytest.raises(InputError, match=r"holds no \.sql file"):
        tabulate(study, tmp_path)


def test_the_study_says_the_share_at_the_knee_and_whether_it_only_predicts(study):
    (study / "study.json").write_text('{"mode": "predict", "knee_share": 0.6}', encoding="utf-8")
    tabulate_only(study, study / "sql", "progress")
    (found,) = read(study / "tables" / "progress.parquet")
    assert (found["waiting"], found["predicted"]) == (0, 2)
    asked = sql(study / "asked", choices="select * from study.options")
    tabulate(study, asked)
    assert read(study / "tables" / "choices.parquet") == [{"mode": "predict", "knee_share": 0.6}]


def test_a_load_is_said_as_a_multiple_of_the_most_threads_of_one_point(study):
    """Eight ranks on four hosts are two on the first, whose load it is."""
    points = tuple(cpu_point(size) for size in (1, 2, 8))
    write_points(study, Plan(points=points, refusals=()))
    hosts = (["n1"], ["n1"], ["n1", "n2", "n3", "n4"])
    rows = [
        timed_row(point, 2.0, load_average=load, hosts=on)
        for point, load, on in zip(points, (1.5, 9.0, 2.5), hosts, strict=True)
    ]

    def loads():
        tabulate_only(study, study / "sql", "measurements")
        found = read(study / "tables" / "measurements.parquet")
        return [row["load"] for row in sorted(found, key=lambda row: row["world_size"])]

    write_rows(study / "rows" / "all.parquet", rows)
    assert loads() == [0.75, 4.5, 1.25]
    # with SCALING_THREADS=4 a load of 2.5 is the study's own
    threaded = [dataclasses.replace(row, threads_per_rank=4) for row in rows]
    write_rows(study / "rows" / "all.parquet", threaded)
    assert loads() == [1.5 / 8, 9.0 / 8, 2.5 / 8]


def test_answers_of_a_published_study_stand_until_new_ones_are_there(study):
    answers = study / "tables" / "replication.parquet"
    (study / "study.json").write_text('{"replicates": "zero_stages"}', encoding="utf-8")
    tabulate_only(study, study / "sql", "progress")
    answers.write_bytes(b"old")
    tabulate_only(study, study / "sql", "progress")
    assert answers.read_bytes() == b"old"
    (study / "study.json").write_text("{}", encoding="utf-8")
    tabulate_only(study, study / "sql", "progress")
    assert not answers.exists()


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("predictions.parquet", "fits", "maybe"),
        ("predictions.parquet", "low", {"a": 1.0}),
        ("points.parquet", "tp", "x"),
        ("refused.parquet", "tp", [1]),
    ],
)
def test_a_file_of_another_version_is_named_with_its_column(study, name, column, value):
    pq.write_table(pa.table({"point_id": ["a"], column: [value]}), study / name)
    with pytest.raises(InputError, match=rf"{study / name}: column {column} holds .*version"):
        tabulate(study, SQL)


def test_a_view_has_the_stated_columns_whatever_its_files_hold(tmp_path):
    columns = {"name": "varchar", "gpus": "bigint", "step_s": "double", "loss": "double"}
    pq.write_table(pa.table({"gpus": [8], "extra": ["x"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"step_s": [0.5]}), tmp_path / "b.parquet")
    connection = duckdb.connect()
    make_view(connection, "filled", columns, sorted(tmp_path.glob("*.parquet")))
    make_view(connection, "without", columns, [])
    assert connection.sql("from filled order by gpus").fetchall() == [
        (None, 8, None, None),
        (None, None, 0.5, None),
    ]
    assert connection.sql("from without").columns == list(columns)
