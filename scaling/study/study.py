"""A study file, the models and the clusters it names, and study.json, which its folder says of it.

Whatever is wrong with a file becomes one sentence (`InputError`) that names the file, the key, the
value and what would be right.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scaling.cluster.hardware import GPUS, Cluster
from scaling.errors import InputError, did_you_mean
from scaling.layout.axes import DEFAULTS
from scaling.layout.shapes import ModelShape
from scaling.study.catalogues import load_clusters, load_models
from scaling.study.paths import StudyPaths, local_or_shipped
from scaling.study.plan_file import CONFIG, study_path
from scaling.study.point import StudyKind
from scaling.study.schema import GUIDES, Axes, Measure, Mode, Name, Probing, Reporting, StudyFile
from scaling.study.yaml_files import SAFE, first_problem, load_yaml

SAFE_NAME = re.compile(SAFE)

# What an axis means when neither `axes` nor the block says anything.
AXIS_DEFAULTS: dict[str, tuple[Any, ...]] = {name: (default,) for name, default in DEFAULTS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A checked study: the question, with every model and cluster it names."""

    name: str
    path: Path
    title: str
    kind: StudyKind
    mode: Mode
    axes: dict[str, tuple[Any, ...]]  # defaults and the file's `axes`
    layouts: tuple[dict[str, tuple[Any, ...]], ...]  # blocks that override them
    measure: Measure
    probe: Probing
    report: Reporting
    max_points: int
    replicates: str | None  # a folder of reports/replication
    models: dict[str, ModelShape]
    clusters: dict[str, Cluster]

    @property
    def predictable(self) -> bool:
        """Whether it is about GPUs with data sheets, not about ranks that share a CPU."""
        return all(GPUS[self.clusters[name].gpu].memory_bytes is not None for name in self.used)

    @property
    def used(self) -> list[str]:
        """The clusters that its blocks name."""
        blocks = ({**self.axes, **block} for block in self.layouts)
        return sorted({name for block in blocks for name in block["cluster"]})


def load_study(
    study: str | Path,
    config: Path = CONFIG,
    *,
    mode: str | None = None,
    cluster: str | None = None,
) -> Study:
    """The study of that name in `config/studies`, or in that YAML file.

    `mode` and `cluster` stand instead of the file's. Blocks of `layouts` that are about other GPUs
    than the cluster's are left out, unless all are.

    Raises:
        InputError: there is no such study, or something in it is wrong.
    """
    path = study_path(study, config)
    if not SAFE_NAME.fullmatch(path.stem):
        raise InputError(
            f"{path}: the file name {path.stem!r} names the study and its results, so it must be "
            "letters, digits, '_', '-' and '.' only, at most 64"
        )
    file = load_yaml(path, StudyFile)
    clusters = load_clusters(config / "clusters.yaml")
    models = load_models(config / "models.yaml")
    axes = {**AXIS_DEFAULTS, **_stated(file.axes)}
    layouts = tuple(map(_stated, file.layouts))
    if cluster is not None:
        axes, layouts = _on_one_cluster(axes, layouts, cluster, clusters)
    if mode is not None and mode not in get_args(Mode):
        raise InputError(f"mode={mode!r}: {did_you_mean(mode, get_args(Mode))}")
    keys = {name: getattr(file, name) for name in StudyFile.model_fields}
    keys |= {"mode": mode or file.mode, "axes": axes, "layouts": layouts}
    loaded = Study(name=path.stem, path=path, models=models, clusters=clusters, **keys)
    _check_axes(loaded)
    return loaded


def _stated(block: Axes) -> "Block":
    """The axes that somebody wrote down, each value once."""
    names = sorted(block.model_fields_set)
    return {name: tuple(dict.fromkeys(getattr(block, name))) for name in names}


Block = dict[str, tuple[Any, ...]]


def _on_one_cluster(
    axes: Block, layouts: tuple[Block, ...], cluster: str, clusters: dict[str, Cluster]
) -> tuple[Block, tuple[Block, ...]]:
    if cluster not in clusters:
        raise InputError(f"cluster={cluster!r}: unknown cluster: {did_you_mean(cluster, clusters)}")

    def has_gpu_of_cluster(block: Block) -> bool:
        names = {**axes, **block}.get("cluster", ())
        gpus = {clusters[name].gpu for name in names if name in clusters}
        return not gpus or clusters[cluster].gpu in gpus

    kept = [block for block in layouts if has_gpu_of_cluster(block)] or layouts
    placed = [{k: v for k, v in block.items() if k != "cluster"} for block in kept]
    return {**axes, "cluster": (cluster,)}, tuple(placed)


def replication_queries(study: Study, reports: Path | None = None) -> list[Path]:
    """The findings a study asks about again: SQL files of reports/replication/<replicates>.

    Raises:
        InputError: there is no such folder.
    """
    if study.replicates is None:
        return []
    reports = reports or local_or_shipped("reports")
    folders = sorted(path.name for path in (reports / "replication").glob("*") if path.is_dir())
    if study.replicates not in folders:
        raise InputError(
            f"{study.path}: replicates={study.replicates!r}: no such folder in "
            f"{reports / 'replication'}: {did_you_mean(study.replicates, folders)}"
        )
    return sorted((reports / "replication" / study.replicates).glob("*.sql"))


def _check_axes(study: Study) -> None:
    def wrong(key: str, problem: str) -> InputError:
        return InputError(f"{study.path}: {key}{problem}")

    batches = ("global_batch_size", "batch_size_per_gpu")
    batch, other = batches if study.kind == "strong" else batches[::-1]
    for index, block in enumerate(study.layouts):
        axes = {**study.axes, **block}
        here = f"layouts[{index}]"
        places = {key: here if key in block else "axes" for key in axes}
        if other in axes:
            fixes = f"={list(axes[other])}: kind: {study.kind} fixes {batch} instead"
            raise wrong(f"{places[other]}.{other}", fixes)
        for name in ("model", "cluster", "world_size", "seq_length", batch):
            if name not in axes:
                raise wrong(
                    f"axes.{name}",
                    f": is missing, and {here} does not give it either; a study needs one value "
                    "or a list",
                )
        for key, entries in (("model", study.models), ("cluster", study.clusters)):
            for value in axes[key]:
                if value not in entries:
                    hint = f": unknown {key} {value!r}: {did_you_mean(value, entries)}"
                    raise wrong(f"{places[key]}.{key}", hint)
    if study.mode == "predict":
        return
    if len(study.used) > 1:
        raise wrong(
            f"axes.cluster={study.used}",
            ": a study with mode: measure runs on one cluster; write one study file for each",
        )
    (name,) = study.used
    cluster, measure = study.clusters[name], study.measure
    if measure.budget_usd is not None and cluster.usd_per_gpu_hour is None:
        raise wrong(
            f"measure.budget_usd={measure.budget_usd:g}",
            f": cluster {name} has no usd_per_gpu_hour in clusters.yaml; give it one, or "
            "budget_gpu_hours",
        )
    for key in () if study.predictable else GUIDES:
        if (value := getattr(measure, key)) is not None:
            raise wrong(
                f"measure.{key}={value:g}",
                ": the predictions it goes by need a GPU's data sheet, and cluster "
                f"{name} has gpu: {cluster.gpu}",
            )


class StudyInfo(BaseModel):
    """study.json; what is missing was written before it was known, or by an import."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    title: str | None = None
    file: str | None = None  # the study's YAML, from the checkout where it lies in it
    mode: Mode = "measure"
    replicates: Name | None = None
    knee_share: Annotated[float, Field(strict=True, gt=0, le=1)] = Reporting().knee_share


def study_info_json(study: Study) -> str:
    """The text of study.json: what its tables and its report are to know of it."""
    facts = StudyInfo(
        title=study.title,
        file=_from_here(study.path),
        mode=study.mode,
        replicates=study.replicates,
        knee_share=study.report.knee_share,
    )
    return facts.model_dump_json(indent=1) + "\n"


def read_study_info(folder: Path) -> StudyInfo:
    """What study.json says; the defaults where there is none.

    Raises:
        InputError: it is none that `scaling plan` wrote.
    """
    path = StudyPaths(folder).study
    try:
        return StudyInfo.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return StudyInfo()
    except ValidationError as error:
        reason = first_problem(error, StudyInfo)
        raise InputError(f"{path}: is not what `scaling plan` writes: {reason}") from None


def study_folder(study: Study, results: Path) -> Path:
    """The study's folder. Two study files of one name would take each other's points for theirs.

    A file that has been moved is the same study; so is any where the folder does not say.

    Raises:
        InputError: the folder belongs to another study file, which is still there.
    """
    folder, path = results / study.name, study.path
    try:
        owner = read_study_info(folder).file
    except InputError:  # a broken one is written anew
        return folder
    if owner is not None and owner != _from_here(path) and Path(owner).is_file():
        raise InputError(
            f"{folder}: holds the study {owner}, not {path}: give one of the files another name, "
            f"or move {folder} away"
        )
    return folder


def _from_here(path: Path) -> str:
    """The path from the checkout where it lies in it, so that both can be moved together."""
    whole, here = path.resolve(), Path.cwd().resolve()
    return os.path.relpath(whole, here) if whole.is_relative_to(here) else str(whole)
