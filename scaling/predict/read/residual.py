"""What layouts near calibrated ones are off by, on top of the formulas: a Gaussian process.

Its mean is ln(measured / predicted) of the calibrated rows, smoothed over the logarithms of a
layout, and goes to 0 away from all of them: there the formulas stand alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Floats
from scaling.predict.read.features import Features

_Reals = npt.NDArray[np.floating[Any]]

# How far apart a doubling, or a switch, puts two layouts; correlations fall to 1 / e at a distance
# of 1. Of the model, the size and the batch less: the formulas carry over to those. Chosen by
# held-back quarters of published calibration rows, all stacks together, never on rows to be tested.
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
# Variance of what no neighbour knows (repeats, chance) over that of what neighbours share: the
# first, unless held-back rows of a stack are clearly better off with another.
NOISES = (0.1, 0.03, 0.3)
# A row that is further off than this, in logarithms, stalled: that says nothing of its neighbours.
_STALLED = 0.5
# Rows kept of more: a search over a million layouts pays for each. Half as many of 820 rows of GPT
# were off by 1.1 % more, three fifths of 480 by nothing.
_MOST_KEPT = 512
_EXPLAINED = 1e-6  # of a row's variance: another row says all of it
_SANE = 1e6  # of any number in a file
# Worth following where errors of rows held back fall below this share of what they were.
_WORTH = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A fitted process: `weights` (m,) of the calibrated layouts at `places`, (m, len(names)).

    `holds_in` names where it made rows held back better: "interpolation" (random folds), and the
    axes in which a row may be new, among them those that no fold could leave a value of out.
    """

    names: tuple[str, ...]
    places: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    holds_in: tuple[str, ...]

    def at(self, places: Floats) -> Floats:
        """Expected ln(measured / predicted) of the layouts at `places`, (n,), to 1e-5.

        In single precision, around the middle of what is known: a search asks for a million.
        """
        known = np.array(self.places, dtype=np.float64).reshape(-1, len(NAMES))
        middle = known.mean(axis=0) if len(known) else 0.0
        near = correlation(*((each - middle).astype(np.float32) for each in (places, known)))
        return np.asarray(near @ np.array(self.weights, dtype=np.float32), dtype=np.float64)

    @property
    def is_sound(self) -> bool:
        """Whether it could have been fitted here: the same names, all numbers finite."""
        places = [value for place in self.places for value in place]
        return (
            self.names == NAMES
            and len(self.places) == len(self.weights) > 0
            and all(len(place) == len(NAMES) for place in self.places)
            and bool(np.abs([*places, *self.weights]).max() < _SANE)
        )


def places_of(f: Features) -> Floats:
    """Where layouts stand, (n, len(NAMES)): a distance of 1 between two is far."""
    logarithms = [
        weight * np.log2(np.asarray(getattr(f, name), dtype=np.float64))
        for name, weight in _DOUBLING.items()
    ]
    switches = [np.asarray(getattr(f, name), dtype=np.float64) for name in _SWITCHES]
    return np.stack([*logarithms, *switches], axis=1)


def fitted_residual(
    places: Floats,
    log_residual: Floats,
    holds_in: tuple[str, ...] = (),
    *,
    noise: float = NOISES[0],
) -> Residual:
    """The process through ln(measured / predicted) of layouts at `places`, (m,) and (m, k)."""
    calm = np.abs(log_residual) <= _STALLED
    places, log_residual = places[calm], log_residual[calm]
    kept = places[_spread_out(places)]
    among = correlation(kept, kept)
    if len(kept) == len(places):
        weights = np.linalg.solve(among + noise * np.eye(len(kept)), log_residual)
    else:
        to_kept = correlation(places, kept)
        weights = np.linalg.solve(to_kept.T @ to_kept + noise * among, to_kept.T @ log_residual)
    return Residual(
        names=NAMES,
        places=tuple(map(tuple, np.round(kept, 5).tolist())),
        weights=tuple(weights.tolist()),
        holds_in=holds_in,
    )


def is_improvement(without: Floats, with_it: Floats) -> bool:
    """Whether errors of rows held back, ln(measured / predicted), are smaller with it."""
    return _mean_error(with_it) < _WORTH * _mean_error(without)


def chosen_noise(log_residual: Mapping[float, Floats]) -> float:
    """The one of NOISES with which errors of rows held back are smallest, if that is worth it."""
    best = min(NOISES, key=lambda noise: _mean_error(log_residual[noise]))
    return best if is_improvement(log_residual[NOISES[0]], log_residual[best]) else NOISES[0]


def _mean_error(log_residual: Floats) -> float:
    return float(np.minimum(np.abs(log_residual), _STALLED).mean())


def _spread_out(places: Floats) -> npt.NDArray[np.int64]:
    """Rows that stand for all where there are more than can be kept: pivots of Cholesky's method.

    Each next one is that of which those before it say least. What is fitted through them follows
    all rows: the subset of regressors of Quinonero-Candela and Rasmussen, JMLR 6 (2005), 1939.
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
        like = correlation(places, places[row : row + 1])[:, 0] - factor @ factor[row]
        factor[:, column] = like / np.sqrt(unexplained[row])
        unexplained -= factor[:, column] ** 2
    return np.array(pivots, dtype=np.int64)


def correlation(a: _Reals, b: _Reals) -> _Reals:
    """Correlation of the layouts at two sets of places, exp(-distance), (n, m)."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    np.maximum(squares, 0.0, out=squares)
    np.sqrt(squares, out=squares)
    return np.asarray(np.exp(np.negative(squares, out=squares), out=squares))
