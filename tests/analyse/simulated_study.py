"""Studies of known truth: rates that are made up, and rows that are drawn around them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scaling.layout.layout import Layout
from scaling.record.files import POINTS, REFUSALS, table_of, write_table
from scaling.record.row import Row
from scaling.study.paths import StudyPaths
from scaling.study.point import Point
from tests.report.synthetic_study import point, row

SIZES = (8, 16, 32, 64)
BATCH = 128
LAYOUTS = tuple(
    {"zero_stage": stage, "micro_batch_size": size} for stage in (0, 1, 2, 3) for size in (1, 2)
)


@dataclass(frozen=True)
class Simulated:
    """Truth: tokens/s by (model, layout label, size); of the same keys the rows' points.

    disturbed: ids of the points that were.
    """

    truth: dict[tuple[str, str, int], float]
    rows: list[Row]
    points: list[Point]
    disturbed: set[str]


def placed(size: int, model: str, repeat: int, *, tp: int = 1, **choices: int) -> Point:
    """A point of a layout at a size, of BATCH sequences a step."""
    dp = size // tp
    accumulation = BATCH // dp // choices.get("micro_batch_size", 1)
    layout = Layout(
        tp=tp, dp=dp, gradient_accumulation_steps=accumulation, seq_length=128, **choices
    )
    return point(layout, model=model, repeat=repeat)


def timed(one: Point, log_rate: float, own: float, **facts: object) -> Row:
    """The row of a run with this ln tokens/s and this standard error of its own steps."""
    seconds = BATCH * 128 / math.exp(log_rate)
    half = math.exp(1.959964 * own)
    times = {
        "step_time_s": seconds, "step_time_low_s": seconds / half,
        "step_time_high_s": seconds * half,
    }  # fmt: skip
    return row(one, "ok", **(times | facts))


def simulate(
    studies: int,
    *,
    noise: float = 0.015,
    own: float = 0.002,
    repeats: Sequence[int] = (1, 1, 1, 2, 2, 3),
    slow: float = 0.0,
    disturbed: int = 0,
    factor: float = 2.0,
    seed: int = 1,
) -> Simulated:
    """Studies of 8 layouts on 4 sizes, one a model, each layout run as often as `repeats` says.

    `slow`: what node-3, on which a fifth of the runs are, loses of ln tokens/s. `disturbed`: so
    many runs of each study, of layouts that differ, are slower by `factor`.
    """
    random = np.random.default_rng(seed)
    truth, rows, points, bad_points = {}, [], [], set()
    for number in range(studies):
        model = f"model-{number:03}"
        base = random.normal(0, 0.06, len(LAYOUTS))
        drift = random.normal(0, 0.03, (len(LAYOUTS), len(SIZES)))
        rates = 10 + 0.95 * np.log(SIZES) + base[:, None] + drift
        bad = set(random.choice(rates.size, disturbed, replace=False)) if disturbed else set()
        for choices, of_layout in zip(LAYOUTS, rates, strict=True):
            for size, log_rate in zip(SIZES, of_layout.tolist(), strict=True):
                for repeat in range(random.choice(repeats)):
                    one = placed(size, model, repeat, **choices)
                    host = random.choice(["node-0", "node-1", "node-2", "node-3", "node-4"])
                    seen = log_rate + random.normal(0, math.hypot(noise, own))
                    seen -= slow * (host == "node-3")
                    truth[model, one.layout.label, size] = math.exp(log_rate)
                    if (
                        repeat == 0
                        and LAYOUTS.index(choices) * len(SIZES) + SIZES.index(size) in bad
                    ):
                        seen -= math.log(factor)
                        bad_points.add(one.point_id)
                    points.append(one)
                    rows.append(timed(one, seen, own, hosts=[str(host)]))
    return Simulated(truth, rows, points, bad_points)


def write_simulated(folder: Path, simulated: Simulated) -> None:
    """Write the tables of the study's plan and rows as a run leaves them."""
    paths = StudyPaths(folder)
    rows = table_of(simulated.rows)
    write_table(paths.points_table, rows.select(POINTS.names))
    write_table(paths.refused, REFUSALS.empty_table())
    write_table(paths.rows / "all.parquet", rows)
