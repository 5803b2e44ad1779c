"""What ran on slow nodes only runs once more on others, in a sweep that repeats no contenders.

chosen/<world_size>.elsewhere.parquet holds the points that this adds, with the columns of
points.parquet; both rows of a layout stay. The points are in no plan before a node is named.
"""

from collections.abc import Sequence

import pyarrow as pa

from scaling.errors import InputError
from scaling.record.files import arrow_schema, write_text_if_new
from scaling.record.row import PointColumns
from scaling.run import exclusion, planning
from scaling.run.choices import chosen_ids, repeats_elsewhere, same_layout
from scaling.run.sweep import Sweep
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import Allocation
from scaling.study.point import Point, columns_of, point_from_json


def choose(sweep: Sweep, world_size: int) -> tuple[pa.Table, str, dict[str, str]]:
    """What runs once more elsewhere, a sentence, and slow nodes; writes the points that this adds.

    Looks at this size and the smaller ones: a node may be named only after a size was looked at.

    Raises:
        InputError: the study asks for no such choice.
    """
    study, paths, points = sweep.study, sweep.paths, sweep.points
    if not repeats_elsewhere(study, points, paths):
        raise InputError(
            f"{study.path}: measure: nothing runs once more elsewhere: that needs "
            "exclude_slow_nodes: true, no repeats of contenders, a cluster of several nodes, and "
            "GPUs or repeats to compare runs with"
        )
    runs = [point for point in sweep.runs if point.world_size <= world_size]
    slow = sweep.slow_hosts(runs)
    named = set(slow) | exclusion.slow_by_probes(paths)
    suspects = sweep.only_on(named, runs)
    # the points that the other sizes' choices have added
    others = set(paths.chosen.glob(paths.choice_elsewhere("*").name))
    others -= {paths.choice_elsewhere(world_size)}
    before = {name for path in others for name in chosen_ids(path)}
    nodes = study.clusters[points[0].cluster].nodes
    added = [
        point
        for point in sweep.spare
        if point.world_size <= world_size
        and point.point_id not in before
        and (same_layout(point) in suspects or paths.row(point.point_id).exists())
        and planning.allocation(point).nodes <= nodes - len(named)
    ]
    for point in added:
        write_text_if_new(paths.point(point.point_id), point.to_json())
    own = (pa.field("chosen", pa.bool_()), pa.field("reason", pa.string()))
    table = pa.Table.from_pylist(
        [columns_of(point) | {"chosen": True} for point in added],
        schema=pa.schema([*arrow_schema(PointColumns), *own]),
    )
    sentence = f"{len(added)} layouts ran on slow nodes only and run once more elsewhere"
    return table, sentence, slow


def allocation_of(paths: StudyPaths, point_id: str) -> Allocation:
    """What a point that was added asks for."""
    return planning.allocation(point_from_json(paths.point(point_id).read_text(encoding="utf-8")))


def expected(points: Sequence[Point], nodes: int) -> float:
    """How many points one slow node of so many sends elsewhere, if points are spread evenly."""
    return sum(min(1.0, planning.allocation(point).nodes / nodes) for point in points)
