"""Load a study with its models and clusters from YAML files, each checked against its schema.

Only the YAML that a study needs: mappings, lists, and scalars as in YAML 1.2. Words that YAML 1.1
would silently convert (`yes` to true, `010` to 8, `1:30` to 90) stays text here, and is refused
where a number or a flag is expected. Every mistake becomes one sentence (`InputError`) with the
file, the key, the value and what would be right.
"""

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import TypeAdapter, ValidationError
from yaml.constructor import ConstructorError

from scaling.cluster.hardware import GB_PER_S, GBIT_PER_S, Cluster, Slurm
from scaling.errors import InputError, did_you_mean
from scaling.layout.axes import DEFAULTS
from scaling.layout.shapes import ModelShape
from scaling.study.catalogues import ClusterEntry, ModelEntry
from scaling.study.config_json import ConfigModel, model_named
from scaling.study.inputs import study_path
from scaling.study.paths import CONFIG
from scaling.study.problems import SAFE, first_problem, quoted
from scaling.study.schema import Block, Mode, Name, StudyFile
from scaling.study.study import Study, check, on_one_cluster

T = TypeVar("T")

MAX_BYTES = 250_000

# Plain scalars: type -> regular expression, and the characters that one can start with.
_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    "float": (
        r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}


def load_study(
    study: str | Path,
    config: Path = CONFIG,
    *,
    mode: str | None = None,
    cluster: str | None = None,
    model: str | None = None,
) -> Study:
    """The study of that name in `config/studies`, or in that YAML file.

    `mode`, `cluster` and `model` replace those of the file. With `cluster`, blocks of `layouts` for
    other GPUs are dropped, unless that would drop all.
    """
    path = study_path(study, config)
    if not re.fullmatch(SAFE, path.stem):
        raise InputError(
            f"{path}: the file name {path.stem!r} names the study and its results, so it must be "
            "letters, digits, '_', '-' and '.' only, at most 64"
        )
    clusters = load_clusters(config / "clusters.yaml")
    models = load_models(config / "models.yaml")
    file = load_yaml(path, StudyFile)
    axes = {name: (default,) for name, default in DEFAULTS.items()} | file.axes.stated()
    layouts = tuple(block.stated() for block in file.layouts)
    if cluster is not None:
        axes, layouts = on_one_cluster(axes, layouts, cluster, clusters)
    if model is not None:
        axes, layouts = (
            axes | {"model": (model,)},
            tuple({key: block[key] for key in block if key != "model"} for block in layouts),
        )
    beside, said = (path.parent, f"{path}: model") if model is None else (Path(), "--model")
    (axes, *rest), models, model_files = _with_config_files((axes, *layouts), models, beside, said)
    layouts = tuple(rest)
    if mode is not None and mode not in get_args(Mode):
        raise InputError(f"mode={mode!r}: {did_you_mean(mode, get_args(Mode))}")
    keys = {name: getattr(file, name) for name in StudyFile.model_fields}
    keys |= {"mode": mode or file.mode, "axes": axes, "layouts": layouts}
    keys |= {"models": models, "model_files": model_files, "clusters": clusters}
    loaded = Study(name=path.stem, path=path, **keys)
    check(loaded)
    return loaded


def _with_config_files(
    blocks: Sequence[Block], models: dict[str, ModelShape], beside: Path, said: str
) -> tuple[list[Block], dict[str, ModelShape], tuple[ConfigModel, ...]]:
    """Blocks that name every model, all models by name, and those of a config.json."""
    found: dict[str, ConfigModel] = {}
    for text in dict.fromkeys(text for block in blocks for text in block.get("model", ())):
        known = models | {one.name: one.shape for one in found.values()}
        if (read := model_named(text, known, beside, said)) is not None:
            found[text] = read
    named = [
        {
            key: tuple(dict.fromkeys(found[v].name if v in found else v for v in values))
            if key == "model"
            else values
            for key, values in block.items()
        }
        for block in blocks
    ]
    models = models | {one.name: one.shape for one in found.values()}
    return named, models, tuple(found.values())


def load_clusters(path: Path = CONFIG / "clusters.yaml") -> dict[str, Cluster]:
    """The clusters by name, in bytes and seconds."""
    clusters = {}
    for name, entry in load_yaml(path, dict[Name, ClusterEntry]).items():
        gbit, bus = entry.node_link_gbit_per_s, entry.all_reduce_gbyte_per_s or {}
        others = {"node_link_gbit_per_s", "all_reduce_gbyte_per_s", "slurm"}
        clusters[name] = Cluster(
            **entry.model_dump(exclude=others),
            node_link_bytes_per_s=gbit and gbit * GBIT_PER_S,
            bus_bytes_per_s={float(n): bus[n] * GB_PER_S for n in sorted(bus)} or None,
            slurm=Slurm(**entry.slurm.model_dump()),
        )
    return clusters


def load_models(path: Path = CONFIG / "models.yaml") -> dict[str, ModelShape]:
    """The model shapes by name, with every default filled in."""
    entries = load_yaml(path, dict[Name, ModelEntry])
    return {name: entry.shape for name, entry in entries.items()}


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML without duplicate keys."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (as in the base class)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            problem = "is written twice" if key in seen else "must be text or a whole number"
            if key in seen or type(key) not in (str, int):
                mark = key_node.start_mark
                raise ConstructorError(None, None, f"the key {quoted(key)} {problem}", mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


for _type, (_pattern, _first) in _SCALARS.items():
    _StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_type}", re.compile(f"(?:{_pattern})$"), _first
    )


def load_yaml(path: Path, schema: type[T]) -> T:
    """The content of a YAML file as an instance of `schema`."""
    content = _content(path)
    if not isinstance(content, dict):
        problem = "is empty" if content is None else f"is {quoted(content)}"
        raise InputError(f"{path}: {problem}; it must hold keys and values")
    try:
        return TypeAdapter(schema).validate_python(content)
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error, schema)}") from None


def _content(path: Path) -> object:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        found = path.absolute().parent.is_dir()
        hint = "" if found else "; `scaling new FOLDER` makes a folder to run studies in"
        raise InputError(f"{path}: no such file{hint}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path}: has more than {MAX_BYTES:,} bytes, which no study needs")
    try:
        return yaml.load(raw.decode("utf-8"), Loader=_StrictLoader)  # a SafeLoader
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise InputError(f"{path}: {where}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
