"""What ran on slow nodes only runs once more on others, in a sweep that repeats no contenders.

chosen/<world_size>.elsewhere.parquet holds the points that this adds, with the columns of
points.parquet; both rows of a layout stay. The points are in no plan before a node is named.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scaling.errors import InputError
from scaling.record.files import arrow_schema, write_table, write_text_if_new
from scaling.record.row import PointColumns
from scaling.run import contend, exclusion, planning
from scaling.run.choices import chosen_ids, repeats_elsewhere, rows_of, same_layout
from scaling.study.grid import Plan
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import Allocation
from scaling.study.point import LONG_DIGEST, Point, columns_of, point_from_json, point_of

if TYPE_CHECKING:
    from scaling.study.study import Study


def once_more(study: "Study", points: Sequence[Point], paths: StudyPaths) -> list[Point]:
    """Of each layout the run that is added where all others were on slow nodes."""
    if not repeats_elsewhere(study, points, paths):
        return []
    repeat = study.measure.repeats.at_most
    added = []
    for point in points:
        if point.repeat == 0:
            axes = columns_of(point)
            named = point_of(study, axes, point.layout, repeat, digits=LONG_DIGEST)
            added.append(dataclasses.replace(point, repeat=repeat, point_id=named.point_id))
    return added


def choose(study: "Study", planned: Plan, world_size: int, study_dir: Path, out: Path) -> str:
    """Name slow nodes, choose what runs once more elsewhere and write it; a sentence about it.

    Looks at this size and the smaller ones: a node may be named only after a size was looked at.
    A point that has a row already stays chosen.

    Raises:
        InputError: the study asks for no such choice, or has no point of that size.
    """
    paths, points = StudyPaths(study_dir), planned.points
    if not repeats_elsewhere(study, points, paths):
        raise InputError(
            f"{study.path}: measure: nothing runs once more elsewhere: that needs "
            "exclude_slow_nodes: true, no repeats of contenders, a cluster of several nodes, and "
            "GPUs or repeats to compare runs with"
        )
    if world_size not in {point.world_size for point in points}:
        raise InputError(f"{study.path}: world_size={world_size}: the study has no such size")
    looked_at = [point for point in points if point.world_size <= world_size]
    spare = once_more(study, looked_at, paths)
    runs = [*looked_at, *spare]
    timed = contend.timed_on(rows_of(paths, runs, contend.COLUMNS))
    slow = exclusion.name_slow(study, runs, timed, paths.excluded)
    named = set(slow) | exclusion.slow_by_probes(paths)
    suspects = contend.only_on_slow(runs, timed, named)
    before = _chosen_before(paths, out)
    nodes = study.clusters[points[0].cluster].nodes
    added = [
        point
        for point in spare
        if point.point_id not in before
        and (same_layout(point) in suspects or paths.row(point.point_id).exists())
        and planning.allocation(point).nodes <= nodes - len(named)
    ]
    for point in added:
        write_text_if_new(paths.point(point.point_id), point.to_json())
    write_table(out, _table(added))
    return f"world_size={world_size}: {len(added)} layouts ran on slow nodes only and run once " + (
        "more elsewhere" + exclusion.left_out(slow)
    )


def allocation_of(paths: StudyPaths, point_id: str) -> Allocation:
    """What a point that was added asks for."""
    return planning.allocation(point_from_json(paths.point(point_id).read_text(encoding="utf-8")))


def expected(points: Sequence[Point], nodes: int) -> float:
    """How many points one slow node of so many sends elsewhere, if points are spread evenly."""
    return sum(min(1.0, planning.allocation(point).nodes / nodes) for point in points)


def _chosen_before(paths: StudyPaths, out: Path) -> set[str]:
    """The points that the other sizes' choices have added."""
    others = set(paths.chosen.glob(paths.choice_elsewhere("*").name)) - {out}
    return {name for path in others for name in chosen_ids(path)}


def _table(points: Sequence[Point]) -> pa.Table:
    records: list[Mapping[str, Any]] = [columns_of(point) | {"chosen": True} for point in points]
    schema = arrow_schema(PointColumns).append(pa.field("chosen", pa.bool_()))
    return pa.Table.from_pylist(records, schema=schema.append(pa.field("reason", pa.string())))
