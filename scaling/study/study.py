"""A study, and what must hold of it, of its folder and of study.json."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scaling.cluster.hardware import GPUS, Cluster
from scaling.errors import InputError, did_you_mean
from scaling.layout.engines import ENGINES, programs
from scaling.layout.shapes import ModelShape
from scaling.study.config_json import ConfigModel
from scaling.study.inputs import local_or_shipped
from scaling.study.paths import StudyPaths
from scaling.study.point import StudyKind
from scaling.study.problems import first_problem, quoted
from scaling.study.schema import Block, Measure, Mode, Name, Probing, Reporting


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A checked study, with all models and clusters of the configuration."""

    name: str
    path: Path
    title: str
    kind: StudyKind
    mode: Mode
    axes: Block  # defaults and the file's `axes`
    layouts: tuple[Block, ...]  # each overrides `axes`
    measure: Measure
    probe: Probing
    report: Reporting
    max_points: int
    replicates: str | None  # a folder of reports/replication
    models: dict[str, ModelShape]
    clusters: dict[str, Cluster]
    model_files: tuple[ConfigModel, ...] = ()  # models by a config.json

    @property
    def is_predictable(self) -> bool:
        """Whether all its clusters have GPUs with a data sheet, not ranks that share a CPU."""
        used = (self.clusters[name] for name in self.cluster_names)
        return all(GPUS[cluster.gpu].memory_bytes is not None for cluster in used)

    @property
    def cluster_names(self) -> list[str]:
        """The clusters that its blocks name."""
        blocks = ({**self.axes, **block} for block in self.layouts)
        return sorted({name for block in blocks for name in block["cluster"]})


def on_one_cluster(
    axes: Block, layouts: tuple[Block, ...], cluster: str, clusters: dict[str, Cluster]
) -> tuple[Block, tuple[Block, ...]]:
    """Axes and blocks on this cluster; blocks for other GPUs are dropped, unless all are."""
    if cluster not in clusters:
        raise InputError(f"cluster={cluster!r}: unknown cluster: {did_you_mean(cluster, clusters)}")

    def has_gpu_of_cluster(block: Block) -> bool:
        names = {**axes, **block}.get("cluster", ())
        gpus = {clusters[name].gpu for name in names if name in clusters}
        return not gpus or clusters[cluster].gpu in gpus

    kept = [block for block in layouts if has_gpu_of_cluster(block)] or layouts
    without_cluster = [{k: v for k, v in block.items() if k != "cluster"} for block in kept]
    return {**axes, "cluster": (cluster,)}, tuple(without_cluster)


def check(study: Study) -> None:
    """Check that every block states what it needs, and only what there is."""

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
        others = any(value not in ENGINES for value in axes["engine"])
        known: dict[str, Collection[str]] = {"model": study.models, "cluster": study.clusters}
        for key, entries in {**known, "engine": programs() if others else ENGINES}.items():
            for value in axes[key]:
                if value not in entries:
                    hint = f": unknown {key} {quoted(value)}: {did_you_mean(value, entries)}"
                    raise wrong(f"{places[key]}.{key}", hint)
    names, measure = study.cluster_names, study.measure
    if study.mode == "predict":
        return
    if len(names) > 1:
        raise wrong(
            f"axes.cluster={names}",
            ": a study with mode: measure runs on one cluster; write one study file for each",
        )
    if measure.is_guided and not study.is_predictable:
        key = "budget_gpu_hours" if measure.budget_gpu_hours else "guided"
        raise wrong(
            f"measure.{key}={getattr(measure, key)}",
            ": the predictions it goes by need a GPU's data sheet, and cluster "
            f"{names[0]} has gpu: {study.clusters[names[0]].gpu}",
        )


def replication_queries(study: Study, reports: Path | None = None) -> list[Path]:
    """The SQL files of reports/replication/<replicates>, one per finding that is replicated."""
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


class StudyInfo(BaseModel):
    """study.json. Imports and older versions leave some of it out."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    title: str | None = None
    file: str | None = None  # the study's YAML, relative to the checkout if it lies there
    mode: Mode = "measure"
    replicates: Name | None = None
    knee_share: Annotated[float, Field(strict=True, gt=0, le=1)] = Reporting().knee_share


def study_info_json(study: Study) -> str:
    """The content of study.json: what tables and report need to know of the study."""
    info = StudyInfo(
        title=study.title,
        file=_relative_to_cwd(study.path),
        mode=study.mode,
        replicates=study.replicates,
        knee_share=study.report.knee_share,
    )
    return info.model_dump_json(indent=1) + "\n"


def read_study_info(folder: Path) -> StudyInfo:
    """The content of study.json; defaults without one."""
    path = StudyPaths(folder).study
    try:
        return StudyInfo.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return StudyInfo()
    except ValidationError as error:
        reason = first_problem(error, StudyInfo)
        raise InputError(
            f"{path}: is not what `scaling plan` writes: {reason}; `scaling plan` mends it"
        ) from None


def study_folder(study: Study, results: Path) -> Path:
    """The study's folder in `results`.

    Two study files of one name would mix up their points. A folder that names no file, or one that
    no longer exists (it was moved), is taken as the study's own.
    """
    folder, path = results / study.name, study.path
    try:
        owner = read_study_info(folder).file
    except InputError:  # a broken study.json will be overwritten
        return folder
    if owner is not None and owner != _relative_to_cwd(path) and Path(owner).is_file():
        raise InputError(
            f"{folder}: holds the study {owner}, not {path}: give one of the files another name, "
            f"or move {folder} away"
        )
    return folder


def _relative_to_cwd(path: Path) -> str:
    """Relative to the current folder if it lies there, so that both can be moved together."""
    absolute, cwd = path.resolve(), Path.cwd().resolve()
    return str(absolute.relative_to(cwd)) if absolute.is_relative_to(cwd) else str(absolute)
