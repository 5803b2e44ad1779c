"""What a list of points is about to cost, and which of them not to start at all."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.cluster.hardware import GIB
from scaling.foreign.arrays import Floats
from scaling.predict.cost.model import REFUSE_ABOVE, REFUSE_COUNTED_ABOVE, Prediction
from scaling.predict.read.features import Points


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """GPU-hours, energy and money of the points that can be predicted; None: not known for all.

    Energy is every GPU at its data-sheet power: an upper bound, without the rest of the node.
    """

    points: int
    unpredicted: int
    gpu_hours: float
    energy_j: float | None
    usd: float | None


def spend_of(
    points: Points, prediction: Prediction, *, run_s: Floats, rows: Sequence[int] | None = None
) -> Spend:
    """What running every point that fits would take.

    Args:
        points: the points.
        prediction: their predictions.
        run_s: seconds that each point runs, all ranks already allocated.
        rows: of these alone.
    """
    gpu_s = points.world_size * run_s
    wanted = np.isin(np.arange(len(points)), np.arange(len(points)) if rows is None else rows)
    counted = wanted & prediction.predicted & prediction.fits
    energy, usd = 0.0, 0.0
    energy_known, usd_known = True, True
    for group in points.groups:
        here = group.rows[counted[group.rows]]
        seconds = float(gpu_s[here].sum())
        power = group.gpu.tdp_w
        price = group.cluster.usd_per_gpu_hour
        energy_known &= power is not None
        usd_known &= price is not None
        energy += seconds * (power or 0)
        usd += seconds / 3600 * (price or 0)
    return Spend(
        points=int(counted.sum()),
        unpredicted=int((wanted & ~prediction.predicted).sum()),
        gpu_hours=float(gpu_s[counted].sum()) / 3600,
        energy_j=energy if energy_known else None,
        usd=usd if usd_known else None,
    )


def memory_refusals(
    points: Points, prediction: Prediction, *, above: float = REFUSE_ABOVE
) -> dict[int, str]:
    """Row -> why it is not worth starting: the memory it needs, term by term.

    Args:
        points: the points.
        prediction: their predictions.
        above: share of the capacity from which a point is refused; lower where its bytes are
            counted and not modelled, by as much as their kind was ever off.
    """
    ratio = prediction.need_bytes / prediction.capacity_bytes
    counted = np.array([phase is not None for phase in prediction.peak_phase], dtype=bool)
    surely = np.maximum(np.exp(prediction.memory_sigma), REFUSE_COUNTED_ABOVE)
    limit = np.where(counted, np.minimum(surely, above), above)
    hopeless = np.flatnonzero(prediction.predicted & (ratio > limit))
    return {int(row): _reason(prediction, int(row), float(ratio[row])) for row in hopeless}


def _reason(prediction: Prediction, row: int, ratio: float) -> str:
    def gib(values: Floats) -> str:
        return f"{values[row] / GIB:.1f}"

    terms = {name.removesuffix("_bytes"): v for name, v in prediction.memory_terms.items()}
    parts = ", ".join(f"{name} {gib(values)}" for name, values in terms.items())
    return (
        f"predicted memory {gib(prediction.need_bytes)} GiB is {ratio - 1:.0%} more than the "
        f"{gib(prediction.capacity_bytes)} GiB of a GPU ({parts} GiB)"
    )
