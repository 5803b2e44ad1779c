"""`scaling memory`: exact bytes of a point's ranks by phase, counted by running the engine."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.cli.options import arg, opt, print_table, warn
from scaling.errors import InputError, counted, shortened
from scaling.study.point import stored_fields

if TYPE_CHECKING:
    from scaling.check.oracle import RankMemory
    from scaling.study.point import Point

_STAGES = ("first", "middle", "last")


def memory(
    what: Annotated[str, arg("STUDY|POINT", "A study, or a point's JSON file.")],
    ranks: Annotated[str, opt("Pipeline stages, with commas.")] = ",".join(_STAGES),
    model: Annotated[str | None, opt("Another model for the study's layouts.")] = None,
    as_json: Annotated[bool, opt("A line of JSON for each point.", "--json")] = False,
) -> None:
    """Count the bytes of a rank, phase by phase, by running the engine on tensors without data.

    Needs no GPU, for any number of ranks. Does not see NCCL, kernel workspaces,
    fragmentation and memory that a side stream holds longer.
    """
    from scaling.check.oracle import rank_memories, stage_ranks
    from scaling.train.rehearsal.limits import memory_refusal

    stages = ranks.split(",")
    for stage in stages:
        if stage not in _STAGES:
            raise InputError(f"--ranks: {stage!r} is no stage; one of {', '.join(_STAGES)}")
    points = _points(what, model)
    reasons = [memory_refusal(point) for point in points]
    countable = [point for point, reason in zip(points, reasons, strict=True) if reason is None]
    if not countable:
        raise InputError(f"{points[0].point_id}: {reasons[0]}")
    for reason, count in Counter(reason for reason in reasons if reason).items():
        warn(f"{count} of {counted(len(points), 'point')} left out: {reason}")
    ranks_of = [stage_ranks(point.layout) for point in countable]
    asked = [[found[stage] for stage in stages if stage in found] or [0] for found in ranks_of]
    found = rank_memories(zip(countable, asked, strict=True))
    for point, ranks_memory in zip(countable, found, strict=True):  # each as soon as it is known
        if as_json:
            facts = {"point_id": point.point_id, "layout": stored_fields(point.layout)}
            records = [dataclasses.asdict(rank) for rank in ranks_memory]
            typer.echo(json.dumps(facts | {"ranks": records}))
        else:
            _show(point, ranks_memory, owners=len(points) == 1)


def _points(what: str, model: str | None) -> "list[Point]":
    from scaling.launch.point_files import read_point
    from scaling.study.grid import expand_grid
    from scaling.study.load import load_study

    path = Path(what)
    if path.suffix == ".json":
        if model is not None:
            raise InputError(f"--model {shortened(model)}: {path} states its model; give a study")
        return [read_point(path)]
    return list(expand_grid(load_study(what, model=model)).points)


def _show(point: "Point", ranks: "list[RankMemory]", *, owners: bool) -> None:
    from scaling.cluster.hardware import GIB

    typer.echo(f"{point.point_id}: peak GiB in a phase, and GiB after it")
    phases = list(ranks[0].phases)
    lines = []
    for rank in ranks:
        sizes = (rank.phases[phase] for phase in phases)
        cells = [f"{of['peak_bytes'] / GIB:.2f}, {of['live_bytes'] / GIB:.2f}" for of in sizes]
        peak = f"{rank.peak_bytes / GIB:.2f} {rank.peak_phase}"
        lines.append((rank.rank, rank.stage, *cells, peak))
    print_table(("rank", "stage", *phases, "peak"), lines)
    for rank in ranks if owners else ():
        typer.echo(f"rank {rank.rank}, at the peak:")
        for owner in rank.owners:
            tensors = counted(owner["tensors"], "tensor")
            typer.echo(
                f"  {owner['bytes'] / GIB:8.2f} GiB  {tensors:>12}  {owner['phase']:<9}  "
                f"{owner['made_by']}"
            )
