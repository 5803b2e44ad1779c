"""The exact bytes of a rank of any layout: rehearsals of the engine, several in one process.

What repeats is walked once: memory needs two steps, of which the second begins with the optimizer's
states, and as many micro-batches as are on their way at once and one more, which meets gradients.
Two lines are continued from two rehearsals each. ZeRO-3 over many ranks, whose engine loops over
all of them for each weight: what a rank holds is a part that does not change with the replicas and
a part divided by them. A pipeline of torch, whose stages have a buffer for what each micro-batch of
a step sends and gets: so much more for each one more.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from scaling.launch.start.environment import rank_environment
from scaling.layout.layout import Layout
from scaling.study.point import Point

STEPS = 2
FEW = 8  # replicas from which, and from twice as many, more are extrapolated
OWNERS = 10  # that are told, from the largest

_Memory = dict[str, Any]  # of one rank, as a rehearsal tells it


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes of one rank, by phase (`peak_bytes`, `live_bytes`), and whose they are at the peak."""

    rank: int
    stage: int
    peak_bytes: int
    phases: dict[str, dict[str, int]]
    owners: list[dict[str, Any]]

    @property
    def peak_phase(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: self.phases[phase]["peak_bytes"])


def stage_ranks(layout: Layout) -> dict[str, int]:
    """The first rank of the first, a middle and the last pipeline stage, each stage once.

    Of those between the ends the second stage: it has most micro-batches on their way.
    """
    per_stage = layout.world_size // layout.pp
    stages = {"first": 0}
    if layout.pp > 2:
        stages["middle"] = 1
    if layout.pp > 1:
        stages["last"] = layout.pp - 1
    return {name: stage * per_stage for name, stage in stages.items()}


def with_fewer_micro_batches(point: Point) -> Point:
    """The point with no more micro-batches a step than change what a rank holds."""
    layout = point.layout
    if layout.pp == 1:
        most = 2
    elif layout.pipeline_schedule == "1f1b":
        most = layout.pp + 1
    elif layout.pipeline_schedule in ("interleaved", "zero_bubble"):
        most = 3 * layout.pp  # whole rounds of the pipeline
    else:
        most = 2 * layout.pp + 2
    rounds = min(layout.gradient_accumulation_steps, most)
    return _with(point, gradient_accumulation_steps=rounds)


def rank_memories(ranks: Iterable[tuple[Point, int]]) -> Iterator[RankMemory]:
    """What each of these ranks holds, in this order, as soon as it is known.

    Raises:
        RuntimeError: a rehearsal failed; the text is its error.
    """
    wanted = [(point, rank, _stand_ins(point)) for point, rank in ranks]
    if not wanted:
        return
    with rehearsals(dataclasses.replace(wanted[0][0], gpu="cpu")) as memory:
        for point, rank, stand_ins in wanted:
            walked = [(memory(each, rank, STEPS), weight) for each, weight in stand_ins]
            stage = rank * point.layout.pp // point.layout.world_size
            yield RankMemory(rank=rank, stage=stage, **weighted_sum(walked))


def weighted_sum(walked: list[tuple[_Memory, float]]) -> _Memory:
    """The sum of memories, each times its weight; what the last one does not name is not in it."""

    def added(parts: list[dict[str, Any]], names: Iterable[str]) -> dict[str, int]:
        weighed = list(zip(parts, (weight for _, weight in walked), strict=True))
        return {name: round(sum(part[name] * weight for part, weight in weighed)) for name in names}

    last = walked[-1][0]
    phases = {
        phase: added([memory["phases"][phase] for memory, _ in walked], sizes)
        for phase, sizes in last["phases"].items()
    }
    held = [
        {(one["made_by"], one["phase"]): one for one in memory["owners"]} for memory, _ in walked
    ]
    owners = [
        one | added([each.get(key, one) for each in held], ("tensors", "bytes"))
        for key, one in held[-1].items()
    ]
    return {
        "peak_bytes": max(sizes["peak_bytes"] for sizes in phases.values()),
        "phases": phases,
        "owners": sorted(owners, key=lambda one: -one["bytes"])[:OWNERS],
    }


def _stand_ins(point: Point) -> list[tuple[Point, float]]:
    """What is walked for the point, and with which weight each counts; weights add up to 1."""
    layout = point.layout
    stand_ins = [(point, 1.0)]
    shard = layout.zero_shard_size or 1
    few = max(FEW, 2 * shard)  # of shards held twice two groups at least
    if layout.zero_stage == 3 and layout.dp > 2 * few and not few % shard:
        more = 2 * few / layout.dp - 1
        stand_ins = [(_with(point, dp=few), more), (_with(point, dp=2 * few), 1 - more)]
    walked = with_fewer_micro_batches(point).layout.gradient_accumulation_steps
    if layout.engine != "torch" or layout.pp == 1:
        return [(with_fewer_micro_batches(each), weight) for each, weight in stand_ins]
    further = (layout.gradient_accumulation_steps - walked) / layout.pp
    if further <= 1:
        return stand_ins
    return [
        (_with(each, gradient_accumulation_steps=count), weight * share)
        for each, weight in stand_ins
        for count, share in ((walked, 1 - further), (walked + layout.pp, further))
    ]


def _with(point: Point, **changes: Any) -> Point:
    return dataclasses.replace(point, layout=dataclasses.replace(point.layout, **changes))


@contextlib.contextmanager
def rehearsals(point: Point) -> Iterator[Callable[[Point, int, int], _Memory]]:
    """Keep a process that tells the memory of one rank after so many steps, point after point."""
    with (
        tempfile.TemporaryFile(mode="w+") as errors,  # a pipe that nobody reads fills up
        subprocess.Popen(
            [sys.executable, "-m", "scaling.train.rehearsal.rehearsal"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=rank_environment(point, os.environ),
        ) as process,
    ):

        def memory(point: Point, rank: int, steps: int) -> _Memory:
            order = {"point": json.loads(point.to_json()), "rank": rank, "steps": steps}
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(order) + "\n")
                process.stdin.flush()
            if answer := process.stdout.readline():
                held: _Memory = json.loads(answer)["memory"]
                return held
            process.wait()
            errors.seek(0)
            last = " ".join(errors.read().strip().splitlines()[-3:])
            raise RuntimeError(f"rank {rank} of {point.layout.label}: {last}")

        try:
            yield memory
        finally:
            process.kill()
            process.communicate()
