"""Correction learned from calibrated layouts near a row: a Gaussian process on log residuals.

Its mean is ln(measured / predicted) of the calibrated rows, smoothed over the logarithms of the
layout. Far from all of them it goes to 0, and the formulas stand alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Floats
from scaling.predict.read.features import Features

_Reals = npt.NDArray[np.floating[Any]]

# Distance between two layouts per doubling (below) or per differing switch (1); the correlation
# falls to 1 / e at a distance of 1. Model, world size and batch count less, because the formulas
# carry over between those. Chosen on held-back quarters of published calibration rows, all stacks
# together, never on test rows.
_DOUBLING: Mapping[str, float] = {
    "tp": 0.67, "pp": 0.67, "cp": 0.67, "virtual": 0.67, "micro_batch_size": 0.67,
    "seq_length": 0.67, "num_layers": 0.47, "hidden_size": 0.47, "world_size": 0.2,
    "accumulation": 0.2,
}  # fmt: skip
_SWITCHES = (
    "zero_stage", "sequence_parallel", "full", "selective", "math", "fused_softmax", "flash1",
    "fused_norm",
)  # fmt: skip
NAMES = (*_DOUBLING, *_SWITCHES)
# Noise variance (repeats, chance) over the variance that neighbours share. The first is used unless
# another is clearly better on a stack's held-back rows.
NOISES = (0.1, 0.03, 0.3)
# Rows further off than this, log scale, stalled: they tell nothing about their neighbours, and
# count as no further off, so that one of them decides nothing.
STALLED = 0.5
# At most this many rows are kept, because a search over a million layouts pays for each. Keeping
# half of 820 GPT rows cost 1.1 % in error; keeping three fifths of 480 rows cost nothing.
_MOST_KEPT = 512
# Rows are redundant when the kept ones explain all but this share of their variance.
_EXPLAINED = 1e-6
_SANE = 1e6  # largest number accepted from a file
# The residual is used only if it brings held-back errors below this share of what they were.
_WORTH = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A fitted process: `weights` (m,) of the calibrated layouts at `places`, (m, len(names)).

    `holds_in` lists where folds confirmed it: "interpolation" for random folds, and axes in which a
    row may be new, including axes that no fold could test.
    """

    names: tuple[str, ...]
    places: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    holds_in: tuple[str, ...]

    def at(self, places: Floats) -> Floats:
        """Expected ln(measured / predicted) of the layouts at `places`, (n,), to 1e-5.

        Computed in single precision, centred on the calibrated layouts: a search asks for a
        million rows.
        """
        calibrated = np.array(self.places, dtype=np.float64).reshape(-1, len(NAMES))
        centre = calibrated.mean(axis=0) if len(calibrated) else 0.0
        similarity = correlation(
            *((each - centre).astype(np.float32) for each in (places, calibrated))
        )
        return np.asarray(similarity @ np.array(self.weights, dtype=np.float32), dtype=np.float64)

    @property
    def is_sound(self) -> bool:
        """Whether this program could have fitted it: same names, matching sizes, finite numbers."""
        places = [value for place in self.places for value in place]
        return (
            self.names == NAMES
            and len(self.places) == len(self.weights) > 0
            and all(len(place) == len(NAMES) for place in self.places)
            and bool(np.abs([*places, *self.weights]).max() < _SANE)
        )


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


def fitted_residual(
    places: Floats,
    log_residual: Floats,
    holds_in: tuple[str, ...] = (),
    *,
    noise: float = NOISES[0],
) -> Residual:
    """Fit the process to ln(measured / predicted), (m,), of layouts at `places`, (m, k)."""
    usable = np.abs(log_residual) <= STALLED
    places, log_residual = places[usable], log_residual[usable]
    kept = places[_inducing_rows(places)]
    prior = correlation(kept, kept)
    if len(kept) == len(places):
        weights = np.linalg.solve(prior + noise * np.eye(len(kept)), log_residual)
    else:
        to_kept = correlation(places, kept)
        weights = np.linalg.solve(to_kept.T @ to_kept + noise * prior, to_kept.T @ log_residual)
    return Residual(
        names=NAMES,
        places=tuple(map(tuple, np.round(kept, 5).tolist())),
        weights=tuple(weights.tolist()),
        holds_in=holds_in,
    )


def _inducing_rows(places: Floats) -> npt.NDArray[np.int64]:
    """Indices of at most `_MOST_KEPT` rows that represent all, by pivoted Cholesky.

    Each next pivot is the row that the previous ones explain least. The fit through the pivots
    still follows all rows: the subset of regressors of Quinonero-Candela and Rasmussen, JMLR 6
    (2005), 1939.
    """
    if len(places) <= _MOST_KEPT:
        return np.arange(len(places))
    unexplained, factor = np.ones(len(places)), np.zeros((len(places), _MOST_KEPT))
    pivots = []
    for column in range(_MOST_KEPT):
        row = int(np.argmax(unexplained))
        if unexplained[row] < _EXPLAINED:
            break
        pivots.append(row)
        with_row = correlation(places, places[row : row + 1])[:, 0] - factor @ factor[row]
        factor[:, column] = with_row / np.sqrt(unexplained[row])
        unexplained -= factor[:, column] ** 2
    return np.array(pivots, dtype=np.int64)


def is_improvement(without: Floats, with_it: Floats) -> bool:
    """Whether held-out errors, ln(measured / predicted), are clearly smaller with the residual."""
    return mean_error(with_it) < _WORTH * mean_error(without)


def chosen_noise(log_residual: Mapping[float, Floats]) -> float:
    """The one of NOISES with the smallest held-out errors, if clearly better than the first."""
    best = min(NOISES, key=lambda noise: mean_error(log_residual[noise]))
    return best if is_improvement(log_residual[NOISES[0]], log_residual[best]) else NOISES[0]


def mean_error(log_residual: Floats) -> float:
    """Mean of |ln(measured / predicted)|, each clipped at STALLED."""
    return float(np.minimum(np.abs(log_residual), STALLED).mean())
