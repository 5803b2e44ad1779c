"""Files of rows: valid ones are read, others are moved with a reason."""

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
from scaling.report import tables
from scaling.report.sections.replication import replication_section
from scaling.run import planning, retry
from scaling.run.status import Watcher
from scaling.study.grid import Plan
from scaling.study.paths import StudyPaths
from scaling.study.schema import Measure
from tests.analyse.conftest import SQL, some_point
from tests.report.synthetic_study import timed_row

pytestmark = pytest.mark.slow

POINTS = [some_point(size) for size in (1, 2, 4)]


@pytest.fixture
def folder(tmp_path):
    """Three rows of three points."""
    for one in POINTS:
        write_rows(tmp_path / "rows" / f"{one.point_id}.parquet", [timed_row(one, 2.0)])
    return tmp_path / "rows"


def file_of(folder, number=0):
    return folder / f"{POINTS[number].point_id}.parquet"


def halved(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def middle_gone(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])


SPOILED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "holds no row of this project: "),
    "cut short": (halved, "holds no row of this project: "),
    "text": (lambda path: path.write_text("hello, I am a row"), "holds no row of this project: "),
    "zeros within": (middle_gone, "holds no row of this project: "),
    "no rows": (
        lambda path: pq.write_table(pq.read_table(path).slice(0, 0), path), "holds no row; a point"
    ),
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
def test_a_file_without_a_valid_row_is_named_and_its_point_runs_again(folder, how):
    spoil, sentence = SPOILED[how]
    spoil(file_of(folder))
    content = file_of(folder).read_bytes()
    watcher = Watcher(folder.parent, POINTS)
    assert (watcher.look().done, watcher.look().left) == (2, 1)
    (told,) = retry.set_unreadable_aside(folder.parent)
    assert told.path == file_of(folder)
    assert told.reason.startswith(sentence)
    assert (folder / "retried" / f"{POINTS[0].point_id}.1.parquet").read_bytes() == content
    assert not file_of(folder).exists()
    assert retry.set_unreadable_aside(folder.parent) == []
    assert row_files.attempts_set_aside(StudyPaths(folder.parent)) == []
    assert (watcher.look().done, watcher.look().left) == (2, 1)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_an_unreadable_file_is_named_and_stays(folder, monkeypatch, number):
    for one in (0, 1):  # DuckDB, which is not patched, can read neither
        halved(file_of(folder, one))
    really_open = Path.open

    def refuse(path, *how, **more):
        if path == file_of(folder):
            raise OSError(number, os.strerror(number))
        return really_open(path, *how, **more)

    monkeypatch.setattr(Path, "open", refuse)
    told, _ = row_files.read_rows(sorted(row_files.row_files_in(folder))).unusable
    assert told.reason == f"cannot be read: {os.strerror(number)}"
    assert [one.path for one in retry.set_unreadable_aside(folder.parent)] == [file_of(folder, 1)]
    assert file_of(folder).exists()


@pytest.mark.parametrize("large_bytes", [0, 4 << 20])
def test_a_copy_of_a_row_counts_no_second_time(folder, monkeypatch, large_bytes):
    """A point with two rows would weigh four times in tables that join rows with rows."""
    monkeypatch.setattr(row_files, "_LARGE_BYTES", large_bytes)
    shutil.copy(file_of(folder), folder / "zz.parquet")
    found = row_files.read_rows(sorted(row_files.row_files_in(folder)))
    assert {*found.table["file"].to_pylist()} == {str(file_of(folder, n)) for n in range(3)}
    assert found.unusable == ()


def test_a_link_to_nothing_and_a_file_are_no_folders_of_rows(tmp_path):
    (tmp_path / "rows").symlink_to("nowhere")
    with pytest.raises(InputError, match="rows: is a link to nowhere, which is not there"):
        list(row_files.row_files_in(tmp_path / "rows"))
    with pytest.raises(InputError, match="is no folder, so it holds no rows"):
        list(row_files.row_files_in(Path(__file__)))


def test_a_pipe_or_a_device_among_the_rows_is_never_opened(folder):
    os.mkfifo(folder / "pipe.parquet")
    (folder / "zero.parquet").symlink_to("/dev/zero")
    found = row_files.read_rows(sorted(row_files.row_files_in(folder)))
    assert (found.table.num_rows, found.unusable) == (3, ())


def test_status_names_files_without_a_row_and_goes_on(folder, monkeypatch, capsys):
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
        assert told.err.startswith("Its point runs again: ")
        assert ".parquet: holds no row of this project: " in told.err
        assert told.out.startswith("2 done · 0 running · 1 left of 3")
    for number in range(20):
        halved(shutil.copy(file_of(folder, 1), folder / f"more{number}.parquet"))
    folders.status("s")
    *_, last = told = capsys.readouterr().err.splitlines()
    assert (len(told), last) == (9, "    and 13 more")


CELLS: tuple[Any, ...] = (
    None, "", "x" * 5000, "\x00\x1b[31m\ud7ff🦆", "=1+1", "../../x", "nan", True, 0, 1, -1, 2**62,
    -(2**63), 1.5, 1e308, -0.0, float("nan"), float("inf"), [], [None], [1.0, float("nan")],
    ["a", None], {"a": 1}, b"\xff\xfe",
)  # fmt: skip


def mutated(draw, good, content):
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
        record[draw.choice(("file", "reason", "row_number", "source", "a'b\"c"))] = "x"
    return pa.Table.from_pylist([record] * draw.choice((0, 1, 1, 1, 2)))


def test_every_file_is_taken_or_left_out_with_a_sentence(tmp_path, monkeypatch):
    """A hundred of them, of one seed: none ends in an error, and what is taken can be."""
    draw = random.Random(11)
    rows = tmp_path / "rows"
    rows.mkdir()
    for number in range(100):
        written = dataclasses.replace(timed_row(POINTS[0], 2.0), point_id=f"p{number}")
        pq.write_table(store.table_of([written]), tmp_path / "good.parquet")
        content = (tmp_path / "good.parquet").read_bytes()
        made = mutated(draw, dataclasses.asdict(written), content)
        if isinstance(made, bytes):
            (rows / f"{number}.parquet").write_bytes(made)
        else:
            pq.write_table(made, rows / f"{number}.parquet")
    files = sorted(row_files.row_files_in(rows))
    found = row_files.read_rows(files)
    taken = {Path(file) for file in found.table["file"].to_pylist()}
    left_out = {one.path for one in found.unusable}
    assert {*files} == taken | left_out
    assert min(len(taken), len(left_out)) > 10
    for one in found.unusable:
        assert one.reason.isprintable()
        assert len(one.reason) < 400
    for name, (kind, _) in fields_of(Row).items():
        if kind == "float" and name not in ("gradient_clipping", "time_limit_s"):
            values = [value for value in found.table[name].to_pylist() if value is not None]
            assert all(0 <= value < float("inf") for value in values), name
    monkeypatch.setattr(store, "_to_disk", lambda _path: None)  # of hundreds it takes seconds
    retry.set_unreadable_aside(tmp_path)
    again = row_files.read_rows(sorted(row_files.row_files_in(rows)))
    assert again.table.num_rows == found.table.num_rows


def test_every_table_is_read_or_named_in_a_sentence(tmp_path, monkeypatch):
    """Tables of the page and of a finding, spoiled at random, of one seed."""
    draw = random.Random(12)
    folder = tmp_path / "tables"
    folder.mkdir()
    record = {
        "reason": "of", "rows_excluded": 1, "finding": "a", "claim": "b", "paper": "c",
        "criterion": "d", "source": None, "subject": None, "observed": "e",
        "verdict": "reproduced",
    }  # fmt: skip
    monkeypatch.setattr(tables, "COLUMNS", {"excluded": ("reason", "rows_excluded")})
    pq.write_table(pa.Table.from_pylist([record]), tmp_path / "good.parquet")
    content = (tmp_path / "good.parquet").read_bytes()
    told = []
    for _ in range(50):
        made = mutated(draw, record, content)
        for name in ("excluded", "replication"):
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
