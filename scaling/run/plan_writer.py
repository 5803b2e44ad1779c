"""Write a study's plan: points, refusals, study.json, probe.json, and plan.json last.

Nothing else writes these files.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from scaling.cluster.site import slurm_resources
from scaling.errors import InputError, shortened
from scaling.record import files
from scaling.run import planning
from scaling.run.planning import StudyPlan
from scaling.run.sweep import Sweep
from scaling.study import grid, plan_file
from scaling.study.paths import RESULTS, StudyPaths
from scaling.study.plan_file import Allocation, PlanFile
from scaling.study.point import Point, point_from_json, random_fraction
from scaling.study.study import Study, study_folder, study_info_json

# Temporary files older than this have no writer any more: one needs seconds, and clocks differ.
PARTS_ARE_DEAD_AFTER_S = 3600.0
# Fields that a row's measurement depends on: a point that differs in one must not have its id.
_MEASURED_FIELDS = (
    "study_kind", "repeat", "shape", "cluster", "gpu", "gpus_per_node", "layout", "seed",
    "warmup_steps", "measured_steps", "gradient_clipping", "at_least_steps", "until",
)  # fmt: skip


def write_plan(planned: StudyPlan, results: Path = RESULTS) -> Path:
    """Write a plan into its study's folder, and return that; unchanged files keep their time.

    Raises:
        InputError: the folder belongs to another study, or has rows of other points with these ids.
    """
    folder = study_folder(planned.study, results)
    sweep, paths = Sweep(planned.study, planned.plan.points, folder), StudyPaths(folder)
    with _plan_lock(paths):
        _refuse_other_points(paths, planned.plan.points)
        files.write_points(paths.folder, planned.plan)
        files.write_text_if_changed(paths.study, study_info_json(planned.study))
        if planned.probe_plan is not None:
            files.write_text_if_changed(paths.probe_plan, planned.probe_plan.to_json())
        files.write_text_if_changed(paths.plan, _plan_file(planned, sweep, paths).to_json())
        _remove_stale_files(paths, sweep.choice_files)
    return folder


def _plan_file(planned: StudyPlan, sweep: Sweep, paths: StudyPaths) -> PlanFile:
    study, points, probe_plan = planned.study, planned.plan.points, planned.probe_plan
    repeats = study.measure.repeats
    used = sorted({point.cluster for point in points})
    sheets = [dataclasses.asdict(study.clusters[name]) | {"slurm": None} for name in used]
    written = [paths.points_table, paths.refused, paths.study]
    written += [paths.probe_plan] if probe_plan else []
    digests = {path.name: plan_file.digest_of(path) for path in written}
    cluster = study.clusters[points[0].cluster]  # a study that measures has only one
    return PlanFile(
        made_from=planned.made_from,
        files={name: digest for name, digest in digests.items() if digest},
        study=str(study.path),
        points=_ordered_allocations(study, points),
        contended=repeats.at_most - 1 if repeats.only and study.mode == "measure" else 0,
        exclude=study.measure.exclude_slow_nodes,
        elsewhere=sweep.has_reruns,
        refused=len(planned.plan.refusals),
        measured=study.mode == "measure",
        again=sweep.turns,
        guide=study.measure.guidance if study.mode == "measure" else "",
        asked=grid.plan_digest(planned.plan),
        clusters=hashlib.sha256(json.dumps(sheets).encode()).hexdigest()[:16],
        predicted=study.is_predictable,
        replicates=study.replicates,
        on_gpus=points[0].gpu != "cpu",
        nodes=cluster.nodes,
        gres=cluster.slurm.gres,
        resources=slurm_resources(cluster.slurm),
        probe=planning.allocation_of(probe_plan) if probe_plan else None,
        probe_asked=probe_plan.digest if probe_plan else "",
    )


def _ordered_allocations(study: Study, points: Sequence[Point]) -> dict[str, Allocation]:
    """The allocation of each point, in the order in which points run.

    Small sizes come first. Within a size the order is random, by the study's seed: otherwise a
    drift over time would look like a property of the layouts that happened to run then.
    """
    seed = study.measure.seed
    ordered = sorted(
        points, key=lambda p: (p.world_size, p.repeat, random_fraction(seed, p.point_id))
    )
    return {point.point_id: planning.allocation_of(point) for point in ordered}


@contextlib.contextmanager
def _plan_lock(paths: StudyPaths) -> Iterator[None]:
    """Make concurrent writers of one plan wait for each other."""
    paths.folder.mkdir(parents=True, exist_ok=True)
    with paths.plan_lock.open("a") as lock:
        with contextlib.suppress(OSError):  # a file system without locks: each file is still atomic
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _refuse_other_points(paths: StudyPaths, points: Sequence[Point]) -> None:
    """Refuse to reuse the id of a measured point for a different point.

    Raises:
        InputError: a row was measured for another point that has the id of one of these.
    """
    for point in points:
        row, path = paths.row(point.point_id), paths.point(point.point_id)
        if not row.exists() or not path.exists():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if text == point.to_json():
            continue
        try:
            before = dataclasses.asdict(point_from_json(text))
        except (ValueError, KeyError, TypeError):  # a broken file is written anew
            continue
        now = dataclasses.asdict(point)
        other = next((name for name in _MEASURED_FIELDS if before[name] != now[name]), None)
        if other is not None:
            raise InputError(
                f"{row}: was measured with {other}={shortened(before[other])}, and the point of "
                f"this id has {other}={shortened(now[other])} now; give the cluster another name "
                f"in clusters.yaml, or move {paths.folder} away"
            )


def _remove_stale_files(paths: StudyPaths, choices: Collection[Path]) -> None:
    """Remove choices about sizes that are no longer asked for, and temporary files of dead writers.

    Done last and file by file, so that a valid choice is never missing.
    """
    for path in set(paths.chosen.glob("*.parquet")).difference(choices):
        path.unlink(missing_ok=True)
    for path in paths.folder.rglob(".*.part"):
        with contextlib.suppress(FileNotFoundError):  # its writer has just finished
            if time.time() - path.stat().st_mtime > PARTS_ARE_DEAD_AFTER_S:
                path.unlink()
