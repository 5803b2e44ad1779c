"""The exact bytes of a rank of any layout, by rehearsing the engine.

Rehearsals are shortened. Memory needs two steps, since the second begins with the optimizer's
states. It needs one micro-batch more than are in flight, since that one meets gradients.

Without ZeRO, pipelines and experts on other ranks, two replicas hold what any number does.
Three cases are extrapolated linearly from two rehearsals each. Under ZeRO-3 the engine loops over
all ranks for each weight. Over many ranks a rank's memory is a constant plus a part divided by the
number of replicas. In a torch pipeline, stages have send and receive buffers for every micro-batch
of a step, so memory grows by a constant with each. With `shallow`, two models of few layers stand
for a deep one. In each span of a step a rank's memory grows by a constant with each layer.
"""

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.launch.start.environment import rank_environment
from scaling.layout.engines import engine_module
from scaling.layout.layout import Layout
from scaling.layout.partition import layers_of_stages
from scaling.study.point import Point

STEPS = 2
FEW = 8  # replicas; larger numbers are extrapolated from this and twice this
OWNERS = 10  # listed, the largest first

_Memory = dict[str, Any]  # of one rank, as a rehearsal reports it
# Points, ranks and numbers of steps -> the memory of each.
Rehearse = Callable[[Sequence[tuple[Point, int, int]]], list[_Memory]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes of one rank by phase (`peak_bytes`, `live_bytes`), and their owners at the peak."""

    rank: int
    stage: int
    peak_bytes: int
    phases: dict[str, dict[str, int]]
    owners: list[dict[str, Any]]

    @property
    def peak_phase(self) -> str:
        """The phase with the highest peak."""
        return max(self.phases, key=lambda phase: self.phases[phase]["peak_bytes"])


def stage_ranks(layout: Layout) -> dict[str, int]:
    """The first rank of the first, a middle and the last pipeline stage, each stage once.

    The middle stage is the second, which has the most micro-batches in flight.
    """
    per_stage = layout.world_size // layout.pp
    stages = {"first": 0}
    if layout.pp > 2:
        stages["middle"] = 1
    if layout.pp > 1:
        stages["last"] = layout.pp - 1
    return {name: stage * per_stage for name, stage in stages.items()}


def with_fewer_micro_batches(point: Point) -> Point:
    """The point with only as many micro-batches a step as affect a rank's memory."""
    layout = point.layout
    if layout.pp == 1:
        most = 2
    elif layout.pipeline_schedule == "1f1b":
        most = layout.pp + 1
    elif layout.pipeline_schedule in ("interleaved", "zero_bubble"):
        most = 3 * layout.pp  # whole rounds of the pipeline
    else:
        most = 2 * layout.pp + 2
    count = min(layout.gradient_accumulation_steps, most)
    return _with(point, gradient_accumulation_steps=count)


def rank_memories(
    asked: Iterable[tuple[Point, Sequence[int]]],
) -> Iterator[list[RankMemory]]:
    """The memory of these ranks of each point, in this order, each as soon as it is known.

    Raises:
        RuntimeError: a rehearsal failed; the text is its error.
    """
    wanted = list(asked)
    if wanted:
        with rehearsals(wanted[0][0]) as rehearse:
            for one in wanted:
                yield from memories_of(rehearse, [one])


def memories_of(
    rehearse: Rehearse, asked: Sequence[tuple[Point, Sequence[int]]], *, shallow: bool = False
) -> list[list[RankMemory]]:
    """The memory of these ranks of each point, all rehearsed at once by `rehearse`.

    Raises:
        RuntimeError: a rehearsal failed; the text is its error.
    """
    parts = [
        [rehearsed_parts(point, rank, shallow=shallow) for rank in ranks] for point, ranks in asked
    ]
    of_ranks = [of_rank for of_point in parts for of_rank in of_point]
    held = iter(rehearse([(part, rank, STEPS) for of in of_ranks for part, rank, _ in of]))
    return [
        [
            RankMemory(
                rank=rank,
                stage=rank * point.layout.pp // point.layout.world_size,
                **weighted_sum([(next(held), weight) for *_, weight in of_rank]),
            )
            for rank, of_rank in zip(ranks, of_point, strict=True)
        ]
        for (point, ranks), of_point in zip(asked, parts, strict=True)
    ]


def rehearsed_parts(point: Point, rank: int, *, shallow: bool) -> list[tuple[Point, int, float]]:
    """The points and ranks to rehearse for a stage's first rank, with weights that add up to 1."""
    return [
        (part, rank * part.world_size // point.world_size, weight * share)
        for depth, weight in (_shallow_points(point) if shallow else [(point, 1.0)])
        for part, share in _rehearsed_points(depth)
    ]


def weighted_sum(parts: list[tuple[_Memory, float]]) -> _Memory:
    """The weighted sum of these memories, with the phases and owners of the last one."""
    weights = [weight for _, weight in parts]

    def add(terms: list[dict[str, Any]], names: Iterable[str]) -> dict[str, int]:
        weighted = list(zip(terms, weights, strict=True))
        return {
            name: round(sum(term[name] * weight for term, weight in weighted)) for name in names
        }

    last = parts[-1][0]
    spans = add([memory["spans"] for memory, _ in parts], last["spans"])
    phases = {
        phase: add([memory["phases"][phase] for memory, _ in parts], sizes)
        for phase, sizes in last["phases"].items()
    }
    for phase, sizes in phases.items():
        sizes["peak_bytes"] = max(size for span, size in spans.items() if span.endswith(phase))
    owners_of_parts = [
        {(owner["made_by"], owner["phase"]): owner for owner in memory["owners"]}
        for memory, _ in parts
    ]
    owners = [
        owner | add([owners.get(key, owner) for owners in owners_of_parts], ("tensors", "bytes"))
        for key, owner in owners_of_parts[-1].items()
    ]
    return {
        "peak_bytes": max(sizes["peak_bytes"] for sizes in phases.values()),
        "phases": phases,
        "owners": sorted(owners, key=lambda owner: -owner["bytes"])[:OWNERS],
    }


def _rehearsed_points(point: Point) -> list[tuple[Point, float]]:
    """The points to rehearse for this one, with their weights, which add up to 1."""
    layout = point.layout
    points = [(point, 1.0)]
    if layout.zero_stage == 0 and layout.pp == layout.ep == 1 and layout.dp > 2:
        points = [(_with(point, dp=2), 1.0)]
    shard = layout.zero_shard_size or 1
    few = max(FEW, 2 * shard)  # at least two groups that share a secondary copy
    if layout.zero_stage == 3 and layout.dp > 2 * few and not few % shard:
        weight = 2 * few / layout.dp - 1  # of memory = a + b / dp at few, the rest at 2 few
        points = [(_with(point, dp=few), weight), (_with(point, dp=2 * few), 1 - weight)]
    if layout.engine != "torch" or layout.pp == 1:
        return [(with_fewer_micro_batches(smaller), weight) for smaller, weight in points]
    count = with_fewer_micro_batches(point).layout.gradient_accumulation_steps
    further = (layout.gradient_accumulation_steps - count) / layout.pp
    if further <= 1:
        return points
    return [
        (_with(smaller, gradient_accumulation_steps=micro_batches), weight * part)
        for smaller, weight in points
        for micro_batches, part in ((count, 1 - further), (count + layout.pp, further))
    ]


def _shallow_points(point: Point) -> list[tuple[Point, float]]:
    """Two shallow points and their weights; the point itself where these would not be quicker.

    Each chunk of their pipeline has equally many layers less than the point's, an encoder as many
    less as its decoder.
    """
    shape, layout = point.shape, point.layout
    encoders = shape.num_encoder_layers
    if encoders and layout.pp > 1:
        return [(point, 1.0)]
    of_experts = shape.num_experts / layout.ep * shape.expert_params if shape.expert_layers else 0
    of_encoder = shape.encoder_layer_params if encoders else 0
    layer = (shape.decoder_layer_params + of_encoder + of_experts) / layout.tp
    gathers = layout.zero_stage == 3
    held = shape.num_layers / layout.pp * layer
    # a model that is shallow enough to lie in a window whole is no image of a deep one
    windows = engine_module(layout.engine, "refusals").windows(layout)
    beyond = max((window for window in windows if window < held), default=0.0)
    least = max(math.ceil(beyond / layer), 4 if gathers else 2) + shape.dense_layers
    dealt = (min(shape.num_layers, encoders),) if encoders else _layers_of_chunks(point)
    apart = 2 if gathers else 1
    fewer = min(dealt[0] - least, *(count - 1 for count in dealt))
    if 3 * shape.num_layers > 2 * len(dealt) * (2 * fewer - apart):
        return [(point, 1.0)]  # both together have more than half of the layers
    shallow = []
    for less in (fewer, fewer - apart):
        layers = shape.num_layers - less * len(dealt)
        smaller = dataclasses.replace(
            shape, num_layers=layers, num_encoder_layers=max(encoders - less, 0)
        )
        one = dataclasses.replace(point, shape=smaller)
        if not encoders and _layers_of_chunks(one) != tuple(count - less for count in dealt):
            return [(point, 1.0)]
        shallow.append(one)
    weight = fewer / apart
    return [(shallow[0], 1 - weight), (shallow[1], weight)]


def _layers_of_chunks(point: Point) -> tuple[int, ...]:
    """Layers of each chunk of the pipeline."""
    layout = point.layout
    return layers_of_stages(
        point.shape,
        pp=layout.model_chunks,
        seq_length=layout.seq_length,
        activation_checkpointing=layout.activation_checkpointing,
    )


def _with(point: Point, **changes: Any) -> Point:
    return dataclasses.replace(point, layout=dataclasses.replace(point.layout, **changes))


@contextlib.contextmanager
def rehearsals(point: Point) -> Iterator[Rehearse]:
    """Run a process that rehearses, as much at once as it has processors."""
    with (
        tempfile.TemporaryFile(mode="w+") as errors,  # an unread pipe would fill up
        subprocess.Popen(
            [sys.executable, "-m", "scaling.train.rehearsal.rehearsal"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=rank_environment(dataclasses.replace(point, gpu="cpu"), os.environ),
        ) as process,
    ):

        def memories(asked: Sequence[tuple[Point, int, int]]) -> list[_Memory]:
            requests = [
                {"point": json.loads(point.to_json()), "rank": rank, "steps": steps}
                for point, rank, steps in asked
            ]
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(requests) + "\n")
                process.stdin.flush()
            if answer := process.stdout.readline():
                return [each["memory"] for each in json.loads(answer)]
            process.wait()
            errors.seek(0)
            last = " ".join(errors.read().strip().splitlines()[-3:])
            raise RuntimeError(f"{asked[0][0].layout.label}: {last}")

        try:
            yield memories
        finally:
            process.kill()
            process.communicate()
