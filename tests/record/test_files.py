"""Files are whole or not there, and hold what was put in."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling.errors import CannotWrite, InputError
from scaling.record import files as store
from scaling.record.row import Row, fields_of
from scaling.study import grid
from scaling.study.load import load_study
from scaling.study.point import point_from_json
from tests.processes import largest_file
from tests.rows import row_of


@pytest.fixture
def planned(config, write_study):
    return grid.expand_grid(load_study(write_study(layouts=[{"tp": [1, 2]}]), config))


def test_a_row_comes_back_as_it_was_written(planned, tmp_path):
    row = row_of(planned.points[0], step_times_s=[0.5, 0.25], step_time_s=0.375, losses=[2.0])
    store.write_rows(tmp_path / "rows" / "a.parquet", [row])
    (back,) = pq.read_table(tmp_path / "rows" / "a.parquet").to_pylist()
    assert Row(**back) == row


def test_a_row_from_before_an_axis_has_its_default(planned, tmp_path):
    row, path = row_of(planned.points[0]), tmp_path / "a.parquet"
    store.write_rows(path, [row])
    older = pq.read_table(path).drop_columns(["compile", "zero_shard_size", "optimizer_offload"])
    pq.write_table(older, path)
    assert store.read_row(path) == row


def test_a_null_where_the_row_must_say_something_is_refused(planned, tmp_path):
    with pytest.raises(pa.ArrowInvalid):
        store.write_rows(tmp_path / "a.parquet", [row_of(planned.points[0], outcome=None)])
    assert not list(tmp_path.glob("*.parquet"))


def test_a_write_that_fails_leaves_the_old_file(planned, tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    store.write_rows(path, [row_of(planned.points[0], attempt=1)])

    def full_disk(_table, part, **_options):
        part.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(pq, "write_table", full_disk)
    with pytest.raises(CannotWrite, match=r"a\.parquet: cannot be written: no space left"):
        store.write_rows(path, [row_of(planned.points[0], attempt=2)])
    assert pq.read_table(path)["attempt"].to_pylist() == [1]
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_is_one_sentence_and_an_os_error(tmp_path):
    for write in (
        lambda path: store.write_text(path, "x" * 100_000),
        lambda path: store.write_table(path, pa.table({"a": list(range(100_000))})),
    ):
        refused = pytest.raises(OSError, match=r"a\.txt: cannot be written: .*too large")
        with largest_file(1000), refused as caught:
            write(tmp_path / "a.txt")
        assert isinstance(caught.value, InputError)
    assert list(tmp_path.iterdir()) == []


def test_data_are_flushed_before_the_rename_and_the_folder_after_it(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(store, "_to_disk", lambda path: order.append((path, sorted(
        one.name for one in tmp_path.iterdir()))))  # fmt: skip
    store.write_text(tmp_path / "a.txt", "new")
    (part, before), (folder, after) = order
    assert before == [part.name]
    assert (folder, after) == (tmp_path, ["a.txt"])


@pytest.mark.parametrize("path", [".", "/"])
def test_a_folder_is_no_file_to_write(path):
    with pytest.raises(CannotWrite, match=f"{path}: cannot be written: Is a directory"):
        store.write_text(Path(path), "x")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\xff" * 100, b"PAR1" + b"\x00" * 50 + b"PAR1"])
def test_a_row_that_cannot_be_read_is_a_sentence_with_its_file(tmp_path, content):
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.parquet: holds no row of this version: "):
        store.read_row(tmp_path / "a.parquet")


def test_a_plan_leaves_one_file_per_point_and_two_tables(planned, tmp_path):
    store.write_points(tmp_path, planned)
    files = sorted((tmp_path / "points").glob("*.json"))
    assert [point_from_json(f.read_text()).point_id for f in files] == sorted(
        p.point_id for p in planned.points
    )
    points = pq.read_table(tmp_path / "points.parquet")
    assert points.num_rows == len(planned.points)
    assert [name for name in fields_of(Row) if name in points.column_names] == points.column_names
    refused = pq.read_table(tmp_path / "refused.parquet").to_pylist()
    assert [r["reason"] for r in refused] == [r.reason for r in planned.refusals]
    assert not list(tmp_path.rglob("*.part"))


def test_writers_of_one_file_in_one_process_leave_it_whole(tmp_path):
    path, both = tmp_path / "a.json", threading.Barrier(2, timeout=60)

    def write(letter):
        with store.replacement(path) as part:
            part.write_text(letter * 1000)
            both.wait()  # each has written its own before either takes the name

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, "ab"))
    assert path.read_text() in ("a" * 1000, "b" * 1000)
    assert list(tmp_path.iterdir()) == [path]
