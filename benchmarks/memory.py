"""Compare the predicted memory of our engines with the exact one, for each layout.

    python benchmarks/memory.py [--layouts 200] [--depth 0.15] [--rows ROWS.jsonl] [--known]
                                [--studies engines,expert_layouts --engine torch] [--random 200]

Layouts are drawn from all points of the shipped studies, or with `--random` from all values of the
axes: any family, size and engine, whole models; their rows name the study `random`. The exact bytes
come from `scaling memory`, which runs the engine on tensors without data, for the first, second and
last stage. `--depth` keeps this share of each model's layers, at least two per stage, since the
exact peak of 80 layers takes minutes. Layouts in `--rows` are not run again, so that an interrupted
run can continue; their predictions are recomputed. `--known` runs nothing and reports all rows of
the file. Prints the ten worst layouts, median and worst error of each
group, and the seconds per layout.
"""

import argparse
import dataclasses
import hashlib
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scaling.check.oracle import rank_memories, stage_ranks
from scaling.layout.axes import AXES
from scaling.layout.engines import ENGINES
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape
from scaling.predict.cost.memory import memory_of
from scaling.predict.read.points import points_of_layouts
from scaling.study.grid import expand_grid
from scaling.study.ids import stored_fields
from scaling.study.load import load_clusters, load_study
from scaling.study.point import Point, point_from_json
from scaling.train.rehearsal.limits import memory_refusal

STUDIES = ("hardware_scaling", "parallel_layouts", "zero_stages")
RANDOM = "random"  # the study of a layout drawn from the values of the axes
SEED = 0
COUNTS, PIPELINES = (2, 4, 8), (1, 1, 2, 4, 8)
MOST_RANKS, LARGEST = 64, 14e9  # parameters
TURNED = ("zero_stage", "activation_checkpointing", "fused_cross_entropy")  # drawn for every point
TRIES = 3000
_NEAR = 0.02


def drawn(
    count: int, depth: float, studies: Sequence[str] = STUDIES, engine: str = "deepspeed"
) -> list[Point]:
    """Points of one engine from all studies in turn, with `depth` of their models' layers."""
    chosen = random.Random(SEED)
    grids = [list(expand_grid(load_study(study)).points) for study in studies]
    for grid in grids:
        chosen.shuffle(grid)
    turns = [point for round_ in zip(*grids, strict=False) for point in round_]
    of_engine = (point for point in turns if point.layout.engine == engine)
    return [cut(point, depth) for point in of_engine if runs(point)][:count]


def random_points(count: int, seed: int = SEED) -> list[Point]:
    """Points with random values of all axes: any family, size and engine."""
    chosen, points = random.Random(seed), []
    while len(points) < count:
        shape, engine, pp = (
            random_shape(chosen),
            chosen.choice([*ENGINES]),
            chosen.choice(PIPELINES),
        )
        schedules = AXES["pipeline_schedule"].values or ()
        axes = {"engine": engine, "pp": pp}
        if pp > 1:
            axes["pipeline_schedule"] = chosen.choice(schedules)
        elif shape.num_experts:
            axes["ep"] = chosen.choice((1, 2, 4))
        for _ in range(TRIES):  # where what was chosen first allows none, the shape is left out
            point = random_point(chosen, shape, **axes)
            if point is not None:
                points.append(point)
                break
    return points


def random_shape(chosen: random.Random) -> ModelShape:
    """A model of 1 M to 14 G parameters."""
    family = chosen.choice(("llama", "llama", "experts", "gpt", "t5"))
    heads, head_dim = chosen.choice((2, 4, 8, 16, 32, 40)), chosen.choice((64, 128))
    layers, hidden = chosen.choice((2, 3, 4, 6, 8, 8, 12, 16, 40)), heads * head_dim
    ffn = round(hidden * chosen.choice((1.5, 8 / 3, 4)) / 64) * 64
    groups = chosen.choice((1, 1, 2, 4)) if family in ("llama", "experts") else 1
    experts = {
        "num_experts": chosen.choice((4, 8, 16)),
        "experts_per_token": chosen.choice((1, 2, 4)),
        "expert_ffn_hidden_size": max(64, ffn // chosen.choice((1, 4)) // 64 * 64),
        "shared_experts": chosen.choice((0, 0, 1)),
        "dense_layers": chosen.choice((0, 0, 1)),
    }
    shape = ModelShape(
        family="llama" if family == "experts" else family,
        num_layers=layers,
        num_encoder_layers=chosen.choice((2, layers)) if family == "t5" else 0,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=max(1, heads // groups),
        head_dim=head_dim,
        ffn_hidden_size=ffn,
        gated_mlp=family != "gpt",
        vocab_size=chosen.choice((1024, 32000, 50304, 128256, 250112)),
        tied_embeddings=family != "t5" and chosen.random() < 0.3,
        max_positions=4096 if family == "gpt" else 0,
        query_key_norm=family == "llama" and chosen.random() < 0.2,
        **(experts if family == "experts" else {}),
    )
    return shape if shape.total_params < LARGEST else random_shape(chosen)


def random_point(chosen: random.Random, shape: ModelShape, **axes: Any) -> Point | None:
    """A point of this shape with these choices; None if it is refused or cannot be counted."""
    for name, axis in AXES.items():
        if name not in axes and chosen.random() < (1 if name in TURNED else 0.4):
            axes[name] = chosen.choice(axis.values or COUNTS)
    if shape.family == "t5":
        axes["attention"] = "math"
    layout = Layout(
        **axes,
        dp=chosen.choice((1, 1, 2, 4, 8, 16)),
        gradient_accumulation_steps=chosen.choice((1, 2, 4, 8, 16)),
        seq_length=chosen.choice((128, 512, 1024, 2048, 4096)),
    )
    if layout.world_size > MOST_RANKS or any(refusals(shape, layout)):
        return None
    digest = hashlib.sha256(
        json.dumps([stored_fields(shape), stored_fields(layout)]).encode()
    ).hexdigest()[:8]
    point = Point(
        study=RANDOM,
        study_kind="strong",
        point_id=f"{shape.family}-{layout.label.replace(' ', '-')}-{digest}",
        repeat=0,
        model=shape.family,
        shape=shape,
        cluster="h100-80gb-dgx",
        gpu="h100-80gb",
        gpus_per_node=8,
        peak_flop_per_s=None,
        layout=layout,
        seed=0,
        warmup_steps=0,
        measured_steps=1,
        time_limit_s=900.0,
    )
    return point if runs(point) else None


def runs(point: Point) -> bool:
    """flash1 has no package for today's torch."""
    return point.layout.attention != "flash1" and memory_refusal(point) is None


def cut(point: Point, depth: float) -> Point:
    """The point with fewer layers."""
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


def judged(rows: list[dict[str, Any]]) -> list[float]:
    """The relative error of each row's predicted peak.

    It is of the peak less the parts that a rehearsal does not see.
    """
    points = [point_from_json(json.dumps(row["point"])) for row in rows]
    errors: dict[int, float] = {}
    for group in points_of_layouts(
        [point.layout for point in points],
        [point.shape for point in points],
        load_clusters(),
        models=[point.model for point in points],
        clusters=[point.cluster for point in points],
    ).groups:
        memory = memory_of(group, group.features, {**group.start, "buffers_bytes": 0.0})
        for index, total in zip(group.rows, memory.total, strict=True):
            exact = max(rank["peak_bytes"] for rank in rows[index]["ranks"])
            errors[index] = float(total / exact - 1)
    return [errors[index] for index in range(len(rows))]


def exact_rows(points: list[Point], depth: float) -> Iterator[dict[str, Any]]:
    """Yield the exact bytes of each point as they arrive; report failures and leave them out."""
    left = list(points)
    while left:
        exact = rank_memories([(p, rank) for p in left for rank in stage_ranks(p.layout).values()])
        try:
            while left:
                began, point = time.monotonic(), left.pop(0)
                ranks = [dataclasses.asdict(next(exact)) for _ in stage_ranks(point.layout)]
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
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=SEED)
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
    depth = 1.0 if given.random else given.depth
    points = random_points(given.random, given.seed) or drawn(
        given.layouts, depth, given.studies.split(","), given.engine
    )
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
