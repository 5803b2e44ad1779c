"""What layouts near calibrated ones are off by, on top of the formulas: a Gaussian process.

Its mean is ln(measured / predicted) of the calibrated rows, smoothed over the logarithms of a
layout, and goes to 0 away from all of them: there the formulas stand alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.read.features import Features

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
# Variance of what no neighbour knows (repeats, chance) over that of what neighbours share.
_NOISE = 0.1
# A row that is further off than this, in logarithms, stalled: that says nothing of its neighbours.
_STALLED = 0.5
_SANE = 1e6  # of any number in a file
# Worth following where errors of rows held back fall below this share of what they were.
_WORTH = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A fitted process: `weights` (m,) of the calibrated layouts at `places`, (m, len(names)).

    `holds_in` names where it made rows held back no worse: "interpolation" (random folds), and the
    axes in which a row may be new.
    """

    names: tuple[str, ...]
    places: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    holds_in: tuple[str, ...]

    def at(self, places: Floats) -> Floats:
        """Expected ln(measured / predicted) of the layouts at `places`, (n,)."""
        known = np.array(self.places, dtype=np.float64).reshape(-1, len(NAMES))
        return np.asarray(_alike(places, known) @ np.array(self.weights, dtype=np.float64))

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
    places: Floats, log_residual: Floats, holds_in: tuple[str, ...] = ()
) -> Residual:
    """The process through ln(measured / predicted) of layouts at `places`, (m,) and (m, k)."""
    calm = np.abs(log_residual) <= _STALLED
    places, log_residual = places[calm], log_residual[calm]
    among = _alike(places, places) + _NOISE * np.eye(len(places))
    weights = np.linalg.solve(among, log_residual)
    return Residual(
        names=NAMES,
        places=tuple(map(tuple, np.round(places, 5).tolist())),
        weights=tuple(weights.tolist()),
        holds_in=holds_in,
    )


def is_worth(without: Floats, with_it: Floats) -> bool:
    """Whether errors of rows held back, ln(measured / predicted), are smaller with it."""
    before, after = (np.minimum(np.abs(r), _STALLED).mean() for r in (without, with_it))
    return bool(after < _WORTH * before)


def _alike(a: Floats, b: Floats) -> Floats:
    """Correlation of the layouts at two sets of places, exp(-distance), (n, m)."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    return np.asarray(np.exp(-np.sqrt(np.maximum(squares, 0.0))))
