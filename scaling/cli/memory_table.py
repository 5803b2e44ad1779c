"""What `scaling memory` prints: bytes of a point's ranks by phase, and whose they are."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from scaling.check.oracle import RankMemory, memories, ranks_of
from scaling.cluster.hardware import GIB
from scaling.errors import InputError
from scaling.study.grid import expand_grid
from scaling.study.point import Point, point_from_json
from scaling.study.study import load_study
from scaling.train.rehearsal.limits import uncountable

_WIDTH = 100  # columns: a terminal that has fewer wraps lines, where a table would cut numbers


def show(what: str, stages: Sequence[str], *, as_json: bool) -> None:
    """Print every point of a study, or one, as soon as its ranks are known.

    Raises:
        InputError: there is no such study or point, or none of it can be rehearsed.
    """
    points = _points(what)
    reasons = [uncountable(point) for point in points]
    able = [point for point, reason in zip(points, reasons, strict=True) if reason is None]
    if not able:
        raise InputError(f"{points[0].point_id}: {reasons[0]}")
    for reason, count in Counter(reason for reason in reasons if reason).items():
        typer.echo(f"{count} of {len(points)} points left out: {reason}", err=True)
    for point, ranks in _memories(able, stages):
        if as_json:
            facts = {"point_id": point.point_id, "layout": point.layout.facts()}
            typer.echo(json.dumps(facts | {"ranks": [dataclasses.asdict(one) for one in ranks]}))
        else:
            _show(point, ranks, owners=len(points) == 1)


def _points(what: str) -> list[Point]:
    path = Path(what)
    if path.suffix != ".json":
        return list(expand_grid(load_study(what)).points)
    try:
        return [point_from_json(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: is no point that `scaling plan` wrote: {error}") from error


def _memories(
    points: list[Point], stages: Sequence[str]
) -> Iterator[tuple[Point, list[RankMemory]]]:
    ranks = []
    for point in points:
        of_stage = ranks_of(point.layout)
        ranks.append([of_stage[stage] for stage in stages if stage in of_stage] or [0])
    each = memories((p, rank) for p, chosen in zip(points, ranks, strict=True) for rank in chosen)
    for point, chosen in zip(points, ranks, strict=True):
        yield point, [next(each) for _ in chosen]


def _show(point: Point, ranks: list[RankMemory], *, owners: bool) -> None:
    console = Console(highlight=False)
    console.width = max(console.width, _WIDTH)
    console.print(f"{point.point_id}: GiB at most in a phase, and after it", soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    phases = list(ranks[0].phases)
    for name in ("rank", "stage", *phases, "peak"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in ranks:
        cells = [_phase(one.phases[phase]) for phase in phases]
        peak = f"{one.peak_bytes / GIB:.2f} {one.peak_phase}"
        table.add_row(str(one.rank), str(one.stage), *cells, peak)
    console.print(table)
    for one in ranks if owners else ():
        console.print(f"rank {one.rank}, at the peak:")
        for owner in one.owners:
            console.print(_owner(owner))


def _phase(sizes: dict[str, int]) -> str:
    return f"{sizes['peak_bytes'] / GIB:.2f}, {sizes['live_bytes'] / GIB:.2f}"


def _owner(owner: dict[str, Any]) -> str:
    tensors = f"{owner['tensors']} tensor" + ("" if owner["tensors"] == 1 else "s")
    return (
        f"  {owner['bytes'] / GIB:8.2f} GiB  {tensors:>12}  {owner['phase']:<9}  {owner['made_by']}"
    )
