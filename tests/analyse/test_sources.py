"""Files that hold other columns than are asked for are read as one table, or refused."""

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling.analyse.sources import make_view
from scaling.errors import InputError

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


def test_of_several_columns_of_another_type_the_first_is_named(tmp_path):
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({name: ["text"] for name in reversed(COLUMNS)}), file)
    with pytest.raises(InputError, match="column gpus holds VARCHAR, must hold bigint"):
        make_view(duckdb.connect(), "filled", COLUMNS, [file])
