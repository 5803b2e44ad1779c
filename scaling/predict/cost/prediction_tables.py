"""Predictions as Parquet columns."""

from typing import Any

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

    def words(values: Any) -> pa.Array:
        return pa.array(values.tolist(), pa.string(), mask=unpredicted)

    columns: dict[str, pa.Array] = {"point_index": pa.array(np.arange(len(points)), pa.int64())}
    if points.point_id is not None:
        columns["point_id"] = pa.array(points.point_id.tolist(), pa.string())
    columns |= {
        "fits": pa.array(prediction.fits, pa.bool_(), mask=unpredicted),
        "fits_chance": real(prediction.fits_chance),
        "memory_from": words(np.where(prediction.rehearsed, "rehearsed", "predicted")),
        "predicted_memory_bytes": whole(prediction.memory_bytes),
        **{name: whole(values) for name, values in prediction.memory_terms.items()},
        "predicted_peak_phase": words(prediction.peak_phase),
        "fragmentation_bytes": whole(prediction.need_bytes - prediction.memory_bytes),
        "capacity_bytes": whole(prediction.capacity_bytes),
        "memory_margin": real(prediction.memory_margin),
        "predicted_step_time_s": real(prediction.step_time_s),
        "low": real(prediction.low),
        "high": real(prediction.high),
        **{f"predicted_{part}_sigma": real(getattr(prediction, f"{part}_sigma")) for part in PARTS},
        **{name: real(values) for name, values in prediction.time_terms.items()},
        "host_bound": pa.array(prediction.host_bound, pa.bool_(), mask=unpredicted),
        "predicted_tokens_per_s": real(points.tokens_per_step / prediction.step_time_s),
        "parameters_from": words(prediction.parameters_from),
    }
    from_sheet = prediction.parameters_from == "data sheet"
    until = [None if sheet else rows_until for sheet in (from_sheet | unpredicted).tolist()]
    columns["calibrated_until"] = pa.array(until, pa.string())
    columns["note"] = pa.array(points.note.tolist(), pa.string())
    return pa.table(columns)
