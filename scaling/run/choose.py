"""Choose which points of a size are measured: by predictions, as contenders, or on other nodes.

chosen/<world_size>.repeat<n>.parquet holds every point of that repeat of contenders: whether it is
measured, if not why, and the hosts of its earlier runs. chosen/<world_size>.elsewhere.parquet holds
points added because all runs of a layout were on slow nodes, with the columns of points.parquet;
the earlier rows stay. No plan has such points before a node is found slow. The files of guided
sweeps are described in `guided`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scaling.analyse.posterior import CLOSE, Cells, Runs, best_of, posterior
from scaling.errors import InputError
from scaling.record.files import POINTS, point_columns, write_table, write_text_if_changed
from scaling.run import guided
from scaling.run.choices import choice_table, chosen_ids, layout_key, setting_key
from scaling.run.plan_writer import plan_digest
from scaling.run.sweep import Sweep, slow_by_probes
from scaling.study.grid import Plan
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import Allocation, read_json_object
from scaling.study.point import point_from_json
from scaling.study.study import Study

# The table, a sentence about it, and by slow node the reason to leave it out.
Choice = tuple[pa.Table, str, dict[str, str]]


def choose(
    study: Study,
    planned: Plan,
    world_size: int,
    study_dir: Path,
    out: Path,
    *,
    repeat: int = 0,
    turn: int = 0,
    elsewhere: bool = False,
) -> str:
    """Choose points of one size and write the choice; returns a sentence about it and slow nodes.

    A point that has a row already stays chosen. `repeat` numbers the repeat of contenders, the
    layouts that may be the best. `turn` counts how often the size was chosen for before, see
    `guided`. `elsewhere` chooses layouts that only ran on slow nodes.

    Raises:
        InputError: the study does not ask for such a choice, has no point of that size, or is not
            what was planned.
    """
    plan, digest = StudyPaths(study_dir).plan, plan_digest(planned)
    if read_json_object(plan).get("asked", digest) != digest:
        raise InputError(
            f"{study.path}: has other points or refusals than {plan}, as when it is edited while "
            "it runs: run it again"
        )
    sizes = sorted({point.world_size for point in planned.points})
    if world_size not in sizes:
        allowed = ", ".join(map(str, sizes))
        raise InputError(f"{study.path}: world_size={world_size}: the study has {allowed}")
    sweep = Sweep(study, planned.points, study_dir)
    if repeat:
        table, sentence, slow = _contenders(sweep, world_size, repeat)
    elif elsewhere:
        table, sentence, slow = _elsewhere(sweep, world_size)
    else:
        table, sentence = guided.choose(sweep, world_size, turn)
        slow = sweep.slow_hosts()
    write_table(out, table)
    left_out = "".join(f"; {host} is left out: {reason}" for host, reason in slow.items())
    of_repeat = f", repeat {repeat}" if repeat else ""
    return f"world_size={world_size}{of_repeat}: {sentence}{left_out}"


def _contenders(sweep: Sweep, world_size: int, repeat: int) -> Choice:
    """Choose the layouts of a size that run once more, including those only run on slow nodes."""
    study, repeats = sweep.study, sweep.study.measure.repeats
    if repeats.only is None or not 0 < repeat < repeats.at_most:
        raise InputError(
            f"{study.path}: measure.repeats: there is no repeat {repeat} of contenders; write "
            f"repeats: {{at_most: {max(repeat + 1, 2)}, for: contenders}}"
        )
    of_size = [point for point in sweep.points if point.world_size == world_size]
    runs: dict[Any, list[tuple[float, float]]] = {}  # by layout, of all sizes
    for point in sweep.points:
        if point.point_id in sweep.step_times:
            runs.setdefault(layout_key(point), []).append(sweep.step_times[point.point_id])
    numbers = {layout: number for number, layout in enumerate(runs)}
    flat = [(numbers[layout], *run) for layout, timed in runs.items() for run in timed]
    cell, seconds, own = np.array(flat, dtype=float).reshape(-1, 3).T
    drawn = posterior(
        Runs(-np.log(seconds), own, cell.astype(int), np.full(len(cell), -1)),
        Cells.without_predictions(len(runs)),
    )
    rivals: dict[Any, dict[Any, None]] = {}  # by setting, the layouts that ran
    hosts: dict[Any, set[str]] = {}
    for point in of_size:
        layout = layout_key(point)
        if layout in runs:
            rivals.setdefault(setting_key(point), {})[layout] = None
        if point.point_id in sweep.rows:
            hosts.setdefault(layout, set()).update(sweep.rows[point.point_id]["hosts"])
    probabilities: dict[Any, float] = {}
    slow = sweep.slow_hosts()
    wanted = sweep.layouts_only_on(slow, of_size)
    for layouts in map(list, rivals.values()):
        best = best_of(drawn.rates[[numbers[layout] for layout in layouts]]).tolist()
        probabilities |= dict(zip(layouts, best, strict=True))
        close = [layout for layout in layouts if probabilities[layout] >= CLOSE]
        wanted |= set(close if len(close) > 1 else ())
    repeats_of_size = [point for point in of_size if point.repeat == repeat]
    reasons = {
        point.point_id: _reason(probabilities.get(layout_key(point)))
        for point in repeats_of_size
        if point.point_id not in sweep.rows and layout_key(point) not in wanted
    }
    ran_on = {p.point_id: sorted(hosts.get(layout_key(p), ())) for p in repeats_of_size}
    count = len(repeats_of_size)
    sentence = (
        f"{count - len(reasons)} of {count} layouts are measured once more; "
        f"runs of one layout differ by {np.median(drawn.noise):.2%}"
    )
    return choice_table(repeats_of_size, reasons, {"hosts": ran_on}), sentence, slow


def _reason(probability: float | None) -> str:
    """Why a layout is not repeated."""
    if probability is None:
        return "is not repeated: no run of it gave a step time"
    if probability >= CLOSE:
        best = f"it is the best of its size with a probability of {probability:.0%}"
    else:
        best = f"the probability that it is the best of its size is {probability:.1%}"
    return f"is not repeated: {best}"


def _elsewhere(sweep: Sweep, world_size: int) -> Choice:
    """Add a run on other nodes for each layout that only ran on slow ones; writes these points.

    Considers smaller sizes too, as a node may be found slow only after these were considered.
    """
    study, paths = sweep.study, sweep.paths
    if not sweep.has_reruns:
        raise InputError(
            f"{study.path}: measure: no layout runs once more elsewhere: that needs "
            "exclude_slow_nodes: true, no repeats of contenders, a cluster of several nodes, and "
            "GPUs or repeats to compare runs with"
        )
    considered = [point for point in sweep.all_points if point.world_size <= world_size]
    slow = sweep.slow_hosts(considered)
    slow_names = set(slow) | slow_by_probes(paths)
    suspects = sweep.layouts_only_on(slow_names, considered)
    other_choices = {*paths.choices_elsewhere()} - {paths.choice_elsewhere(world_size)}
    added_before = {name for path in other_choices for name in chosen_ids(path)}
    nodes = study.clusters[sweep.points[0].cluster].nodes
    added = [
        point
        for point in sweep.reruns
        if point.world_size <= world_size
        and point.point_id not in added_before
        and (layout_key(point) in suspects or paths.row(point.point_id).exists())
        and point.allocation.nodes <= nodes - len(slow_names)
    ]
    for point in added:
        write_text_if_changed(paths.point(point.point_id), point.to_json())
    choice_fields = (pa.field("chosen", pa.bool_()), pa.field("reason", pa.string()))
    table = pa.Table.from_pylist(
        [point_columns(point) | {"chosen": True} for point in added],
        schema=pa.schema([*POINTS, *choice_fields]),
    )
    sentence = f"{len(added)} layouts ran on slow nodes only and run once more elsewhere"
    return table, sentence, slow


def allocation_of_added(paths: StudyPaths, point_id: str) -> Allocation:
    """The allocation of a point that was added to run elsewhere."""
    text = paths.point(point_id).read_text(encoding="utf-8")
    return point_from_json(text).allocation
