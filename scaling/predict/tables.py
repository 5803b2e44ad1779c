"""Tables in and out of the predictor: which rows, and predictions as Parquet columns."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from scaling import row_files
from scaling.errors import InputError
from scaling.predict.columns import Flags, Floats, read_table
from scaling.predict.features import Points
from scaling.predict.model import Prediction


def read_rows(path: Path) -> pa.Table:
    """Measured rows: a CSV or Parquet file, or a folder of Parquet files such as a study's rows/.

    Raises:
        InputError: there is nothing to read.
    """
    if not path.is_dir():
        return read_table(path)
    files = sorted(row_files.files_in(path))
    if not files:
        raise InputError(f"{path}: holds no *.parquet; give a table or a study's rows folder")
    found = row_files.read_rows(files)
    if not found.table.num_rows:  # tables of others, or nothing: read_table says what is wrong
        return pa.concat_tables([read_table(file) for file in files], promote_options="permissive")
    sys.stderr.writelines(f"Left out: {unusable}\n" for unusable in found.unusable)
    return found.table.drop_columns(["file"])


def rows_where(table: pa.Table, condition: str | None, source: str, option: str) -> Flags:
    """Rows for which an SQL condition holds, bool (n,); all without a condition.

    Beside the table's columns the condition can use `row_index`, which counts from 0: for a sample,
    `hash(row_index) % 10 = 0`.

    Raises:
        InputError: the condition is no SQL, or names no column of the table.
    """
    if condition is None:
        return np.ones(table.num_rows, dtype=bool)
    import duckdb

    numbered = table.append_column("row_index", pa.array(np.arange(table.num_rows)))
    with duckdb.connect() as connection:
        connection.register("measured", numbered)
        try:
            query = f"select row_index from measured where ({condition})"
            chosen = connection.execute(query).fetchall()
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{source}: {option} {condition!r}: {reason}") from error
    mask = np.zeros(table.num_rows, dtype=bool)
    mask[[row for (row,) in chosen]] = True
    return mask


def prediction_table(points: Points, prediction: Prediction) -> pa.Table:
    """One row per point in the order of the input; null where nothing can be said.

    `low` and `high` bound the predicted step time 8 times in 10. Memory terms and
    `fragmentation_bytes` add up to what is compared with `capacity_bytes`; the time terms add up to
    `predicted_step_time_s`. `note` says why a point has no prediction.
    """
    known = prediction.predicted
    columns: dict[str, pa.Array] = {"point_index": pa.array(np.arange(len(points)), pa.int64())}
    if points.point_id is not None:
        columns["point_id"] = pa.array(points.point_id.tolist(), pa.string())
    columns["fits"] = pa.array(prediction.fits, pa.bool_(), mask=~known)
    columns["predicted_memory_bytes"] = _whole(prediction.memory_bytes, known)
    for name, values in prediction.memory_terms.items():
        columns[name] = _whole(values, known)
    columns["fragmentation_bytes"] = _whole(prediction.need_bytes - prediction.memory_bytes, known)
    columns["capacity_bytes"] = _whole(prediction.capacity_bytes, known)
    columns["memory_margin"] = _real(prediction.memory_margin, known)
    columns["predicted_step_time_s"] = _real(prediction.step_time_s, known)
    columns["low"] = _real(prediction.low, known)
    columns["high"] = _real(prediction.high, known)
    for name, values in prediction.time_terms.items():
        columns[name] = _real(values, known)
    tokens_per_s = points.tokens_per_step / prediction.step_time_s
    columns["predicted_tokens_per_s"] = _real(tokens_per_s, known)
    columns["parameters_from"] = pa.array(prediction.parameters_from.tolist(), pa.string())
    columns["note"] = pa.array(points.note.tolist(), pa.string())
    return pa.table(columns)


def _whole(values: Floats, known: Flags) -> pa.Array:
    return pa.array(np.where(known, np.rint(values), 0).astype(np.int64), mask=~known)


def _real(values: Floats, known: Flags) -> pa.Array:
    return pa.array(np.asarray(values, dtype=np.float64), pa.float64(), mask=~known)
