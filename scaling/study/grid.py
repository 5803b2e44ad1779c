"""Expand a study into points, and into refusals of the combinations that cannot run."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scaling.cluster.hardware import GPUS, Cluster
from scaling.errors import InputError
from scaling.layout.axes import AXES, DEFAULTS, REPLICA_AXES, LayoutAxes
from scaling.layout.engines import engine_refusals
from scaling.layout.layout import Layout, idle_choices, refusals, replica_size
from scaling.study.point import DIGEST, LONG_DIGEST, Point, StudyKind, point_id
from scaling.study.short_steps import is_worth_shortening
from scaling.study.time_limits import MOST_STARTUP_S

if TYPE_CHECKING:  # pydantic costs a quarter of a second, and the types are all we need
    from scaling.study.study import Study


@dataclass(frozen=True, kw_only=True)
class Refusal(LayoutAxes):
    """A combination of the grid that cannot run, and the reasons."""

    study: str
    study_kind: StudyKind
    model: str
    cluster: str
    world_size: int
    global_batch_size: int
    seq_length: int
    reason: str


MAX_COMBINATIONS = 100_000  # of axis values, refused ones included; takes a few seconds
MAX_SEQUENCES = 10_000_000  # per step


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The points of a study and its refused combinations."""

    points: tuple[Point, ...]
    refusals: tuple[Refusal, ...]


def expand_grid(study: "Study") -> Plan:
    """Expand the study's grid. Points are unique and ordered by number of GPUs."""
    placed: list[Point] = []
    refused: list[Refusal] = []
    combinations = unique_combinations(study)
    # a prediction may cover layouts that no engine runs, unless the study compares engines
    engine_must_run_it = study.mode == "measure" or any(
        axes["engine"] != DEFAULTS["engine"] for axes in combinations
    )
    for axes in combinations:
        outcome = _first_run(study, axes, engine_must_run_it=engine_must_run_it)
        if isinstance(outcome, Point):
            placed.append(outcome)
        else:
            refused.append(
                Refusal(study=study.name, study_kind=study.kind, reason="; ".join(outcome), **axes)
            )
    placed = _without_twins(placed)
    repeats = study.measure.repeats
    # with `for: contenders` few points are repeated, so only the first runs count
    count = len(placed) * (1 if repeats.only else repeats.at_most)
    if count > study.max_points:
        raise InputError(
            f"{study.path}: layouts: the grid holds {count} points, more than "
            f"max_points={study.max_points}; narrow an axis or raise max_points"
        )
    if not placed:
        raise nothing_runs(study, refused)
    # predictions are not repeated for contenders
    repeated = range(1 if repeats.only and study.mode == "predict" else repeats.at_most)
    points = [dataclasses.replace(point, repeat=n) for point in placed for n in repeated]
    names = [point_id(point.point_id, point, DIGEST) for point in points]
    uses = Counter(names)
    for index, (point, name) in enumerate(zip(points, names, strict=True)):
        if uses[name] > 1:  # ids collide by chance
            name = point_id(point.point_id, point, LONG_DIGEST)
        points[index] = dataclasses.replace(point, point_id=name)
    points.sort(key=lambda point: (point.layout.world_size, point.repeat, point.point_id))
    return Plan(points=tuple(points), refusals=tuple(refused))


def _without_twins(points: Sequence[Point]) -> list[Point]:
    """The points without those that the grid also holds with fewer choices that change nothing."""
    layouts = {(point.model, point.cluster, point.layout) for point in points}

    def plain(point: Point) -> Layout:
        idle = idle_choices(vars(point.layout), point.layout.dp)
        return dataclasses.replace(point.layout, **idle)

    return [
        point
        for point in points
        if plain(point) == point.layout or (point.model, point.cluster, plain(point)) not in layouts
    ]


def nothing_runs(study: "Study", refused: Sequence[Refusal]) -> InputError:
    """The error that no point can run, with the reason of the first refusal."""
    first = refused[0].reason if refused else "it has no combination"
    return InputError(f"{study.path}: layouts: the grid holds no point that can run: {first}")


def unique_combinations(study: "Study") -> list[dict[str, Any]]:
    """Every combination of axis values once, in the order of the study's blocks."""
    blocks = [{**study.axes, **block} for block in study.layouts]
    size = sum(math.prod(map(len, block.values())) for block in blocks)
    # larger than max_points, since combinations may be refused or stand in two blocks
    limit = max(MAX_COMBINATIONS, 2 * study.max_points)
    if size > limit:
        raise InputError(
            f"{study.path}: layouts: the grid spans {size:,} combinations, more than the "
            f"{limit:,} that are looked at; narrow an axis"
        )
    combinations: dict[tuple[Any, ...], dict[str, Any]] = {}
    for block in blocks:
        for values in itertools.product(*block.values()):
            axes = dict(zip(block, values, strict=True))
            # weak scaling fixes the batch per GPU, from which the global batch follows
            if "batch_size_per_gpu" in axes:
                axes["global_batch_size"] = axes.pop("batch_size_per_gpu") * axes["world_size"]
            combinations.setdefault(tuple(axes[name] for name in sorted(axes)), axes)
    return list(combinations.values())


def _first_run(
    study: "Study", axes: dict[str, Any], *, engine_must_run_it: bool
) -> Point | list[str]:
    """The first run of one combination, its id without a digest, or the reasons against it."""
    shape, cluster = study.models[axes["model"]], study.clusters[axes["cluster"]]
    layout = _layout(cluster, axes)
    if not isinstance(layout, Layout):
        return layout
    measure, steps = study.measure, study.measure.measured_steps
    reasons = list(refusals(shape, layout))
    if engine_must_run_it:
        predicted = study.mode == "predict"
        reasons += engine_refusals(shape, layout, measure.gradient_clipping, predicted=predicted)
    if reasons:
        return reasons
    is_short = measure.accumulation == "short" and is_worth_shortening(
        layout, warmup=measure.warmup_steps, steps=steps.at_least
    )
    return Point(
        study=study.name,
        study_kind=study.kind,
        point_id=f"{axes['model']}-{layout.file_name}",
        repeat=0,
        model=axes["model"],
        shape=shape,
        cluster=axes["cluster"],
        gpu=cluster.gpu,
        gpus_per_node=cluster.gpus_per_node,
        peak_flop_per_s=GPUS[cluster.gpu].peaks.get(layout.precision),
        layout=layout,
        seed=measure.seed,
        warmup_steps=measure.warmup_steps,
        measured_steps=steps.at_most,
        time_limit_s=measure.time_limit_s
        or MOST_STARTUP_S,  # replaced once step times are predicted
        keep_trace=measure.keep_trace,
        gradient_clipping=measure.gradient_clipping,
        at_least_steps=None if steps.until is None else steps.at_least,
        until=steps.until,
        accumulation="short" if is_short else "full",
    )


def _layout(cluster: Cluster, axes: dict[str, Any]) -> Layout | list[str]:
    """The layout of one combination on that cluster, or the reasons why its ranks have none."""
    reasons = list(_cluster_refusals(cluster, axes))
    if reasons:
        return reasons
    dp = axes["world_size"] // replica_size(axes)
    global_batch_size = axes["global_batch_size"]
    if global_batch_size > MAX_SEQUENCES:  # possible where the study fixes the batch per GPU
        return [f"global_batch_size={global_batch_size} is more than {MAX_SEQUENCES}"]
    sequences_at_once = axes["micro_batch_size"] * dp
    if global_batch_size % sequences_at_once:
        return [
            f"global_batch_size={global_batch_size} is not divisible by "
            f"micro_batch_size={axes['micro_batch_size']} x dp={dp}"
        ]
    layout = Layout(
        **{name: axes[name] for name in AXES},
        dp=dp,
        gradient_accumulation_steps=global_batch_size // sequences_at_once,
        seq_length=axes["seq_length"],
    )
    assert layout.world_size == axes["world_size"]
    assert layout.global_batch_size == global_batch_size
    return layout


def _cluster_refusals(cluster: Cluster, axes: dict[str, Any]) -> Iterator[str]:
    world_size, per_node = axes["world_size"], cluster.gpus_per_node
    replica = replica_size(axes)
    if world_size % replica:
        product = " x ".join(f"{name}={axes[name]}" for name in REPLICA_AXES)
        yield f"world_size={world_size} is not divisible by {product} = {replica}"
    if world_size > per_node * cluster.nodes:
        nodes = f"{cluster.nodes} node{'s' * (cluster.nodes > 1)} of {per_node}"
        yield (
            f"world_size={world_size} is more than the {per_node * cluster.nodes} GPUs of "
            f"cluster {axes['cluster']} ({nodes})"
        )
    elif world_size > per_node and world_size % per_node:
        yield f"world_size={world_size} is not whole nodes of {per_node} GPUs"
