"""The predicted memory of this project's engine beside the exact one, layout by layout.

    python benchmarks/memory.py [--layouts 200] [--depth 0.2] [--rows benchmarks/results/memory.jsonl]

Layouts are drawn from all points of the published studies as they stand, refused ones included. The
exact bytes are `scaling memory`'s: the engine itself on tensors without numbers. `--depth` cuts
every model to this share of its layers, at least two a stage: an exact peak of 80 layers takes
minutes. What is in `--rows` is not asked again, so the drawing can go on where it was left.
"""

import argparse
import dataclasses
import json
import random
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from scaling.check.oracle import memories, ranks_of
from scaling.study.grid import expand_grid
from scaling.study.point import Point, point_from_json
from scaling.study.study import load_clusters, load_study

STUDIES = ("hardware_scaling", "parallel_layouts", "zero_stages")
SEED = 0
MOST_RANKS = 256  # of which each walks a loop over all replicas under ZeRO-3


def drawn(count: int, depth: float) -> list[Point]:
    """Points of all studies in turn, models cut to `depth` of their layers."""
    chosen = random.Random(SEED)
    grids = [list(expand_grid(load_study(study)).points) for study in STUDIES]
    for grid in grids:
        chosen.shuffle(grid)
    turns = [point for round_ in zip(*grids, strict=False) for point in round_]
    return [cut(point, depth) for point in turns if runs(point)][:count]


def runs(point: Point) -> bool:
    """flash1 has no package for today's torch."""
    return point.layout.attention != "flash1"


def cut(point: Point, depth: float) -> Point:
    """The same with fewer layers."""
    shape, layout = point.shape, point.layout
    least = 2 * layout.pp
    layers = max(round(shape.num_layers * depth), least)
    encoder = max(round(shape.num_encoder_layers * depth), least if shape.num_encoder_layers else 0)
    fewer = dataclasses.replace(
        shape,
        num_layers=min(layers, shape.num_layers),
        num_encoder_layers=min(encoder, shape.num_encoder_layers),
    )
    return dataclasses.replace(point, shape=fewer)


def main() -> None:
    """Print each layout's error as it is known, then the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layouts", type=int, default=200)
    parser.add_argument("--depth", type=float, default=0.2)
    parser.add_argument("--rows", type=Path, default=Path("benchmarks/results/memory.jsonl"))
    given = parser.parse_args()
    rows = (
        [json.loads(line) for line in given.rows.read_text().splitlines()]
        if (given.rows.exists())
        else []
    )
    known = {(row["point_id"], row["depth"]) for row in rows}
    wanted = [
        point
        for point in drawn(given.layouts, given.depth)
        if (point.point_id, given.depth) not in known
    ]
    ranks = [
        [rank for name, rank in ranks_of(p.layout).items() if name != "middle"] for p in wanted
    ]
    exact = memories((p, rank) for p, of_p in zip(wanted, ranks, strict=True) for rank in of_p)
    for point, of_point in zip(wanted, ranks, strict=True):
        began = time.monotonic()
        peaks = [dataclasses.asdict(next(exact)) for _ in of_point]
        row = {
            "point_id": point.point_id,
            "depth": given.depth,
            "seconds": time.monotonic() - began,
            "point": json.loads(point.to_json()),
            "ranks": [{k: v for k, v in one.items() if k != "owners"} for one in peaks],
        }
        rows.append(row)
        with given.rows.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
