"""Compare the predicted memory of our engines with the exact one, for each layout.

    python benchmarks/counted_memory.py [--layouts 200] [--depth 0.15] [--rows ROWS.jsonl] [--known]
                                [--studies engines,expert_layouts --engine torch]

Layouts are drawn from all points of the shipped studies. Rows of the file that name the study
`random` were drawn from all values of the axes: any family, size and engine, whole models. The
exact bytes come from `scaling memory`, which runs the engine on tensors without data, for the
first, second and last stage. `--depth` keeps this share of each model's layers, at least two per
stage, since the exact peak of 80 layers takes minutes. Layouts in `--rows` are not run again, so
that an interrupted run can continue; their predictions are recomputed. `--known` runs nothing and
reports all rows of the file. Prints the ten worst layouts, median and worst error of each group,
and the seconds per layout.
"""

import argparse
import dataclasses
import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scaling.check.oracle import rank_memories, stage_ranks
from scaling.layout.engines import ENGINES
from scaling.predict.cost.memory import memory_of
from scaling.predict.read.points import points_of_layouts
from scaling.study.grid import expand_grid
from scaling.study.load import load_clusters, load_study
from scaling.study.point import Point, point_from_json
from scaling.train.rehearsal.limits import memory_refusal

STUDIES = ("hardware_scaling", "parallel_layouts", "zero_stages")
RANDOM = "random"  # the study of a layout drawn from the values of the axes
SEED = 0
_NEAR = 0.02


def drawn(
    count: int, depth: float, studies: Sequence[str] = STUDIES, engine: str = "deepspeed"
) -> list[Point]:
    """Points of one engine from all studies in turn, with `depth` of their models' layers."""
    chosen = random.Random(SEED)
    grids = [list(expand_grid(load_study(study)).points) for study in studies]
    for grid in grids:
        chosen.shuffle(grid)
    turns = (point for round_ in zip(*grids, strict=False) for point in round_)
    usable = (
        point for point in turns
        if point.layout.engine == engine and memory_refusal(point) is None
        and point.layout.attention != "flash1"  # which has no package for today's torch
    )  # fmt: skip
    return [cut(point, depth) for point in itertools.islice(usable, count)]


def cut(point: Point, depth: float) -> Point:
    """The point with fewer layers."""
    least = 2 * point.layout.model_chunks
    fewer = {
        name: min(layers, max(round(layers * depth), least))
        for name in ("num_layers", "num_encoder_layers")
        if (layers := getattr(point.shape, name))
    }
    return dataclasses.replace(point, shape=dataclasses.replace(point.shape, **fewer))


def judged(rows: list[dict[str, Any]]) -> list[float]:
    """The relative error of each row's predicted peak.

    It is of the peak less the parts that a rehearsal does not see.
    """
    points = [point_from_json(json.dumps(row["point"])) for row in rows]
    errors: dict[int, float] = {}
    for group in points_of_layouts(
        [point.layout for point in points], [point.shape for point in points], load_clusters(),
        models=[point.model for point in points], clusters=[point.cluster for point in points],
    ).groups:  # fmt: skip
        memory = memory_of(group, group.features, {**group.start, "buffers_bytes": 0.0})
        for index, total in zip(group.rows, memory.total, strict=True):
            exact = max(rank["peak_bytes"] for rank in rows[index]["ranks"])
            errors[index] = float(total / exact - 1)
    return [errors[index] for index in range(len(rows))]


def exact_rows(points: list[Point], depth: float) -> Iterator[dict[str, Any]]:
    """Yield the exact bytes of each point as they arrive; report failures and leave them out."""
    left = list(points)
    while left:
        exact = rank_memories((p, [*stage_ranks(p.layout).values()]) for p in left)
        try:
            while left:
                began, point = time.monotonic(), left.pop(0)
                ranks = [dataclasses.asdict(one) for one in next(exact)]
                yield {
                    "point_id": point.point_id,
                    "depth": depth,
                    "seconds": time.monotonic() - began,
                    "point": json.loads(point.to_json()),
                    "ranks": [{k: v for k, v in one.items() if k != "owners"} for one in ranks],
                }
        except RuntimeError as error:
            print(f"{point.point_id} cannot be counted: {error}", flush=True)


def main() -> None:
    """Run the missing layouts, then print the errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layouts", type=int, default=200)
    parser.add_argument("--studies", default=",".join(STUDIES))
    parser.add_argument("--engine", default="deepspeed", choices=ENGINES)
    parser.add_argument("--depth", type=float, default=0.15)
    parser.add_argument("--rows", type=Path, default=Path("benchmarks/results/memory.jsonl"))
    parser.add_argument("--known", action="store_true")
    given = parser.parse_args()
    lines = given.rows.read_text(encoding="utf-8").splitlines() if given.rows.exists() else []
    rows = {(row["point_id"], row["depth"]): row for row in map(json.loads, lines)}
    if given.known:
        report(list(rows.values()))
        return
    depth = given.depth
    points = drawn(given.layouts, depth, given.studies.split(","), given.engine)
    missing = [point for point in points if (point.point_id, depth) not in rows]
    missing.sort(key=lambda point: point.shape.num_layers)  # the quickest first
    with given.rows.open("a", encoding="utf-8") as out:
        for row in exact_rows(missing, depth):
            out.write(json.dumps(row) + "\n")
            out.flush()
            rows[row["point_id"], depth] = row
    keys = ((point.point_id, depth) for point in points)
    report([rows[key] for key in keys if key in rows])


def group_of(row: dict[str, Any]) -> str:
    """The group of a row: draw, engine, family, and whether it has a pipeline."""
    point = point_from_json(json.dumps(row["point"]))
    origin = RANDOM if point.study == RANDOM else "studies"
    family = "experts" if point.shape.num_experts else point.shape.family
    return f"{origin}, {point.layout.engine}, {family}" + ", pp" * (point.layout.pp > 1)


def report(rows: list[dict[str, Any]]) -> None:
    """Print the ten worst layouts, then the errors by group and of all."""
    each = zip(judged(rows), rows, strict=True)
    errors = sorted(each, key=lambda one: -abs(one[0]))
    for error, row in errors[:10]:
        print(f"{error:+.1%}  {row['point_id']}")
    groups: dict[str, list[float]] = {}
    for error, row in errors:
        groups.setdefault(group_of(row), []).append(abs(error))
    for group, sizes in [*sorted(groups.items()), ("all", [abs(error) for error, _ in errors])]:
        within = sum(size <= _NEAR for size in sizes)
        print(
            f"{group}: {len(sizes)} layouts, median {statistics.median(sizes):.2%}, "
            f"worst {sizes[0]:.1%}, {within} within {_NEAR:.0%}"
        )
    exact_s = statistics.median(row["seconds"] for row in rows if "seconds" in row)
    print(f"{exact_s:.1f} s a layout exactly")


if __name__ == "__main__":
    main()
