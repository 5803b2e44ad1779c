"""Which points of a size are measured: chosen by predictions, by who may be the best, by nodes.

chosen/<world_size>.repeat<n>.parquet holds every point of that repeat of contenders: whether it is
measured, else why not, and the hosts that its earlier runs were on.
chosen/<world_size>.elsewhere.parquet holds the points that are added because all runs of a layout
were on slow nodes, with the columns of points.parquet; both rows of the layout stay. They are in no
plan before a node is named. What `guided` chooses stands there.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa

from scaling.analyse.being_best import UNRESOLVED, Runs, between_run_sigma, odds_of_best
from scaling.errors import InputError
from scaling.record.files import arrow_schema, write_table, write_text_if_changed
from scaling.record.row import PointColumns
from scaling.run import guided, planning
from scaling.run.choices import (
    choice_table,
    chosen_ids,
    same_layout,
    same_setting,
)
from scaling.run.sweep import Sweep, slow_by_probes
from scaling.study.grid import Plan
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import Allocation
from scaling.study.point import point_columns, point_from_json
from scaling.study.study import Study

Choice = tuple[pa.Table, str, dict[str, str]]  # a sentence about it, and why nodes are left out


def choose(
    study: Study,
    planned: Plan,
    world_size: int,
    study_dir: Path,
    out: Path,
    *,
    repeat: int = 0,
    turn: int = 0,
    on_others: bool = False,
) -> str:
    """Choose points of one size and write them; a sentence about it, and about slow nodes.

    A point that has a row already stays chosen. `repeat` is that of contenders, the layouts that
    may be the best; `turn` the so manieth time that a size is chosen for again, see `guided`;
    `on_others` asks for what ran on slow nodes only.

    Raises:
        InputError: the study does not ask for such a choice, or has no point of that size.
    """
    sizes = sorted({point.world_size for point in planned.points})
    if world_size not in sizes:
        has = ", ".join(map(str, sizes))
        raise InputError(f"{study.path}: world_size={world_size}: the study has {has}")
    sweep = Sweep(study, planned.points, study_dir)
    if repeat:
        table, sentence, slow = _contenders(sweep, world_size, repeat)
    elif on_others:
        table, sentence, slow = _elsewhere(sweep, world_size)
    else:
        table, sentence = guided.choose(sweep, world_size, turn)
        slow = sweep.slow_hosts()
    write_table(out, table)
    left_out = "".join(f"; {host} is left out: {reason}" for host, reason in slow.items())
    which = f", repeat {repeat}" if repeat else ""
    return f"world_size={world_size}{which}: {sentence}{left_out}"


def _contenders(sweep: Sweep, world_size: int, repeat: int) -> Choice:
    """Which layouts of a size are measured once more, those too that ran on slow nodes only."""
    study, repeats = sweep.study, sweep.study.measure.repeats
    if repeats.only is None or not 0 < repeat < repeats.at_most:
        raise InputError(
            f"{study.path}: measure.repeats: there is no repeat {repeat} of contenders; write "
            f"repeats: {{at_most: {max(repeat + 1, 2)}, for: contenders}}"
        )
    here = [point for point in sweep.points if point.world_size == world_size]
    runs: dict[Any, list[tuple[float, float]]] = {}  # by layout, of all sizes
    for point in sweep.points:
        if point.point_id in sweep.timed:
            runs.setdefault(same_layout(point), []).append(sweep.timed[point.point_id])
    sigma = between_run_sigma(Runs.of([*runs.values()]))
    rivals: dict[Any, dict[Any, None]] = {}  # by setting, the layouts that ran
    hosts: dict[Any, set[str]] = {}
    for point in here:
        layout = same_layout(point)
        if layout in runs:
            rivals.setdefault(same_setting(point), {})[layout] = None
        if point.point_id in sweep.rows:
            hosts.setdefault(layout, set()).update(sweep.rows[point.point_id]["hosts"])
    probabilities: dict[Any, float] = {}
    slow = sweep.slow_hosts()
    wanted = sweep.only_on(slow, here)
    for layouts in map(list, rivals.values()):
        odds = odds_of_best(Runs.of([runs[layout] for layout in layouts]), sigma)
        probabilities |= dict(zip(layouts, odds.probabilities, strict=True))
        wanted |= {layouts[row] for row in odds.contenders}
    again = [point for point in here if point.repeat == repeat]
    reasons = {
        point.point_id: _reason(probabilities.get(same_layout(point)))
        for point in again
        if point.point_id not in sweep.rows and same_layout(point) not in wanted
    }
    ran_on = {p.point_id: sorted(hosts.get(same_layout(p), ())) for p in again}
    sentence = (
        f"{len(again) - len(reasons)} of {len(again)} layouts are measured once more; "
        f"runs of one layout differ by {sigma:.2%}"
    )
    return choice_table(again, reasons, {"hosts": ran_on}), sentence, slow


def _reason(probability: float | None) -> str:
    """Why a layout is not repeated."""
    if probability is None:
        return "is not repeated: no run of it gave a step time"
    if probability >= UNRESOLVED[0]:
        best = f"it is the best of its size with a probability of {probability:.0%}"
    else:
        best = f"the probability that it is the best of its size is {probability:.1%}"
    return f"is not repeated: {best}"


def _elsewhere(sweep: Sweep, world_size: int) -> Choice:
    """What ran on slow nodes only runs once more; writes the points that this adds.

    Looks at this size and the smaller ones: a node may be named only after a size was looked at.
    """
    study, paths = sweep.study, sweep.paths
    if not sweep.repeats_elsewhere:
        raise InputError(
            f"{study.path}: measure: nothing runs once more elsewhere: that needs "
            "exclude_slow_nodes: true, no repeats of contenders, a cluster of several nodes, and "
            "GPUs or repeats to compare runs with"
        )
    runs = [point for point in sweep.runs if point.world_size <= world_size]
    slow = sweep.slow_hosts(runs)
    named = set(slow) | slow_by_probes(paths)
    suspects = sweep.only_on(named, runs)
    # the points that the other sizes' choices have added
    others = set(paths.chosen.glob(paths.choice_elsewhere("*").name))
    others -= {paths.choice_elsewhere(world_size)}
    before = {name for path in others for name in chosen_ids(path)}
    nodes = study.clusters[sweep.points[0].cluster].nodes
    added = [
        point
        for point in sweep.spare
        if point.world_size <= world_size
        and point.point_id not in before
        and (same_layout(point) in suspects or paths.row(point.point_id).exists())
        and planning.allocation(point).nodes <= nodes - len(named)
    ]
    for point in added:
        write_text_if_changed(paths.point(point.point_id), point.to_json())
    own = (pa.field("chosen", pa.bool_()), pa.field("reason", pa.string()))
    table = pa.Table.from_pylist(
        [point_columns(point) | {"chosen": True} for point in added],
        schema=pa.schema([*arrow_schema(PointColumns), *own]),
    )
    sentence = f"{len(added)} layouts ran on slow nodes only and run once more elsewhere"
    return table, sentence, slow


def allocation_of(paths: StudyPaths, point_id: str) -> Allocation:
    """What a point that was added to run elsewhere asks for."""
    return planning.allocation(point_from_json(paths.point(point_id).read_text(encoding="utf-8")))
