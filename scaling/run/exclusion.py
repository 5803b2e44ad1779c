"""Nodes that later points of a sweep leave out: slow ones, and those a layout has run on already.

excluded.json names the slow ones with a reason each; the residuals of rows name them, round after
round. What probes say is read where it stands.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from scaling.analyse.drift import residual_tests
from scaling.analyse.slow_hosts import slow_hosts
from scaling.record.files import write_text_if_new
from scaling.record.probe_row import Probe
from scaling.record.row import fields_of
from scaling.run import planning
from scaling.run.choices import same_layout
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import Allocation, json_object
from scaling.study.point import Point
from scaling.study.study import Study

SLOWER_BY = 0.05  # ratio; what runs on the node take longer than others, on average
SURE = 0.01  # share of shuffles of the residuals in which some node looks as slow
FEWEST_RUNS = 3  # on the node, and elsewhere

Floats = npt.NDArray[np.float64]
Timed = tuple[float, Sequence[str]]  # seconds of a step, and the hosts of the run


def hosts_to_avoid(
    paths: StudyPaths, point_id: str, allocation: Allocation, nodes: int, *, slow_ones: bool = True
) -> list[str]:
    """The hosts that Slurm is told to leave out for a point; none where too few would be left.

    `nodes` are those of the cluster; `slow_ones` says whether the study leaves slow nodes out.
    """
    slow = set(json_object(paths.excluded)) | slow_by_probes(paths) if slow_ones else set()
    avoided = sorted(slow) if nodes - len(slow) >= allocation.nodes else []
    seen = slow | _seen(paths, point_id, allocation) if allocation.repeat else slow
    return sorted(seen) if nodes - len(seen) >= allocation.nodes else avoided


def name_slow(
    study: Study, points: Sequence[Point], timed: Mapping[str, Timed], excluded: Path
) -> dict[str, str]:
    """Name the nodes that rows show to be slow, and write excluded.json; none if the study forbids.

    A residual is that of ln step time against the other runs of the same layout, or where it ran
    once against the prediction less its median error (`scaling.analyse.drift`). A node once named
    stays so.
    """
    if not study.measure.exclude_slow_nodes:
        return {}
    slow: dict[str, str] = json_object(excluded)
    runs = [(point, *timed[point.point_id]) for point in points if point.point_id in timed]
    for residuals in _residuals(study, runs):
        used = np.flatnonzero(np.isfinite(residuals))
        hosts = [list(runs[row][2]) for row in used.tolist()]
        tests = (
            residual_tests(residuals[used], np.zeros(len(used)), pa.array(hosts)) if hosts else ()
        )
        for test in tests:
            host, effect, p_value = (str(test[name]) for name in ("host", "effect", "p_value"))
            on = sum(host in names for names in hosts)
            many = min(on, len(hosts) - on) >= FEWEST_RUNS
            if many and float(effect) >= SLOWER_BY and float(p_value) <= SURE:
                slow.setdefault(
                    host,
                    f"its {on} runs take {float(effect):.0%} longer than those elsewhere "
                    f"(p {float(p_value):.2g})",
                )
    if slow:
        write_text_if_new(excluded, json.dumps(slow, indent=1) + "\n")
    return slow


def _residuals(study: Study, runs: Sequence[tuple[Point, float, Sequence[str]]]) -> list[Floats]:
    """Of ln step time, (runs,): against other runs of a layout, and of single runs as predicted.

    NaN where there is nothing to compare with. The two are apart: predictions err far more.
    """
    points = [point for point, _, _ in runs]
    logs = np.log([seconds for _, seconds, _ in runs])
    alike: dict[Any, list[int]] = {}
    for row, point in enumerate(points):
        alike.setdefault(same_layout(point), []).append(row)
    against_runs, against_predictions = np.full((2, len(runs)), np.nan)
    for rows in alike.values():
        if len(rows) > 1:
            against_runs[rows] = logs[rows] - np.median(logs[rows])
    single = np.isnan(against_runs)
    if single.any() and study.predictable:
        prediction = planning.predict_points(study, points)[1]
        predicted = single & prediction.predicted
        off = logs[predicted] - np.log(prediction.step_time_s[predicted])
        against_predictions[predicted] = off - np.median(off) if off.size else off
    return [against_runs, against_predictions]


def slow_by_probes(paths: StudyPaths) -> set[str]:
    """Hosts that the study's probes name."""
    time_ns = paths.probes.stat().st_mtime_ns if paths.probes.exists() else None
    return set(_slow_by_probes(paths.probes, time_ns))


@functools.cache
def _slow_by_probes(path: Path, time_ns: int | None) -> tuple[str, ...]:
    """Hosts that probes name; read again only where the file has changed."""
    if time_ns is None:
        return ()
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException):
        return ()
    columns = [name for name in fields_of(Probe) if name in table.column_names]
    records = table.select(columns).to_pylist()
    return tuple(sorted({one.host for one in slow_hosts(Probe(**one) for one in records)}))


def _seen(paths: StudyPaths, point_id: str, allocation: Allocation) -> set[str]:
    """Hosts that earlier runs of a repeat's layout were on, as they stood when it was chosen."""
    choice = paths.choice_of_repeat(allocation.world_size, allocation.repeat)
    try:
        table = pq.read_table(choice, columns=["hosts"], filters=[("point_id", "=", point_id)])
    except (OSError, pa.ArrowException):
        return set()
    return {host for one in table.to_pylist() for host in one["hosts"] or ()}
