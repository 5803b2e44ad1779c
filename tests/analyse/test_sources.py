"""Files that hold other columns than are asked for are read as one table."""

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from scaling.analyse.sources import make_view

COLUMNS = {"name": "varchar", "gpus": "bigint", "step_s": "double", "loss": "double"}


def test_a_view_has_the_stated_columns_whatever_its_files_hold(tmp_path):
    pq.write_table(pa.table({"gpus": [8], "extra": ["x"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"step_s": [0.5]}), tmp_path / "b.parquet")
    connection = duckdb.connect()
    make_view(connection, "filled", COLUMNS, sorted(tmp_path.glob("*.parquet")))
    make_view(connection, "without", COLUMNS, [])
    assert connection.sql("from filled order by gpus").fetchall() == [
        (None, 8, None, None),
        (None, None, 0.5, None),
    ]
    assert connection.sql("from without").columns == list(COLUMNS)
