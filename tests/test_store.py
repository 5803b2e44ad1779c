"""Files are whole or not there, and hold what was put in."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling import grid, store
from scaling.measurement import Row, fields_of
from scaling.study import load_study
from tests.rows import row_of


@pytest.fixture
def planned(config, write_study):
    return grid.plan(load_study(write_study(layouts=[{"tp": [1, 2]}]), config))


def test_a_row_comes_back_as_it_was_written(planned, tmp_path):
    row = row_of(planned.points[0], step_times_s=[0.5, 0.25], step_time_s=0.375, losses=[2.0])
    store.write_rows(tmp_path / "rows" / "a.parquet", [row])
    (back,) = pq.read_table(tmp_path / "rows" / "a.parquet").to_pylist()
    assert Row(**back) == row


def test_a_row_of_a_version_before_an_axis_is_read_as_measured_at_its_default(planned, tmp_path):
    row, path = row_of(planned.points[0]), tmp_path / "a.parquet"
    store.write_rows(path, [row])
    older = pq.read_table(path).drop_columns(["compile", "zero_shard_size", "optimizer_offload"])
    pq.write_table(older, path)
    assert store.read_row(path) == row


def test_what_was_not_measured_is_null_and_not_a_number(planned, tmp_path):
    store.write_rows(tmp_path / "a.parquet", [row_of(planned.points[0], outcome="oom")])
    (back,) = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert back["step_time_s"] is None
    assert back["energy_j"] is None


def test_a_null_where_the_row_must_say_something_is_refused(planned, tmp_path):
    with pytest.raises(pa.ArrowInvalid):
        store.write_rows(tmp_path / "a.parquet", [row_of(planned.points[0], outcome=None)])
    assert not list(tmp_path.glob("*.parquet"))


def test_a_write_that_fails_leaves_the_old_file(planned, tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    store.write_rows(path, [row_of(planned.points[0], attempt=1)])

    def full_disk(_table, part):
        part.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(pq, "write_table", full_disk)
    with pytest.raises(OSError, match="no space"):
        store.write_rows(path, [row_of(planned.points[0], attempt=2)])
    assert pq.read_table(path)["attempt"].to_pylist() == [1]


def test_a_plan_leaves_one_file_per_point_and_two_tables(planned, tmp_path):
    store.write_plan(tmp_path, planned)
    files = sorted((tmp_path / "points").glob("*.json"))
    assert [grid.point_from_json(f.read_text()).point_id for f in files] == sorted(
        p.point_id for p in planned.points
    )
    points = pq.read_table(tmp_path / "points.parquet")
    assert points.num_rows == len(planned.points)
    assert [name for name in fields_of(Row) if name in points.column_names] == points.column_names
    refused = pq.read_table(tmp_path / "refused.parquet").to_pylist()
    assert [r["reason"] for r in refused] == [r.reason for r in planned.refusals]
    assert not list(tmp_path.rglob("*.part"))


def test_planning_again_leaves_the_files_of_unchanged_points_alone(planned, tmp_path):
    store.write_plan(tmp_path, planned)
    before = {f: f.stat().st_mtime_ns for f in (tmp_path / "points").glob("*.json")}
    store.write_plan(tmp_path, planned)
    assert before == {f: f.stat().st_mtime_ns for f in (tmp_path / "points").glob("*.json")}


def test_a_study_without_refusals_still_leaves_an_empty_table(config, write_study, tmp_path):
    store.write_plan(tmp_path, grid.plan(load_study(write_study("two"), config)))
    table = pq.read_table(tmp_path / "refused.parquet")
    assert table.num_rows == 0
    assert "reason" in table.column_names
