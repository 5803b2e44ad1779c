"""Predictions as Parquet columns."""

import numpy as np
import pyarrow as pa

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.model import Prediction
from scaling.predict.read.features import Points

# More is written as this: four exbibytes, which fit nowhere.
_MOST_BYTES = 2.0**62


def prediction_table(points: Points, prediction: Prediction) -> pa.Table:
    """One row per point in the order of the input; null where nothing can be said.

    `low` and `high` bound the predicted step time 8 times in 10; `predicted_own_sigma` and
    `predicted_size_sigma` say what of its error is its own and its size's (interval.py). Memory
    terms and `fragmentation_bytes` add up to what is compared with `capacity_bytes`; the time terms
    add up to `predicted_step_time_s`. `note` says why a point has no prediction.
    """
    known = prediction.predicted
    columns: dict[str, pa.Array] = {"point_index": pa.array(np.arange(len(points)), pa.int64())}
    if points.point_id is not None:
        columns["point_id"] = pa.array(points.point_id.tolist(), pa.string())
    columns["fits"] = pa.array(prediction.fits, pa.bool_(), mask=~known)
    columns["fits_chance"] = _real(prediction.fits_chance, known)
    columns["predicted_memory_bytes"] = _whole(prediction.memory_bytes, known)
    for name, values in prediction.memory_terms.items():
        columns[name] = _whole(values, known)
    columns["predicted_peak_phase"] = pa.array(prediction.peak_phase.tolist(), pa.string())
    columns["fragmentation_bytes"] = _whole(prediction.need_bytes - prediction.memory_bytes, known)
    columns["capacity_bytes"] = _whole(prediction.capacity_bytes, known)
    columns["memory_margin"] = _real(prediction.memory_margin, known)
    columns["predicted_step_time_s"] = _real(prediction.step_time_s, known)
    columns["low"] = _real(prediction.low, known)
    columns["high"] = _real(prediction.high, known)
    columns["predicted_own_sigma"] = _real(prediction.own_sigma, known)
    columns["predicted_size_sigma"] = _real(prediction.size_sigma, known)
    for name, values in prediction.time_terms.items():
        columns[name] = _real(values, known)
    tokens_per_s = points.tokens_per_step / prediction.step_time_s
    columns["predicted_tokens_per_s"] = _real(tokens_per_s, known)
    columns["parameters_from"] = pa.array(prediction.parameters_from.tolist(), pa.string())
    columns["note"] = pa.array(points.note.tolist(), pa.string())
    return pa.table(columns)


def _whole(values: Floats, known: Flags) -> pa.Array:
    return pa.array(
        np.where(known, np.minimum(np.rint(values), _MOST_BYTES), 0).astype(np.int64), mask=~known
    )


def _real(values: Floats, known: Flags) -> pa.Array:
    return pa.array(np.asarray(values, dtype=np.float64), pa.float64(), mask=~known)
