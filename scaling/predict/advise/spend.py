"""The price of a list of points, and which of them not to start at all."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.arrays import Floats
from scaling.cluster.hardware import GIB
from scaling.predict.cost.model import Prediction
from scaling.predict.read.features import Points

# Chance to fit below which a point is not started unless the study measures what does not fit.
REFUSE_BELOW = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """GPU-hours, energy and money of the points that can be predicted; None: not known for all.

    Energy is every GPU at its data-sheet power: an upper bound for the GPUs, without the rest of
    the node.
    """

    points: int
    why_unpredicted: tuple[str, ...]  # a reason for each point that cannot be predicted
    gpu_hours: float
    energy_j: float | None
    usd: float | None

    @property
    def unpredicted(self) -> int:
        """Points that cannot be predicted."""
        return len(self.why_unpredicted)


def spend_of(
    points: Points, prediction: Prediction, *, run_s: Floats, rows: Sequence[int] | None = None
) -> Spend:
    """The price of running every point that fits.

    Args:
        points: the points.
        prediction: their predictions.
        run_s: seconds that each point runs, all ranks already allocated.
        rows: only these points; None: all.
    """
    gpu_s = points.world_size * run_s
    wanted = np.isin(np.arange(len(points)), np.arange(len(points)) if rows is None else rows)
    counted = wanted & prediction.predicted & prediction.fits
    energy_j: float | None = 0.0
    usd: float | None = 0.0
    for group in points.groups:
        seconds = float(gpu_s[group.rows[counted[group.rows]]].sum())
        power, price = group.gpu.tdp_w, group.cluster.usd_per_gpu_hour
        energy_j = None if energy_j is None or power is None else energy_j + seconds * power
        usd = None if usd is None or price is None else usd + seconds / 3600 * price
    return Spend(
        points=int(counted.sum()),
        why_unpredicted=tuple(points.note[wanted & ~prediction.predicted].tolist()),
        gpu_hours=float(gpu_s[counted].sum()) / 3600,
        energy_j=energy_j,
        usd=usd,
    )


def memory_refusals(prediction: Prediction) -> dict[int, str]:
    """Row -> why it is not worth starting: the memory it needs, term by term."""
    ratio = prediction.need_bytes / prediction.capacity_bytes
    refused = np.flatnonzero(prediction.predicted & (prediction.fits_chance < REFUSE_BELOW))
    return {row: _reason(prediction, row, float(ratio[row])) for row in refused.tolist()}


def _reason(prediction: Prediction, row: int, ratio: float) -> str:
    def gib(values: Floats) -> str:
        return f"{values[row] / GIB:z.1f}"  # z: a difference of floats is not -0.0

    terms = {name.removesuffix("_bytes"): v for name, v in prediction.memory_terms.items()}
    parts = ", ".join(f"{name} {gib(values)}" for name, values in terms.items())
    kind = "rehearsed" if prediction.rehearsed[row] else "predicted"
    return (
        f"{kind} memory {gib(prediction.need_bytes)} GiB is {ratio - 1:.0%} more than the "
        f"{gib(prediction.capacity_bytes)} GiB of a GPU ({parts} GiB, and fragmentation)"
    )
