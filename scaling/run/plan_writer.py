"""The one writer of a plan: points, refusals, study.json, probe.json, and plan.json last."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling.cluster.site import slurm_resources
from scaling.errors import InputError, shortened
from scaling.predict.advise.spend import Spend
from scaling.probe.plan import ProbePlan
from scaling.record import files
from scaling.run import planning
from scaling.run.sweep import Sweep
from scaling.study import grid, plan_file
from scaling.study.grid import Plan
from scaling.study.paths import RESULTS, StudyPaths
from scaling.study.plan_file import CONFIG, Allocation, PlanFile
from scaling.study.point import Point, point_from_json, random_fraction
from scaling.study.study import (
    Study,
    load_study,
    replication_queries,
    study_folder,
    study_info_json,
)

PARTS_ARE_DEAD_AFTER_S = 3600.0  # seconds; a writer needs a few, and hosts' clocks differ
# What a row is about. Another point of the same id would take its row for its own.
_MEASURED = (
    "study_kind", "repeat", "shape", "cluster", "gpu", "gpus_per_node", "layout", "seed",
    "warmup_steps", "measured_steps", "gradient_clipping", "at_least_steps", "until",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """A study with all that its plan says."""

    study: Study
    plan: Plan
    spend: Spend | None
    probing: ProbePlan | None
    made_from: str


def plan_study(study: str, *, mode: str | None = None, cluster: str | None = None) -> StudyPlan:
    """Plan a study, and write nothing.

    Raises:
        InputError: the study is wrong, or no point of it can run.
    """
    path = plan_file.study_path(study)
    # before the files are read: one that is edited meanwhile makes this plan a stale one
    made_from = plan_file.inputs_digest(path, CONFIG, mode=mode, cluster=cluster)
    loaded = load_study(path, mode=mode, cluster=cluster)
    replication_queries(loaded)  # a name that is wrong is said before anything runs
    plan, spend = planning.fitting_plan_and_spend(loaded)
    return StudyPlan(
        study=loaded,
        plan=plan,
        spend=spend,
        probing=planning.probe_of(loaded, plan),
        made_from=made_from,
    )


def write_plan(planned: StudyPlan, results: Path = RESULTS) -> Path:
    """Write a plan into its study's folder; files that say the same already keep their time.

    Returns:
        The folder.

    Raises:
        InputError: the folder holds another study, or rows of other points of the same ids.
    """
    sweep = Sweep(planned.study, planned.plan.points, study_folder(planned.study, results))
    paths = sweep.paths
    with _alone(paths):
        _refuse_other_points(paths, planned.plan.points)
        files.write_points(paths.folder, planned.plan)
        files.write_text_if_changed(paths.study, study_info_json(planned.study))
        if planned.probing is not None:
            files.write_text_if_changed(paths.probe_plan, planned.probing.to_json())
        files.write_text_if_changed(paths.plan, _file(planned, sweep).to_json())
        _tidy(sweep)
    return paths.folder


def _file(planned: StudyPlan, sweep: Sweep) -> PlanFile:
    study, points, probing = planned.study, planned.plan.points, planned.probing
    paths, repeats = sweep.paths, study.measure.repeats
    used = sorted({point.cluster for point in points})
    sheets = [dataclasses.asdict(study.clusters[name]) | {"slurm": None} for name in used]
    written = [paths.points_table, paths.refused, paths.study]
    written += [paths.probe_plan] if probing else []
    digests = {path.name: plan_file.digest_of(path) for path in written}
    cluster = study.clusters[points[0].cluster]  # a study that measures runs on one
    return PlanFile(
        made_from=planned.made_from,
        files={name: digest for name, digest in digests.items() if digest},
        study=str(study.path),
        points=_in_order(study, points),
        contended=repeats.at_most - 1 if repeats.only and study.mode == "measure" else 0,
        exclude=study.measure.exclude_slow_nodes,
        elsewhere=sweep.repeats_elsewhere,
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
        probe=planning.allocation(probing) if probing else None,
        probe_asked=probing.digest if probing else "",
    )


def _in_order(study: Study, points: Sequence[Point]) -> dict[str, Allocation]:
    """What each point asks for, in the order in which they run.

    Small sizes first, and within a size at random: what changes with time must not look like a
    property of the layouts that happened to run then. The order is that of the study's seed.
    """
    seed = study.measure.seed
    ordered = sorted(
        points, key=lambda p: (p.world_size, p.repeat, random_fraction(seed, p.point_id))
    )
    return {point.point_id: planning.allocation(point) for point in ordered}


@contextlib.contextmanager
def _alone(paths: StudyPaths) -> Iterator[None]:
    """Two writers of one plan wait for each other."""
    paths.folder.mkdir(parents=True, exist_ok=True)
    with paths.plan_lock.open("a") as lock:
        with contextlib.suppress(OSError):  # no locks on this file system: each file is whole yet
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _refuse_other_points(paths: StudyPaths, points: Sequence[Point]) -> None:
    """An id may not come to mean another point once it was measured.

    Raises:
        InputError: a row of another point has the id of one of these.
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
        other = next((name for name in _MEASURED if before[name] != now[name]), None)
        if other is not None:
            raise InputError(
                f"{row}: was measured with {other}={shortened(before[other])}, and the point of "
                f"this id has {other}={shortened(now[other])} now; give the cluster another name "
                f"in clusters.yaml, or move {paths.folder} away"
            )


def _tidy(sweep: Sweep) -> None:
    """Remove choices about sizes that are no longer asked for, and what writers that died left.

    Last, and file by file: a choice that stands is never missing.
    """
    for path in set(sweep.paths.chosen.glob("*.parquet")) - sweep.choices:
        path.unlink(missing_ok=True)
    for path in sweep.paths.folder.rglob(".*.part"):
        with contextlib.suppress(FileNotFoundError):  # its writer lives and has just ended
            if time.time() - path.stat().st_mtime > PARTS_ARE_DEAD_AFTER_S:
                path.unlink()
