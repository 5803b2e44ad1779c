"""plan.json: what Snakemake needs of a study's plan, and whether it is still the plan of its files.

Snakemake reads it on every parse, so this imports the standard library only.
"""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.errors import InputError, did_you_mean
from scaling.study.paths import RESULTS, StudyPaths

CONFIG = Path("config")
_TRIES = 3  # a study that is edited while it is planned is planned again
_PACKAGE = Path(__file__).parents[1]
_ROOMS = ("layout", "cluster", "study", "run", "predict")  # those that make plans, with probe.plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What one job asks for: nodes, ranks on each, and minutes, start-up and clean-up included."""

    world_size: int
    nodes: int
    ranks_per_node: int
    minutes: int
    repeat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A plan as Snakemake sees it. Digests change when what they stand for does, never else."""

    made_from: str  # digest of every file and option the plan follows from
    files: dict[str, str]  # name in the study's folder -> SHA-256 of its content
    study: str  # the YAML file
    points: dict[str, Allocation]  # by point_id, small sizes first, each size in a random order
    contended: int  # repeats that only contenders have, 0: every point has all
    exclude: bool  # slow nodes are left out of later points
    elsewhere: bool  # what ran on them only runs once more
    refused: int
    measured: bool
    again: int  # times a size of a guided sweep is chosen for again, by its own rows
    guide: str  # what a guided sweep chooses by; empty: every point is measured
    asked: str  # digest of points and refusals
    clusters: str  # digest of the data sheets, links and prices of the study's clusters
    predicted: bool
    replicates: str | None
    on_gpus: bool
    nodes: int  # of the cluster
    gres: str | None  # the site's own name of its GPUs
    resources: dict[str, str | int]
    probe: Allocation | None
    probe_asked: str  # digest of what is probed

    def to_json(self) -> str:
        """The text of plan.json."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def study_path(study: str | Path, config: Path = CONFIG) -> Path:
    """Where the study's YAML lies: a path that ends in .yaml is taken as it is.

    Raises:
        InputError: there is no such file.
    """
    path = Path(study)
    if path.suffix not in (".yaml", ".yml"):
        path = config / "studies" / f"{study}.yaml"
    try:
        exists = path.is_file()
    except OSError:  # a name longer than any file system allows
        exists = False
    if not exists:
        names = [other.stem for other in (config / "studies").glob("*.yaml") if other.is_file()]
        raise InputError(f"{path}: no such study: {did_you_mean(Path(study).stem, names)}")
    return path


def made_from(path: Path, config: Path, *, mode: str | None, cluster: str | None) -> str:
    """A digest of all that a plan follows from: files by their content, options, this program.

    Content, not times: whoever made a plan, it is stale exactly where a fresh one may differ.
    """
    files = [path, config / "models.yaml", config / "clusters.yaml"]
    for room in _ROOMS:
        files += sorted((_PACKAGE / room).rglob("*.py"))
    files.append(_PACKAGE / "probe" / "plan.py")
    facts = [str(path), mode, cluster, *(digest_of(file) for file in files)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def digest_of(path: Path) -> str | None:
    """SHA-256 of a file's content; None where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def read_plan(folder: Path, wanted: str) -> PlanFile | None:
    """The plan in a study's folder, if it was made from `wanted` and every file of it is there."""
    paths = StudyPaths(folder)
    content = json_object(paths.plan)
    if content.get("made_from") != wanted:
        return None
    try:
        points = {name: Allocation(**facts) for name, facts in content["points"].items()}
        probe = None if content["probe"] is None else Allocation(**content["probe"])
        plan = PlanFile(**{**content, "points": points, "probe": probe})
        present = set(os.listdir(paths.points))  # noqa: PTH208 (names of thousands of files)
    except (OSError, KeyError, TypeError, AttributeError):  # none of ours
        return None
    whole = all(digest_of(folder / name) == digest for name, digest in plan.files.items())
    return plan if whole and present >= {paths.point(name).name for name in plan.points} else None


def chooses_elsewhere(paths: StudyPaths) -> bool:
    """Whether the plan that was made last lets points of slow nodes run once more elsewhere."""
    return bool(json_object(paths.plan).get("elsewhere"))


def json_object(path: Path) -> dict[str, Any]:
    """The keys and values of a JSON file; none where it is not there, or holds something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def current_plan(study: str, *, mode: str | None = None, cluster: str | None = None) -> PlanFile:
    """The plan of a study as its files say now; `scaling plan` makes it anew where it does not fit.

    Raises:
        InputError: there is no such study, or something in it is wrong.
    """
    path = study_path(study)
    folder = RESULTS / path.stem
    for _ in range(_TRIES):
        wanted = made_from(path, CONFIG, mode=mode, cluster=cluster)
        plan = read_plan(folder, wanted)
        if plan is not None:
            return plan
        options = {"--mode": mode, "--cluster": cluster}
        words = [word for pair in options.items() if pair[1] is not None for word in pair]
        # a process of its own: what plans is heavy, and most parses need none of it
        planned = subprocess.run(
            [sys.executable, "-m", "scaling", "plan", *map(str, words), "--", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if planned.returncode:
            raise InputError(planned.stderr.strip())
    raise InputError(f"{path}: changed again and again while it was planned; try once more")
