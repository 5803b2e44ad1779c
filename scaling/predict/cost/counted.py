"""How far counted memory may be off, by kinds of layouts: as far as layouts drawn at random were.

The table counted.json is made of all random layouts in benchmarks/results by
`python benchmarks/memory.py --known --spread`.
"""

import functools
import importlib.resources
import json

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Floats
from scaling.predict.read.features import Features
from scaling.predict.read.inputs import SCHEDULES

TABLE = "counted.json"
KINDS = (
    "zero_stage 0 to 2",
    "zero_stage 3",
    "8 bits under cp",
    "experts",
    "pipelines of experts, 1f1b",
    *(f"pipelines, {schedule}" for schedule in SCHEDULES),
)
# A kind of few layouts takes after all of them: as if it had so many more that are off alike.
_OF_ALL = 4


def kinds_of(f: Features) -> npt.NDArray[np.int64]:
    """Which of KINDS each layout is, (n,); the later one of two that it could be."""
    kinds = (f.zero_stage >= 3).astype(np.int64)
    kinds[(f.cast_bytes > 0) & (f.cp > 1)] = 2
    kinds[f.num_experts > 1] = 3
    piped = f.pp > 1
    kinds[piped] = np.where((kinds == 3) & (f.schedule == 0), 4, 5 + f.schedule)[piped]
    return kinds


def spreads(errors: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Standard deviation of ln(counted / exact) of each kind, and how many layouts tell it."""
    of_all = np.mean(np.square([error for each in errors.values() for error in each]))
    return {
        kind: {
            "layouts": len(each),
            "sigma": round(
                ((np.sum(np.square(each)) + _OF_ALL * of_all) / (len(each) + _OF_ALL)) ** 0.5, 4
            ),
        }
        for kind, each in sorted(errors.items())
    }


def counted_sigma(framework: str, f: Features) -> Floats:
    """Standard deviation of ln(counted memory)'s error, (n,).

    Args:
        framework: what one of this project's engines is to the prediction.
        f: the layouts; of a kind that no random layout tells of, the widest is taken.
    """
    table = _table()[framework]
    widest = max(table.values())
    return np.array([table.get(kind, widest) for kind in KINDS])[kinds_of(f)]


@functools.cache
def _table() -> dict[str, dict[str, float]]:
    text = importlib.resources.files(__package__).joinpath(TABLE).read_text(encoding="utf-8")
    return {
        framework: {kind: known["sigma"] for kind, known in kinds.items()}
        for framework, kinds in json.loads(text).items()
    }
