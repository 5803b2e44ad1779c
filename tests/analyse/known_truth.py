"""Two made-up studies whose truth is known, written as a run leaves them.

Two models on 8, 16 and 32 GPUs of four nodes; six layouts, two repeats of each, 0.8 % between runs.
node-3 is 8 % slow. One layout is out of memory, one ends by its time limit, one ties with the best.
"""

import itertools
import math
from pathlib import Path

import numpy as np

from scaling.record.files import write_points, write_rows
from scaling.study.grid import Plan
from tests.analyse.simulated_study import placed, timed
from tests.report.synthetic_study import row

SIZES = (8, 16, 32)
RETURNS = (0.923, 0.926)  # of the two doublings of the best layout
NOISE, OWN, SLOW = 0.008, 0.002, 0.08
LAYOUTS = {
    "best": {"zero_stage": 1},
    "tie": {"zero_stage": 0},
    "tp 2": {"zero_stage": 1, "tp": 2},
    "ZeRO-3": {"zero_stage": 3},
    "large": {"zero_stage": 1, "micro_batch_size": 2},
    "tp 4": {"zero_stage": 1, "tp": 4},
}
# shares of the best at 8, 16 and 32 GPUs; of the second model tp 2 is the best at 32
SHARES = {
    "first": {
        "best": (1, 1, 1), "tie": (0.998, 0.998, 0.998), "tp 2": (0.926, 0.93, 0.94),
        "ZeRO-3": (0.9, 0.88, 0.86), "large": (0.97, 0.96, 0.95), "tp 4": (0.8, 0.82, 0.84),
    },
    "second": {
        "best": (1, 1, 0.9), "tie": (0.96, 0.96, 0.85), "tp 2": (0.926, 0.95, 1),
        "ZeRO-3": (0.9, 0.88, 0.8), "large": (0.95, 0.94, 0.86), "tp 4": (0.8, 0.82, 0.92),
    },
}  # fmt: skip


def best_rate(size: int) -> float:
    """Tokens/s of the best layout of the first model."""
    steps = (1 + returned for returned in RETURNS[: SIZES.index(size)])
    return 100_000 * math.prod(steps)


def write_known_truth(folder: Path, seed: int = 5) -> None:
    """Write plan and rows of both models."""
    random = np.random.default_rng(seed)
    points, rows = [], []
    for model, (name, choices), size, repeat in itertools.product(
        SHARES, LAYOUTS.items(), SIZES, range(2)
    ):
        one = placed(size, model, repeat, **choices)
        points.append(one)
        nodes = random.permutation(4)[: size // 8]
        hosts = [f"node-{node}" for node in sorted(nodes.tolist())]
        if (model, name, size) == ("first", "large", 8):
            rows.append(row(one, "oom", error_message="CUDA out of memory", hosts=hosts))
        elif (model, name, size) == ("second", "tp 4", 32):
            rows.append(row(one, "timeout", error_message="600 s were not enough", hosts=hosts))
        else:
            true = best_rate(size) * SHARES[model][name][SIZES.index(size)]
            seen = math.log(true) + random.normal(0, math.hypot(NOISE, OWN))
            rows.append(timed(one, seen - SLOW * ("node-3" in hosts), OWN, hosts=hosts))
    write_points(folder, Plan(points=tuple(points), refusals=()))
    write_rows(folder / "rows" / "all.parquet", rows)
