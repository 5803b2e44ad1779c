"""The exact bytes of a rank of any layout: rehearsals of the engine, several in one process.

What repeats is walked once: memory needs two steps, of which the second begins with the optimizer's
states, and as many micro-batches as are on their way at once and one more, which meets gradients.
ZeRO-3 over many ranks, whose engine loops over all of them for each weight, is extrapolated: what a
rank holds is a part that does not change with the replicas and a part divided by them.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from scaling.launch.start.environment import rank_environment
from scaling.layout.layout import Layout
from scaling.study.point import Point

STEPS = 2
FEW = 8  # replicas from which, and from twice as many, more are extrapolated

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


def ranks_of(layout: Layout) -> dict[str, int]:
    """The first rank of the first, a middle and the last pipeline stage, each stage once."""
    per_stage = layout.world_size // layout.pp
    stages = {"first": 0}
    if layout.pp > 2:
        stages["middle"] = layout.pp // 2
    if layout.pp > 1:
        stages["last"] = layout.pp - 1
    return {name: stage * per_stage for name, stage in stages.items()}


def shortened(point: Point) -> Point:
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
    return dataclasses.replace(
        point, layout=dataclasses.replace(layout, gradient_accumulation_steps=rounds)
    )


def memories(asked: Iterable[tuple[Point, int]]) -> Iterator[RankMemory]:
    """What each of these ranks holds, in this order, as soon as it is known.

    Raises:
        RuntimeError: a rehearsal failed; the text is its error.
    """
    lines, wanted = [], []
    for point, rank in asked:
        points = _stand_ins(point)
        for each in points:
            order = {"point": json.loads(shortened(each).to_json()), "rank": rank, "steps": STEPS}
            lines.append(json.dumps(order))
        wanted.append((point, rank, [each.layout.dp for each in points]))
    if not lines:
        return
    with _Rehearsals(dataclasses.replace(wanted[0][0], gpu="cpu")) as rehearsals:
        orders = iter(lines)
        for point, rank, walked in wanted:
            memory, *more = (rehearsals.memory(next(orders), point, rank) for _ in walked)
            if more:
                memory = extrapolated(memory, *more, replicas=point.layout.dp, walked=walked[0])
            stage = rank * point.layout.pp // point.layout.world_size
            yield RankMemory(rank=rank, stage=stage, **memory)


def extrapolated(few: _Memory, many: _Memory, *, replicas: int, walked: int = FEW) -> _Memory:
    """The memory of more `replicas` than `walked` and twice as many: a + b / replicas."""

    def at(one: int, other: int) -> int:
        divided = (one - other) * 2 * walked
        return round(other + divided * (1 / replicas - 1 / (2 * walked)))

    phases = {
        phase: {name: at(few["phases"][phase][name], size) for name, size in sizes.items()}
        for phase, sizes in many["phases"].items()
    }
    peak = max(sizes["peak_bytes"] for sizes in phases.values())
    return {"peak_bytes": peak, "phases": phases, "owners": many["owners"]}


def _stand_ins(point: Point) -> list[Point]:
    """The point, or two with fewer replicas; of shards held twice two groups at least."""
    layout = point.layout
    shard = layout.zero_shard_size or 1
    few = max(FEW, 2 * shard)
    if layout.zero_stage < 3 or layout.dp <= 2 * few or few % shard:
        return [point]
    return [
        dataclasses.replace(point, layout=dataclasses.replace(layout, dp=replicas))
        for replicas in (few, 2 * few)
    ]


class _Rehearsals:
    """One process that rehearses line by line."""

    def __init__(self, point: Point) -> None:
        # a pipe that nobody reads fills up
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 # closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scaling.train.rehearsal.rehearsal"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=rank_environment(point, os.environ),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def memory(self, order: str, point: Point, rank: int) -> _Memory:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(order + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            self._errors.seek(0)
            error = self._errors.read().strip().splitlines()[-3:]
            raise RuntimeError(f"rank {rank} of {point.layout.label}: " + " ".join(error))
        memory: _Memory = json.loads(answer)["memory"]
        return memory
