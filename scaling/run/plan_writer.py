"""A study's plan, and its files: points, refusals, study.json, probe.json, and plan.json last.

Nothing else writes these files.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.cluster.hardware import Slurm
from scaling.errors import InputError, shortened
from scaling.probe.plan import ProbePlan
from scaling.record import files
from scaling.run.retry import set_aside_for_memory
from scaling.run.sweep import Sweep
from scaling.study.grid import Plan
from scaling.study.inputs import digest_of
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import PlanFile, content_digest, read_json_object
from scaling.study.point import Point, micro_batch_twins
from scaling.study.study import Study, study_info_json


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """A loaded study and its plan; `made_from` is the digest of everything the plan depends on."""

    study: Study
    folder: Path
    plan: Plan
    probe_plan: ProbePlan | None
    made_from: str


def write_plan(planned: StudyPlan) -> None:
    """Write a plan into its study's folder; unchanged files keep their time."""
    paths = StudyPaths(planned.folder)
    with _plan_lock(paths):
        earlier = read_json_object(paths.plan)
        plan = _plan_file(planned, earlier)
        for point in planned.plan.points:
            row, per_node = paths.row(point.point_id), point.gpus_per_node
            before = read_json_object(paths.point(point.point_id)) if row.exists() else {}
            if (measured := before.get("gpus_per_node", per_node)) != per_node:
                raise InputError(
                    f"{row}: was measured with gpus_per_node={shortened(measured)}, and the point "
                    f"of this id has gpus_per_node={per_node} now; give the cluster another name "
                    f"in clusters.yaml, or move {paths.folder} away"
                )
        files.write_points(paths.folder, planned.plan)
        files.write_text_if_changed(paths.study, study_info_json(planned.study))
        written = [paths.points_table, paths.refused, paths.study]
        if planned.probe_plan is not None:
            files.write_text_if_changed(paths.probe_plan, planned.probe_plan.to_json())
            written.append(paths.probe_plan)
        digests = {path.name: digest for path in written if (digest := digest_of(path))}
        models = [model.path.absolute() for model in planned.study.model_files]
        digests |= {str(path): digest for path in models if (digest := digest_of(path))}
        content = dataclasses.asdict(dataclasses.replace(plan, files=digests))
        content["digest"] = content_digest(content)
        before_mb = earlier.get("resources", {}).get("mem_mb")
        if (mem_mb := plan.resources.get("mem_mb")) not in (None, before_mb):
            set_aside_for_memory(paths.folder, int(mem_mb))
        files.write_text_if_changed(paths.plan, json.dumps(content, indent=1) + "\n")
        asked = (earlier.get("asked"), earlier.get("rounds"))
        if earlier and (plan.asked, plan.rounds) != asked:
            for path in reversed(paths.rounds()):  # points with a row stay chosen
                path.unlink(missing_ok=True)


def _plan_file(planned: StudyPlan, earlier: Mapping[str, Any]) -> PlanFile:
    """Snakemake's part of a plan, without digests of its files; `earlier`: the plan before.

    Small sizes come first. Within a size the order is random, by the study's seed: otherwise a
    drift over time would look like a property of the layouts that happened to run then. Points
    that differ in the micro-batch only run in its order, since one that is out of memory rules out
    the larger ones.
    """
    study, points, probe_plan = planned.study, planned.plan.points, planned.probe_plan
    measure, measured = study.measure, study.mode == "measure"
    sweep, asked = Sweep(study, points, planned.folder), plan_digest(planned.plan)
    used = sorted({point.cluster for point in points})
    sheets = [dataclasses.asdict(study.clusters[name]) | {"slurm": None} for name in used]
    cluster = study.clusters[points[0].cluster]  # a study that measures has only one
    lots = _lots(measure.seed, points)
    return PlanFile(
        made_from=planned.made_from,
        files={},
        study=str(study.path),
        asked=asked,
        clusters=hashlib.sha256(json.dumps(sheets).encode()).hexdigest()[:16],
        resources=slurm_resources(cluster.slurm),
        points={
            point.point_id: point.allocation
            for point in sorted(points, key=lambda p: (p.world_size, p.repeat, lots[p.point_id]))
        },
        predicted=study.is_predictable,
        exclude=measure.exclude_slow_nodes,
        rounds=sweep.rounds,
        fixed_repeats=sweep.fixed_repeats,
        stands=(
            bool(earlier["stands"]) and earlier.get("asked") == asked
            if "stands" in earlier
            else earlier.get("measured") is True and StudyPaths(planned.folder).report.exists()
        ),
        refused=len(planned.plan.refusals),
        measured=measured,
        replicates=study.replicates,
        on_gpus=points[0].gpu != "cpu",
        nodes=cluster.nodes,
        gres=cluster.slurm.gres,
        probe=probe_plan.allocation if probe_plan else None,
        probe_asked=probe_plan.digest if probe_plan else "",
    )


def _lots(seed: int, points: Sequence[Point]) -> dict[str, float]:
    """A random number for each point_id; among micro-batch twins they rise with the micro-batch."""
    lots: dict[str, float] = {}
    for twins in micro_batch_twins(points).values():
        drawn = sorted(random_fraction(seed, point.point_id) for point in twins)
        lots |= {point.point_id: lot for point, lot in zip(twins, drawn, strict=True)}
    return lots


def random_fraction(seed: int, point_id: str, purpose: str = "order") -> float:
    """A pseudo-random number in [0, 1) that depends on seed, point and purpose only.

    Sorting by it gives a random order that does not change when other points come or go.
    """
    digest = hashlib.sha256(f"{purpose}:{seed}:{point_id}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def plan_digest(plan: Plan) -> str:
    """Digest of all points and refusals of a plan."""
    texts = [point.to_json() for point in plan.points]
    texts += [json.dumps(dataclasses.asdict(refusal)) for refusal in plan.refusals]
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def slurm_resources(site: Slurm) -> dict[str, str | int]:
    """The Slurm resources shared by all points; nodes and ranks depend on the layout.

    Lists of options become one string quoted for the shell, and set-up lines one text.
    """
    words = ("partition", "account", "qos", "constraint", "reservation", "dependency")
    resources: dict[str, str | int | None] = {
        **{f"slurm_{word}": getattr(site, word) for word in words},
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
