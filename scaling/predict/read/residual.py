"""Correction learned from calibrated layouts near a row: a Gaussian process on log residuals.

Its mean is ln(measured / predicted) of the calibrated rows, smoothed over the logarithms of the
layout. Far from all of them it goes to 0, and the formulas stand alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling.arrays import Floats
from scaling.layout.axes import AXES
from scaling.predict.read.features import Features

_Reals = npt.NDArray[np.floating[Any]]

# Distance between two layouts per doubling (below) or per differing switch (1); the correlation
# falls to 1 / e at a distance of 1. Model, world size and batch count less, because the formulas
# carry over between those.
_DOUBLING: Mapping[str, float] = {
    "tp": 0.67, "pp": 0.67, "cp": 0.67, "virtual": 0.67, "micro_batch_size": 0.67,
    "seq_length": 0.67, "num_layers": 0.47, "hidden_size": 0.47, "world_size": 0.2,
    "accumulation": 0.2,
}  # fmt: skip
_SWITCHES = (
    "zero_stage", "full", "selective", "math", "fused_softmax", "flash1", "offload",
    "short_states", *(name for name, axis in AXES.items() if axis.kind is bool),
)  # fmt: skip
NAMES = (*_DOUBLING, *_SWITCHES)
# Noise variance (repeats, chance) over the variance that neighbours share.
NOISE = 0.1
# Rows further off than this, log scale, stalled: they tell nothing about their neighbours.
STALLED = 0.5
# At most this many rows are kept, because a search over a million layouts pays for each. Keeping
# half of 820 GPT rows cost 1.1 % in error; keeping three fifths of 480 rows cost nothing.
_MOST_KEPT = 512
# Rows are redundant when the kept ones explain all but this share of their variance.
_EXPLAINED = 1e-6
_MANY = 4096  # rows from which single precision is enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A fitted process: `weights` (m,) of the calibrated layouts at `places`, (m, len(NAMES))."""

    places: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]

    def at(self, places: Floats) -> tuple[Floats, Floats]:
        """Expected ln(measured / predicted) of the layouts at `places`, (n,), and their novelty.

        Novelty is 0 at a calibrated layout and 1 far from all. For many rows both are computed in
        single precision, centred on the calibrated layouts: a search asks for a million.
        """
        calibrated = np.array(self.places, dtype=np.float64).reshape(-1, len(NAMES))
        if not len(calibrated):
            return np.zeros(len(places)), np.ones(len(places))
        centre = calibrated.mean(axis=0)
        kind = np.float32 if len(places) > _MANY else np.float64
        similarity = correlation(*((each - centre).astype(kind) for each in (places, calibrated)))
        mean = similarity @ np.array(self.weights, dtype=kind)
        novelty = np.sqrt(np.maximum(1 - similarity.max(axis=1) ** 2, 0.0))
        return np.asarray(mean, dtype=np.float64), np.asarray(novelty, dtype=np.float64)


def places_of(f: Features) -> Floats:
    """Coordinates of layouts, (n, len(NAMES)), scaled so that a distance of 1 is far."""
    logarithms = [
        weight * np.log2(np.asarray(getattr(f, name), dtype=np.float64))
        for name, weight in _DOUBLING.items()
    ]
    switches = [np.asarray(getattr(f, name), dtype=np.float64) for name in _SWITCHES]
    return np.stack([*logarithms, *switches], axis=1)


def correlation(a: _Reals, b: _Reals) -> _Reals:
    """exp(-distance) between two sets of places (n, k) and (m, k), (n, m)."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    np.maximum(squares, 0.0, out=squares)
    np.sqrt(squares, out=squares)
    return np.asarray(np.exp(np.negative(squares, out=squares), out=squares))


def fitted_residual(places: Floats, log_residual: Floats) -> tuple[Residual, Floats]:
    """The process fitted to ln(measured / predicted), (m,), at `places`; errors of its rows, (m,).

    The error of a row is what the process fitted to all other rows would leave of it (Rasmussen and
    Williams 2006, eq. 5.12).
    """
    usable = np.abs(log_residual) <= STALLED
    at, off = places[usable], log_residual[usable]
    kept, factor = represented(at)
    factor = factor / NOISE**0.5
    to_z = likeliest(factor)
    z = to_z @ off
    own_share = (factor * to_z.T).sum(axis=1)
    left_out = log_residual.copy()
    left_out[usable] = (off - factor @ z) / np.maximum(1 - own_share, 0.05)
    residual = Residual(
        places=tuple(map(tuple, np.round(at[kept], 5).tolist())),
        weights=tuple((np.linalg.solve(factor[kept].T, z) / NOISE).tolist()),
    )
    return residual, left_out


def likeliest(factor: Floats) -> Floats:
    """The matrix, (k, n), that makes of n errors the likeliest z.

    The errors are `factor`, (n, k), times z, plus noise; z and noise are standard normal.
    """
    return np.linalg.solve(np.eye(factor.shape[1]) + factor.T @ factor, factor.T)


def represented(places: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
    """Indices of at most `_MOST_KEPT` rows that represent all, (k,), by pivoted Cholesky.

    And the factor, (n, k), whose product with its transpose is what they tell of the correlation.
    Each next pivot is the row that the previous ones explain least. The fit through the pivots
    still follows all rows: the subset of regressors of Quinonero-Candela and Rasmussen, JMLR 6
    (2005), 1939.
    """
    unexplained, factor = np.ones(len(places)), np.zeros((len(places), _MOST_KEPT))
    pivots = []
    for column in range(min(_MOST_KEPT, len(places))):
        row = int(np.argmax(unexplained))
        if unexplained[row] < _EXPLAINED:
            break
        pivots.append(row)
        with_row = correlation(places, places[row : row + 1])[:, 0] - factor @ factor[row]
        factor[:, column] = with_row / np.sqrt(unexplained[row])
        unexplained -= factor[:, column] ** 2
    return np.array(pivots, dtype=np.int64), factor[:, : len(pivots)]
