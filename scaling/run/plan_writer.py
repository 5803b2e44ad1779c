"""Write a study's plan: points, refusals, study.json, probe.json, and plan.json last.

Nothing else writes these files.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import shlex
import time
from collections.abc import Iterator, Sequence

from scaling.cluster.site import Slurm
from scaling.errors import InputError, shortened
from scaling.record import files
from scaling.run import planning
from scaling.run.planning import StudyPlan
from scaling.run.sweep import Sweep
from scaling.study import plan_file
from scaling.study.grid import Plan
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import PlanFile
from scaling.study.point import Point, point_from_json

# Temporary files older than this have no writer any more: one needs seconds, and clocks differ.
PARTS_ARE_DEAD_AFTER_S = 3600.0
# Fields that a row's measurement depends on: a point that differs in one must not have its id.
_MEASURED_FIELDS = (
    "study_kind", "repeat", "shape", "cluster", "gpu", "gpus_per_node", "layout", "seed",
    "warmup_steps", "measured_steps", "gradient_clipping", "at_least_steps", "until",
)  # fmt: skip


def write_plan(planned: StudyPlan) -> None:
    """Write a plan into its study's folder; unchanged files keep their time.

    Raises:
        InputError: the folder has rows of other points with these ids.
    """
    paths = StudyPaths(planned.folder)
    with _plan_lock(paths):
        _refuse_other_points(paths, planned.plan.points)
        files.write_points(paths.folder, planned.plan)
        files.write_text_if_changed(paths.study, planned.about)
        if planned.probe_plan is not None:
            files.write_text_if_changed(paths.probe_plan, planned.probe_plan.to_json())
        sweep = Sweep(planned.study, planned.plan.points, planned.folder)
        plan = json.dumps(dataclasses.asdict(_plan_file(planned, paths, sweep)), indent=1)
        files.write_text_if_changed(paths.plan, plan + "\n")
        # last and file by file, so that a valid choice is never missing
        for path in set(paths.chosen.glob("*.parquet")).difference(sweep.choice_files):
            path.unlink(missing_ok=True)
        for path in paths.folder.rglob(".*.part"):
            with contextlib.suppress(FileNotFoundError):  # its writer has just finished
                if time.time() - path.stat().st_mtime > PARTS_ARE_DEAD_AFTER_S:
                    path.unlink()


def _plan_file(planned: StudyPlan, paths: StudyPaths, sweep: Sweep) -> PlanFile:
    study, points, probe_plan = planned.study, planned.plan.points, planned.probe_plan
    repeats, measured = study.measure.repeats, study.mode == "measure"
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
        asked=plan_digest(planned.plan),
        clusters=hashlib.sha256(json.dumps(sheets).encode()).hexdigest()[:16],
        resources=slurm_resources(cluster.slurm),
        points=planning.ordered_allocations(study, points),
        predicted=study.is_predictable,
        contended=repeats.at_most - 1 if repeats.only and measured else 0,
        exclude=study.measure.exclude_slow_nodes,
        elsewhere=sweep.has_reruns,
        refused=len(planned.plan.refusals),
        measured=measured,
        again=sweep.turns,
        guide=study.measure.guidance if measured else "",
        replicates=study.replicates,
        on_gpus=points[0].gpu != "cpu",
        nodes=cluster.nodes,
        gres=cluster.slurm.gres,
        probe=planning.allocation_of(probe_plan) if probe_plan else None,
        probe_asked=probe_plan.digest if probe_plan else "",
    )


def plan_digest(plan: Plan) -> str:
    """Digest of all points and refusals of a plan."""
    texts = [point.to_json() for point in plan.points]
    texts += [json.dumps(dataclasses.asdict(refusal)) for refusal in plan.refusals]
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def slurm_resources(site: Slurm) -> dict[str, str | int]:
    """The Slurm resources shared by all points; nodes and ranks depend on the layout.

    Lists of options become one string quoted for the shell, and set-up lines one text.
    """
    resources: dict[str, str | int | None] = {
        "slurm_partition": site.partition,
        "slurm_account": site.account,
        "slurm_qos": site.qos,
        "slurm_constraint": site.constraint,
        "slurm_reservation": site.reservation,
        "slurm_exclusive": 1 if site.exclusive else None,
        "cpus_per_task": site.cpus_per_task,
        "mem_mb": site.mem_mb,
        "slurm_setup": "\n".join(site.setup) or None,
        "srun_args": shlex.join(site.srun_args) or None,
        "slurm_extra": shlex.join(site.extra) or None,
    }
    return {name: value for name, value in resources.items() if value is not None}


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
