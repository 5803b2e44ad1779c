"""Files of rows: what is one is read, what is none is set aside with a sentence."""

import dataclasses
import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling.analyse.warehouse import tabulate
from scaling.cli import folders
from scaling.errors import InputError
from scaling.record import files as store
from scaling.record import row_files
from scaling.record.files import write_points, write_rows
from scaling.record.row import Row, fields_of
from scaling.record.row_checks import COLUMNS
from scaling.report import tables
from scaling.report.sections.replication import replication_section
from scaling.run import planning, retry
from scaling.run.progress import Watcher
from scaling.study.grid import Plan
from scaling.study.schema import Measure
from tests.analyse.conftest import SQL, some_point
from tests.report.synthetic_study import row, timed_row

pytestmark = pytest.mark.slow

POINTS = [some_point(size) for size in (1, 2, 4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three rows of three points."""
    for one in POINTS:
        write_rows(tmp_path / "rows" / f"{one.point_id}.parquet", [timed_row(one, 2.0)])
    return tmp_path / "rows"


def file_of(folder: Path, number: int = 0) -> Path:
    return folder / f"{POINTS[number].point_id}.parquet"


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def middle_gone(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])


SPOILED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "is empty; a point leaves one row of Parquet"),
    "cut short": (halved, "is cut short, or no Parquet file"),
    "text": (lambda path: path.write_text("hello, I am a row"), "is cut short, or no Parquet file"),
    "zeros within": (middle_gone, "holds no row of this project: "),
    "another table": (
        lambda path: pq.write_table(pa.table({"a": [1]}), path), "point_id is missing"
    ),
    "of another type": (
        lambda path: pq.write_table(pa.table({"world_size": ["many"]}), path),
        "holds no row of this project: ",
    ),
    "impossible": (
        lambda path: write_rows(path, [timed_row(POINTS[0], 2.0, tp=3)]),
        "world_size=1: is not tp x pp x cp x dp",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILED)
def test_a_file_that_holds_no_row_is_set_aside_with_a_sentence_and_wanted_again(folder, how):
    spoil, sentence = SPOILED[how]
    spoil(file_of(folder))
    content = file_of(folder).read_bytes()
    watcher = Watcher(folder.parent, POINTS)
    assert (watcher.look().done, watcher.look().left) == (2, 1)
    (told,) = row_files.set_unreadable_aside(folder)
    assert told.path == file_of(folder)
    assert told.reason.startswith(sentence)
    kept = folder / "unreadable" / f"{POINTS[0].point_id}.1.parquet"
    assert kept.read_bytes() == content
    assert not file_of(folder).exists()
    assert row_files.set_unreadable_aside(folder) == []
    assert row_files.unreadable_set_aside(folder / "unreadable") == [
        row_files.Unusable(kept, told.reason)
    ]
    assert (watcher.look().done, watcher.look().left) == (2, 1)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_a_file_that_the_system_does_not_give_is_said_to_be_unreadable_and_stays(
    folder, monkeypatch, number
):
    really_open = Path.open

    def refuse(path, *how, **more):
        if path == file_of(folder):
            raise OSError(number, os.strerror(number))
        return really_open(path, *how, **more)

    monkeypatch.setattr(Path, "open", refuse)
    (told,) = row_files.read_rows(sorted(row_files.row_files_in(folder))).unusable
    assert told.reason == f"cannot be read: {os.strerror(number)}"
    assert row_files.set_unreadable_aside(folder) == []
    assert file_of(folder).exists()


def test_a_file_with_a_valid_row_beside_an_invalid_one_is_not_said_to_be_set_aside(folder):
    both = [timed_row(POINTS[0], 2.0), dataclasses.replace(timed_row(POINTS[0], 2.0), attempt=0)]
    write_rows(file_of(folder), both)
    assert row_files.set_unreadable_aside(folder) == []
    assert file_of(folder).exists()


def test_a_copy_of_a_row_beside_it_counts_no_second_time_and_stays(folder):
    """A point with two rows would weigh four times in tables that join rows with rows."""
    copy = shutil.copy(file_of(folder), folder / "before.parquet")
    found = row_files.read_rows(sorted(row_files.row_files_in(folder)))
    assert found.table["file"].to_pylist() == [str(file_of(folder, n)) for n in range(3)]
    reason = f"holds the row of {POINTS[0].point_id}, which has a file of its own"
    assert [(one.path, one.reason) for one in found.unusable] == [(copy, reason)]
    assert row_files.set_unreadable_aside(folder) == []


def test_what_was_set_aside_is_said_until_its_point_has_run_again(folder):
    for _ in range(2):
        halved(file_of(folder))
        row_files.set_unreadable_aside(folder)
        write_rows(file_of(folder), [timed_row(POINTS[0], 2.0)])
    assert row_files.unreadable_set_aside(folder / "unreadable") == []
    names = sorted(path.name for path in (folder / "unreadable").glob("*.parquet"))
    assert names == [f"{POINTS[0].point_id}.{number}.parquet" for number in (1, 2)]


def test_status_names_what_it_sets_aside_and_goes_on(folder, monkeypatch, capsys):
    halved(file_of(folder))
    planned = SimpleNamespace(
        study=SimpleNamespace(mode="measure", measure=Measure(exclude_slow_nodes=False)),
        plan=Plan(points=tuple(POINTS), refusals=()),
        folder=folder.parent,
    )
    monkeypatch.setattr(planning, "plan_study", lambda *_given, **_named: planned)
    for _ in range(2):  # until the point has run again
        folders.status("s")
        told = capsys.readouterr()
        assert told.err.startswith("Set aside, its point will run again: ")
        assert told.err.endswith(".1.parquet: is cut short, or no Parquet file\n")
        assert told.out.startswith("2 done · 0 running · 1 left of 3")
    for number in range(20):
        halved(shutil.copy(file_of(folder, 1), folder / f"more{number}.parquet"))
    folders.status("s")
    *_, last = told = capsys.readouterr().err.splitlines()
    assert (len(told), last) == (9, "    and 13 more")


def test_failed_points_are_retried_though_another_row_cannot_be_read(folder):
    write_rows(file_of(folder, 1), [row(POINTS[1], "timeout")])
    halved(file_of(folder))
    assert retry.set_aside(folder.parent, {"timeout"}) == 1
    assert (folder / "retried" / f"{POINTS[1].point_id}.1.parquet").exists()


def test_one_bad_file_makes_only_a_few_beside_it_be_read_one_by_one(folder, monkeypatch):
    for number in range(40):
        other = dataclasses.replace(POINTS[1], point_id=f"{number}")
        write_rows(folder / f"{number}.parquet", [timed_row(other, 2.0)])
    middle_gone(file_of(folder))
    monkeypatch.setattr(row_files, "ALONE", 4)
    alone = []
    read = row_files._alone
    monkeypatch.setattr(row_files, "_alone", lambda file: alone.append(file) or read(file))
    found = row_files.read_rows(sorted(row_files.row_files_in(folder)))
    assert [one.path for one in found.unusable] == [file_of(folder)]
    assert found.table.num_rows == 42
    assert file_of(folder) in alone
    assert len(alone) <= 4


def test_rows_of_versions_before_and_after_a_column_are_read_together(folder):
    older = pq.read_table(file_of(folder)).drop_columns(["nccl_version", "throttled_share"])
    older = older.append_column("of_the_past", pa.array([1])).select(older.column_names[::-1])
    pq.write_table(older, file_of(folder))
    found = row_files.read_rows(sorted(row_files.row_files_in(folder)))
    assert found.unusable == ()
    assert found.table.column_names == [*COLUMNS, "file"]
    assert found.table["step_time_s"].to_pylist() == [2.0] * 3


def test_a_folder_that_is_not_there_holds_no_rows(tmp_path):
    assert row_files.set_unreadable_aside(tmp_path / "rows") == []
    assert row_files.unreadable_set_aside(tmp_path / "rows" / "unreadable") == []


CELLS: tuple[Any, ...] = (
    None, "", "x" * 5000, "\x00\x1b[31m\ud7ff🦆", "=1+1", "../../x", "nan", True, 0, 1, -1, 2**62,
    -(2**63), 1.5, 1e308, -0.0, float("nan"), float("inf"), [], [None], [1.0, float("nan")],
    ["a", None], {"a": 1}, b"\xff\xfe",
)  # fmt: skip


def mutated(draw: random.Random, good: dict[str, Any], content: bytes) -> bytes | pa.Table:
    """A row file as chance, an older version or an ill will leaves it."""
    if draw.random() < 0.5:
        changed = bytearray(content)
        for _ in range(draw.choice((1, 3, 30))):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        cut = draw.randrange(len(changed)) if draw.random() < 0.2 else len(changed)
        return bytes(changed[:cut])
    record = dict(good)
    for name in draw.sample(list(record), draw.choice((1, 2, 5))):
        if draw.random() < 0.2:
            del record[name]
        else:
            record[name] = draw.choice(CELLS)
    if draw.random() < 0.2:
        record[draw.choice(("file", "reason", "row_number", "series", "a'b\"c"))] = "x"
    return pa.Table.from_pylist([record] * draw.choice((0, 1, 1, 1, 2)))


def test_every_file_is_taken_or_left_out_with_a_sentence(tmp_path, monkeypatch):
    """A hundred of them, of one seed: none ends in an error, and what is taken can be."""
    draw = random.Random(11)
    good = dataclasses.asdict(timed_row(POINTS[0], 2.0))
    write_rows(tmp_path / "good.parquet", [timed_row(POINTS[0], 2.0)])
    content = (tmp_path / "good.parquet").read_bytes()
    rows = tmp_path / "rows"
    rows.mkdir()
    for number in range(100):
        made = mutated(draw, good, content)
        if isinstance(made, bytes):
            (rows / f"{number}.parquet").write_bytes(made)
        else:
            pq.write_table(made, rows / f"{number}.parquet")
    files = sorted(row_files.row_files_in(rows))
    found = row_files.read_rows(files)
    taken = {Path(file) for file in found.table["file"].to_pylist()}
    left_out = {one.path for one in found.unusable}
    silent = set(files) - taken - left_out
    assert all(pq.read_metadata(path).num_rows == 0 for path in silent)
    assert min(len(taken), len(left_out)) > 10
    for one in found.unusable:
        assert one.reason.isprintable()
        assert len(one.reason) < 400
    for name, (kind, _) in fields_of(Row).items():
        if kind == "float" and name not in ("gradient_clipping", "time_limit_s"):
            values = [value for value in found.table[name].to_pylist() if value is not None]
            assert all(0 <= value < float("inf") for value in values), name
    monkeypatch.setattr(store, "_to_disk", lambda _path: None)  # of hundreds it takes seconds
    row_files.set_unreadable_aside(rows)
    again = row_files.read_rows(sorted(row_files.row_files_in(rows)))
    assert again.table.num_rows == found.table.num_rows


def test_every_table_is_read_or_named_in_a_sentence(tmp_path, monkeypatch):
    """Tables of the page and of a finding, spoiled at random, of one seed."""
    draw = random.Random(12)
    folder = tmp_path / "tables"
    folder.mkdir()
    record = {
        "reason": "of", "rows_left_out": 1, "finding": "a", "claim": "b", "source": "c",
        "criterion": "d", "series": None, "subject": None, "observed": "e",
        "verdict": "reproduced",
    }  # fmt: skip
    monkeypatch.setattr(tables, "COLUMNS", {"left_out": ("reason", "rows_left_out")})
    pq.write_table(pa.Table.from_pylist([record]), tmp_path / "good.parquet")
    content = (tmp_path / "good.parquet").read_bytes()
    told = []
    for _ in range(50):
        made = mutated(draw, record, content)
        for name in ("left_out", "replication"):
            if isinstance(made, bytes):
                (folder / f"{name}.parquet").write_bytes(made)
            else:
                pq.write_table(made, folder / f"{name}.parquet")
        for read in (tables.read_tables, replication_section):
            try:
                read(tmp_path)
            except InputError as error:
                told.append(str(error))
    assert 10 < len(told) < 100
    assert all(one.startswith(f"{folder}/") and "\n" not in one for one in told)


@pytest.mark.parametrize(
    "name", ["points.parquet", "refused.parquet", "predictions.parquet", "probes.parquet"]
)
def test_a_file_of_a_study_that_is_none_is_named_in_a_sentence(tmp_path, name):
    write_points(tmp_path, Plan(points=(POINTS[0],), refusals=()))
    for content in (b"", b"PAR1" * 9, b"hello"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name}: is no Parquet file of this project") as told:
            tabulate(tmp_path, SQL)
        assert str(told.value).endswith("; remove it, so that it is made again")


def test_imported_rows_that_cannot_be_read_are_said_to_come_from_import_only(tmp_path):
    """No run makes them again."""
    (tmp_path / "published.parquet").write_text("half a table")
    with pytest.raises(InputError, match="remove it, so that `scaling import` makes it again"):
        tabulate(tmp_path, SQL)
