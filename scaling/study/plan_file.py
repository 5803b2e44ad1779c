"""plan.json: the part of a study's plan that Snakemake needs, and whether it is up to date.

Snakemake imports this on every parse, so it needs the standard library only.
"""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.errors import InputError
from scaling.study.inputs import digest_of, inputs_digest, study_path
from scaling.study.paths import CONFIG, RESULTS, StudyPaths

_TRIES = 3  # if the study is edited while it is planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The request of one job. Minutes include start-up and clean-up."""

    world_size: int
    nodes: int
    ranks_per_node: int
    minutes: int
    repeat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A plan as Snakemake sees it. The digests make Snakemake rerun what depends on them."""

    made_from: str  # digest of all files and options that the plan depends on
    files: dict[str, str]  # name in the study's folder, or a model's path -> SHA-256 of its content
    study: str  # the YAML file
    points: dict[str, Allocation]  # by point_id; small sizes first, random order within a size
    exclude: bool  # whether later points avoid slow nodes
    rounds: str  # what rounds choose points by; empty: every point is measured, once
    fixed_repeats: int  # runs of each layout that no round decides about
    stands: bool  # an earlier version chose the points, so rounds add none
    refused: int  # number of refusals
    measured: bool  # whether points are measured or only predicted
    asked: str  # digest of points and refusals
    clusters: str  # digest of data sheets, links and prices of the study's clusters
    predicted: bool  # whether step times can be predicted
    replicates: str | None
    on_gpus: bool
    nodes: int  # of the cluster
    gres: str | None  # the site's name of its GPUs
    resources: dict[str, str | int]  # Slurm resources of every job
    probe: Allocation | None
    probe_asked: str  # digest of the probe plan


def read_plan(folder: Path, made_from: str) -> PlanFile | None:
    """The plan in a study's folder, if it was made from these inputs and all its files exist."""
    paths = StudyPaths(folder)
    content = read_json_object(paths.plan)
    digest = content.pop("digest", None)
    if content.get("made_from") != made_from or digest != content_digest(content):
        return None
    points = {name: Allocation(**facts) for name, facts in content["points"].items()}
    probe = None if content["probe"] is None else Allocation(**content["probe"])
    plan = PlanFile(**{**content, "points": points, "probe": probe})
    try:
        present = set(os.listdir(paths.points))  # noqa: PTH208 (names of thousands of files)
    except OSError:
        return None
    intact = all(digest_of(folder / name) == digest for name, digest in plan.files.items())
    return plan if intact and present >= {paths.point(name).name for name in plan.points} else None


def content_digest(content: dict[str, Any]) -> str:
    """The digest that plan.json holds of its own content, so that changes by hand are seen."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing or holds something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def current_plan(study: str, *, mode: str | None = None, cluster: str | None = None) -> PlanFile:
    """The up-to-date plan of a study; runs `scaling plan` if the one on disk is not."""
    path = study_path(study)
    options = [f"--mode={mode}"] if mode is not None else []
    options += [f"--cluster={cluster}"] if cluster is not None else []
    for _ in range(_TRIES):
        made_from = inputs_digest(path, CONFIG, mode=mode, cluster=cluster)
        plan = read_plan(RESULTS / path.stem, made_from)
        if plan is not None:
            return plan
        # in a process of its own: planning imports much that most parses do not need
        process = subprocess.run(
            [sys.executable, "-m", "scaling", "plan", "--no-rehearse", *options, "--", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if process.returncode:
            said = process.stderr.strip()
            raise InputError(said or f"{path}: planning ended with code {process.returncode}")
    raise InputError(f"{path}: changed again and again while it was planned; try once more")
