"""Layouts that fit: rehearsals decide near the capacity, and far beyond it nothing is started."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.cluster.hardware import GIB
from scaling.predict.cost.model import Prediction, predict
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.features import Points

# Predicted need over capacity between which a prediction does not decide.
NEAR = (0.8, 1.15)
# Chance to fit below which a point is not started unless the study measures what does not fit.
REFUSE_BELOW = 0.02

_Layouts = TypeVar("_Layouts")
# Layouts (points, rows) -> peak bytes of each one's fullest rank, None where it was not rehearsed.
Rehearse = Callable[[Sequence[_Layouts]], Sequence[float | None]]


def none_rehearsed(rows: Sequence[object]) -> list[None]:
    """Rehearses nothing."""
    return [None] * len(rows)


def predict_rehearsed(
    points: Points,
    calibration: Calibration | None,
    shown: Callable[[Prediction], Sequence[int]],
    rehearse: Rehearse[int],
) -> Prediction:
    """The prediction, with all rows rehearsed that are shown and near the capacity.

    An excluded row makes room for others, which are rehearsed in turn.
    """
    rehearsed, asked = np.full(len(points), np.nan), np.zeros(len(points), dtype=bool)
    while True:
        prediction = predict(points, calibration, rehearsed=rehearsed)
        undecided = is_near(prediction) & ~asked
        rows = [row for row in shown(prediction) if undecided[row]]
        if not rows:
            return prediction
        asked[rows] = True
        found = [np.nan if size is None else size for size in rehearse(rows)]
        if np.isnan(found).all():
            return prediction
        rehearsed[rows] = found


def is_near(prediction: Prediction) -> Flags:
    """Rows whose need is so near the capacity that the formulas do not decide, (n,)."""
    ratio = prediction.need_bytes / prediction.capacity_bytes
    return np.asarray((ratio >= NEAR[0]) & (ratio <= NEAR[1]))


def nearest_first(prediction: Prediction) -> list[int]:
    """All rows near the capacity, the nearest first."""
    distance = np.abs(np.log(prediction.need_bytes / prediction.capacity_bytes))
    order = np.argsort(distance, kind="stable")
    rows: list[int] = order[is_near(prediction)[order]].tolist()
    return rows


def best_of_sizes(points: Points, prediction: Prediction) -> list[int]:
    """The expected fastest row, of those that fit, of each size and comparison group."""
    best: dict[tuple[object, ...], int] = {}
    names = (points.model, points.cluster, points.setting, points.world_size, points.seq_length)
    seconds = np.where(prediction.fits, prediction.risk_adjusted_s, np.inf)
    for row in np.argsort(seconds, kind="stable")[: int(prediction.fits.sum())].tolist():
        best.setdefault(tuple(values[row] for values in names), row)
    return [*best.values()]


def memory_refusals(prediction: Prediction) -> dict[int, str]:
    """Row -> why it is not worth starting: the memory it needs, term by term."""
    refused = np.flatnonzero(prediction.predicted & (prediction.fits_chance < REFUSE_BELOW))

    def reason(row: int) -> str:
        def gib(values: Floats) -> str:
            return f"{values[row] / GIB:z.1f}"  # z: a difference of floats is not -0.0

        terms = prediction.memory_terms.items()
        parts = ", ".join(f"{name.removesuffix('_bytes')} {gib(of)}" for name, of in terms)
        kind = "rehearsed" if prediction.rehearsed[row] else "predicted"
        more = float(prediction.need_bytes[row] / prediction.capacity_bytes[row]) - 1
        return (
            f"{kind} memory {gib(prediction.need_bytes)} GiB is {more:.0%} more than the "
            f"{gib(prediction.capacity_bytes)} GiB of a GPU ({parts} GiB, and fragmentation)"
        )

    return {row: reason(row) for row in refused.tolist()}
