"""The inputs of a plan: the study's YAML file, the configuration, and our own code.

Snakemake imports this on every parse, so it needs the standard library only.
"""

import difflib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from scaling.errors import InputError, did_you_mean
from scaling.study.paths import CONFIG, SHIPPED

_YAML = (".yaml", ".yml")
_CONFIG_KEYS = ("study", "mode", "cluster", "implied")
_PACKAGE = Path(__file__).parents[1]
_PLANNING = ("layout", "cluster", "study", "trainers", "run", "predict")  # packages that make plans


def local_or_shipped(path: str | Path) -> Path:
    """The path itself if it exists in the current folder or nowhere, else the one that ships."""
    path = Path(path)
    return path if path.exists() or not (SHIPPED / path).exists() else SHIPPED / path


def study_path(study: str | Path, config: Path = CONFIG) -> Path:
    """The study's YAML file: a path that ends in .yaml, or a name in `config`/studies.

    A name that is not there may be that of a study that ships with us.
    """
    studies, path = config / "studies", Path(study)
    try:
        if path.suffix not in _YAML:
            path = local_or_shipped(studies / f"{study}.yaml")
        exists = path.is_file()
    except OSError:  # a name longer than any file system allows
        exists = False
    if not exists:
        folders = {studies, SHIPPED / studies}
        files = [file for folder in folders for file in folder.glob("*.yaml")]
        names = {file.stem for file in files if file.is_file()}
        where = "" if studies.is_dir() else f" ({Path.cwd()} has no {studies})"
        raise InputError(f"{path}: no such study{where}: {did_you_mean(study_name(study), names)}")
    return path


def study_name(study: str | Path) -> str:
    """The name of a study that is given by its name or by the path of its YAML file."""
    path = Path(study)
    return path.stem if path.suffix in _YAML else path.name


def asked_of(config: Mapping[str, object]) -> tuple[str, dict[str, str], bool]:
    """The study that Snakemake's --config names, what overrides it, and whether `implied` holds."""
    for key in sorted(map(str, config)):
        near = difflib.get_close_matches(key.lower(), _CONFIG_KEYS, n=1) or "study" not in config
        if near and key not in _CONFIG_KEYS:  # else it is of a workflow that ours is a module of
            raise InputError(f"--config {key}=: {did_you_mean(key, _CONFIG_KEYS)}")
    implied = str(config.get("implied", True)).lower()
    if implied not in ("true", "false"):
        raise InputError(f"--config implied={implied}: must be true or false")
    overrides = {key: str(config[key]) for key in ("mode", "cluster") if key in config}
    return str(config.get("study", "quickstart")), overrides, implied == "true"


def inputs_digest(path: Path, config: Path, *, mode: str | None, cluster: str | None) -> str:
    """Digest of everything that a plan depends on: input files, options, and our own code.

    Files count by content, not by time, so a plan is stale only if a new one could differ.
    """
    files = [path, *(config / f"{name}.yaml" for name in ("models", "clusters", "trainers"))]
    files.append(SHIPPED / CONFIG / "trainers.yaml")
    for package in _PLANNING:
        files += sorted((_PACKAGE / package).rglob("*.py"))
    files += [_PACKAGE / name for name in ("cluster/gpus.yaml", "study/families.yaml")]
    files.append(_PACKAGE / "probe" / "plan.py")
    inputs = [str(path), mode, cluster, *(digest_of(file) for file in files)]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def digest_of(path: Path) -> str | None:
    """SHA-256 of a file's content; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
