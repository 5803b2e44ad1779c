"""Predictions as Parquet columns."""

import numpy as np
import pyarrow as pa

from scaling.arrays import Floats
from scaling.predict.cost.model import Prediction
from scaling.predict.read.calibration import PARTS
from scaling.predict.read.features import Points

# Larger needs are written as this: four exbibytes, which fit nowhere.
_MOST_BYTES = 2.0**62


def prediction_table(
    points: Points, prediction: Prediction, rows_until: str | None = None
) -> pa.Table:
    """One row per point in the order of the input; null where it cannot be predicted.

    A measured step lies between `low` and `high` 8 times in 10; the sigmas are
    the parts of its error (interval.py), own that of layout and rest together. Memory
    terms and `fragmentation_bytes` add up to what is compared with `capacity_bytes`, time terms to
    `predicted_step_time_s`. `calibrated_until` is `rows_until` of the calibration.
    `note` says why a point has no prediction.
    """
    unpredicted = ~prediction.predicted

    def real(values: Floats) -> pa.Array:
        return pa.array(np.asarray(values, dtype=np.float64), pa.float64(), mask=unpredicted)

    def whole(values: Floats) -> pa.Array:
        bounded = np.minimum(np.rint(values), _MOST_BYTES)
        numbers = np.where(unpredicted, 0, bounded).astype(np.int64)
        return pa.array(numbers, mask=unpredicted)

    columns: dict[str, pa.Array] = {"point_index": pa.array(np.arange(len(points)), pa.int64())}
    if points.point_id is not None:
        columns["point_id"] = pa.array(points.point_id.tolist(), pa.string())
    columns["fits"] = pa.array(prediction.fits, pa.bool_(), mask=unpredicted)
    columns["fits_chance"] = real(prediction.fits_chance)
    from_ = np.where(prediction.rehearsed, "rehearsed", "predicted").tolist()
    columns["memory_from"] = pa.array(from_, pa.string(), mask=unpredicted)
    columns["predicted_memory_bytes"] = whole(prediction.memory_bytes)
    columns |= {name: whole(values) for name, values in prediction.memory_terms.items()}
    columns["predicted_peak_phase"] = pa.array(prediction.peak_phase.tolist(), pa.string())
    columns["fragmentation_bytes"] = whole(prediction.need_bytes - prediction.memory_bytes)
    columns["capacity_bytes"] = whole(prediction.capacity_bytes)
    columns["memory_margin"] = real(prediction.memory_margin)
    columns["predicted_step_time_s"] = real(prediction.step_time_s)
    columns["low"] = real(prediction.low)
    columns["high"] = real(prediction.high)
    for part in PARTS:
        columns[f"predicted_{part}_sigma"] = real(getattr(prediction, f"{part}_sigma"))
    columns |= {name: real(values) for name, values in prediction.time_terms.items()}
    columns["host_bound"] = pa.array(prediction.host_bound, pa.bool_(), mask=unpredicted)
    columns["predicted_tokens_per_s"] = real(points.tokens_per_step / prediction.step_time_s)
    columns["parameters_from"] = pa.array(prediction.parameters_from.tolist(), pa.string())
    from_sheet = prediction.parameters_from == "data sheet"
    until = [None if sheet else rows_until for sheet in (from_sheet | unpredicted).tolist()]
    columns["calibrated_until"] = pa.array(until, pa.string())
    columns["note"] = pa.array(points.note.tolist(), pa.string())
    return pa.table(columns)
