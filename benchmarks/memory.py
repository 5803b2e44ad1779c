"""The predicted memory of this project's engine beside the exact one, layout by layout.

    python benchmarks/memory.py [--layouts 200] [--depth 0.15] [--rows ROWS.jsonl] [--known]
                                [--studies engines,expert_layouts --engine torch]

Layouts are drawn from all points of the published studies as they stand, refused ones included. The
exact bytes are `scaling memory`'s, of the first, the second and the last stage: the engine itself
on tensors without numbers. `--depth` cuts every model to this share of its layers, at least two a
stage: the exact peak of 80 layers takes minutes. What is in `--rows` is not asked again, so a
drawing can go on where it was left; what the formula says of a row is computed anew. `--known` asks
nothing and tells of what is there, studies of other days included.
Prints a line for each layout beyond 2 %, then median, worst, and the seconds that a layout takes.
"""

import argparse
import dataclasses
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scaling.check.oracle import memories, ranks_of
from scaling.layout.engines import ENGINES
from scaling.predict.cost.memory import memory_of
from scaling.predict.read.inputs import inputs_of_layouts
from scaling.predict.read.points import points_from
from scaling.study.catalogues import load_clusters
from scaling.study.grid import expand_grid
from scaling.study.point import Point, point_from_json
from scaling.study.study import load_study
from scaling.train.rehearsal.limits import uncountable

STUDIES = ("hardware_scaling", "parallel_layouts", "zero_stages")
SEED = 0
_NEAR = 0.02


def drawn(
    count: int, depth: float, studies: Sequence[str] = STUDIES, engine: str = "deepspeed"
) -> list[Point]:
    """Points of one engine of all studies in turn, models cut to `depth` of their layers."""
    chosen = random.Random(SEED)
    grids = [list(expand_grid(load_study(study)).points) for study in studies]
    for grid in grids:
        chosen.shuffle(grid)
    turns = [point for round_ in zip(*grids, strict=False) for point in round_]
    of_engine = (point for point in turns if point.layout.engine == engine)
    return [cut(point, depth) for point in of_engine if runs(point)][:count]


def runs(point: Point) -> bool:
    """flash1 has no package for today's torch."""
    return point.layout.attention != "flash1" and uncountable(point) is None


def cut(point: Point, depth: float) -> Point:
    """The same with fewer layers."""
    shape, layout = point.shape, point.layout
    least = 2 * layout.model_chunks
    layers = max(round(shape.num_layers * depth), least)
    encoder = max(round(shape.num_encoder_layers * depth), least if shape.num_encoder_layers else 0)
    fewer = dataclasses.replace(
        shape,
        num_layers=min(layers, shape.num_layers),
        num_encoder_layers=min(encoder, shape.num_encoder_layers),
    )
    return dataclasses.replace(point, shape=fewer)


def relative_error(row: dict[str, Any]) -> float:
    """Of the predicted peak, less what a rehearsal does not see."""
    point = point_from_json(json.dumps(row["point"]))
    inputs = inputs_of_layouts(
        [point.layout], [point.shape], models=[point.model], clusters=[point.cluster]
    )
    (group,) = points_from(inputs, load_clusters()).groups
    memory = memory_of(group, group.features, {**group.start, "buffers_bytes": 0.0})
    return float(memory.total[0]) / max(rank["peak_bytes"] for rank in row["ranks"]) - 1


def exact_rows(points: list[Point], depth: float) -> Iterator[dict[str, Any]]:
    """The exact bytes of each point, as soon as they are known."""
    ranks = [[*ranks_of(point.layout).values()] for point in points]
    exact = memories((p, rank) for p, asked in zip(points, ranks, strict=True) for rank in asked)
    for point, asked in zip(points, ranks, strict=True):
        began = time.monotonic()
        told = [dataclasses.asdict(next(exact)) for _ in asked]
        yield {
            "point_id": point.point_id,
            "depth": depth,
            "seconds": time.monotonic() - began,
            "point": json.loads(point.to_json()),
            "ranks": [{k: v for k, v in one.items() if k != "owners"} for one in told],
        }


def main() -> None:
    """Ask what is missing, then print the errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layouts", type=int, default=200)
    parser.add_argument("--studies", default=",".join(STUDIES))
    parser.add_argument("--engine", default="deepspeed", choices=ENGINES)
    parser.add_argument("--depth", type=float, default=0.15)
    parser.add_argument("--rows", type=Path, default=Path("benchmarks/results/memory.jsonl"))
    parser.add_argument("--known", action="store_true")
    given = parser.parse_args()
    lines = given.rows.read_text(encoding="utf-8").splitlines() if given.rows.exists() else []
    known = {(row["point_id"], row["depth"]): row for row in map(json.loads, lines)}
    points = {
        point.point_id: point
        for point in drawn(given.layouts, given.depth, given.studies.split(","), given.engine)
    }
    missing = [p for p in points.values() if (p.point_id, given.depth) not in known]
    if given.known:
        report([row for (_, depth), row in known.items() if depth == given.depth])
        return
    with given.rows.open("a", encoding="utf-8") as out:
        for row in exact_rows(missing, given.depth):
            out.write(json.dumps(row) + "\n")
            out.flush()
            known[row["point_id"], given.depth] = row
    report([known[point_id, given.depth] for point_id in points])


def report(rows: list[dict[str, Any]]) -> None:
    """Print what is beyond 2 %, and how far all are."""
    began = time.monotonic()
    errors = [relative_error(row) for row in rows]
    predicted_s = (time.monotonic() - began) / len(rows)
    for row, error in zip(rows, errors, strict=True):
        if abs(error) > _NEAR:
            print(f"{error:+.1%}  {row['point_id']}")
    sizes = sorted(abs(error) for error in errors)
    within = sum(size <= _NEAR for size in sizes)
    exact_s = statistics.median(row["seconds"] for row in rows if "seconds" in row)
    print(
        f"{len(rows)} layouts: median {statistics.median(sizes):.2%}, worst {sizes[-1]:.2%}, "
        f"{within} within {_NEAR:.0%}; {exact_s:.1f} s a layout exactly, {predicted_s:.4f} s "
        "predicted one by one"
    )


if __name__ == "__main__":
    main()
