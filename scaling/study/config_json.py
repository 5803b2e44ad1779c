"""The shape of a model by its Hugging Face config.json; no network, no transformers.

A family is a table: which key holds which field of a model. A family, or a key, that changes the
number of weights in a way that `ModelShape` does not count is refused.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scaling.errors import InputError, shortened
from scaling.layout.shapes import ModelShape
from scaling.study.catalogues import ModelEntry
from scaling.study.families import (
    DENSE,
    FAMILIES,
    ONLY,
    REFUSED_FAMILIES,
    REFUSED_KEYS,
    Config,
    WrongKey,
    value_of,
)
from scaling.study.problems import SAFE, first_problem, quoted

MAX_BYTES = 2_000_000
FILE = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigModel:
    """A model as its config.json describes it, and what of it is not counted."""

    path: Path
    name: str
    shape: ModelShape
    left_out: tuple[str, ...]


def model_named(
    text: str, models: Mapping[str, ModelShape], beside: Path, said: str = "--model"
) -> ConfigModel | None:
    """The model of a config.json that a text means; None if it means none.

    Args:
        text: a name of `models`, the path of a config.json or its folder, or a cached hub name.
        models: the site's models, which come first.
        beside: paths are relative to this folder.
        said: the option or key that gave the text.

    Raises:
        InputError: it means a file that cannot be counted, or whose name is that of another model.
    """
    path = None if text in models else config_path(text, beside)
    if path is None:
        if text not in models and ("/" in text or text.endswith(".json")):
            raise InputError(
                f"{said}={shortened(text)}: there is no {FILE}, no folder with one, and no such "
                "name in the local hub cache"
            )
        return None
    found = read_config(path)
    if models.get(found.name, found.shape) != found.shape:
        raise InputError(
            f"{path}: its model is called {found.name}, as another one; give it a key `name`"
        )
    return found


def config_path(text: str, beside: Path) -> Path | None:
    """The config.json that a text means: a file, a folder that holds one, or a cached hub name."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    hub = os.environ.get("HF_HUB_CACHE") or f"{home}/hub"
    try:
        path = beside / Path(text).expanduser()
        if (path := path / FILE if path.is_dir() else path).is_file():
            return path
        cached = Path(hub).expanduser() / ("models--" + text.replace("/", "--"))
        main = cached / "refs" / "main"
        revision = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
        snapshots = sorted(cached.glob(f"snapshots/*/{FILE}"))
        snapshots.sort(key=lambda file: file.parent.name != revision)
        return snapshots[0] if snapshots else None
    except (OSError, ValueError, RuntimeError):  # no name of a file at all, or no home
        return None


def read_config(path: Path) -> ConfigModel:
    """The model of a config.json.

    Raises:
        InputError: it cannot be read, or holds something that is not counted.
    """
    whole = _object(path)
    part, place = whole.get("text_config"), "text_config."
    if not isinstance(part, dict):
        part, place = {}, ""
    config = whole | {key: value for key, value in part.items() if value is not None}
    try:
        for model_type in (whole.get("model_type"), config.get("model_type")):
            _refuse_family(str(model_type))
        sizes, family = _sizes(config), config["model_type"]
    except WrongKey as error:
        stated = f"={quoted(config[error.key])}" if config.get(error.key) is not None else ""
        inside = place if error.key in part else ""
        raise InputError(f"{path}: {inside}{error.key}{stated}: {error.problem}") from None
    try:
        shape = ModelEntry(**sizes, source=FILE).shape
    except ValidationError as error:
        problem = first_problem(error, ModelEntry).removeprefix("the file: ")
        raise InputError(f"{path}: {_by_their_keys(problem, family)}") from None
    towers = [
        f"{key}: only the text part is counted"
        for key, value in whole.items()
        if part and key.endswith("_config") and isinstance(value, dict)
        if key not in ("text_config", "quantization_config")
    ]
    return ConfigModel(
        path=path,
        name=_name(config, shape.total_params),
        shape=shape,
        left_out=(*towers, *_left_out(config)),
    )


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path}: has more than {MAX_BYTES:,} bytes, which no {FILE} needs")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {shortened(error, 100)}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: is {quoted(content)}; it must hold keys and values")
    return content


def _refuse_family(model_type: str) -> None:
    for pattern, what in REFUSED_FAMILIES.items():
        if re.match(pattern, model_type):
            raise WrongKey("model_type", f"{what}, which cannot be counted here")


def _sizes(config: Config) -> dict[str, Any]:
    """The fields of a ModelEntry that the family's table finds."""
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise WrongKey("model_type", f"no family that can be counted: {', '.join(FAMILIES)}")
    for key, what in REFUSED_KEYS.items():
        if config.get(key):
            raise WrongKey(key, f"{what}, which cannot be counted here")
    for key, only in ONLY.get(family, {}).items():
        if config.get(key) not in (None, only):
            raise WrongKey(key, f"only {json.dumps(only)} can be counted here")
    sizes = {field: value_of(config, source) for field, source in FAMILIES[family].items()}
    if not sizes.get("windowed_layers"):
        sizes |= {"window": None, "windowed_layers": None}
    return {field: value for field, value in sizes.items() if value is not None}


def _by_their_keys(problem: str, family: str) -> str:
    """A sentence about fields of ours that says their keys."""
    for field, source in FAMILIES[family].items():
        if isinstance(source, str | tuple):
            key = source if isinstance(source, str) else source[0]
            problem = re.sub(rf"\b{field}=", f"{key}=", problem)
    return problem


def _name(config: Config, total_params: int) -> str:
    """A name for people and ids; it depends on the content only, never on the path."""
    for key in ("name", "_name_or_path"):
        stated = config.get(key)
        last = stated.rstrip("/").rpartition("/")[2] if isinstance(stated, str) else ""
        clean = re.sub(r"[^A-Za-z0-9_.-]+", "-", last).lstrip("-._")[:64]
        if re.fullmatch(SAFE, clean):
            return clean
    size = f"{total_params / 1e9:.4g}b" if total_params >= 1e9 else f"{total_params / 1e6:.4g}m"
    return f"{config['model_type']}-{size}"


def _left_out(config: Config) -> Iterator[str]:
    for key in ("num_nextn_predict_layers", "num_mtp_modules"):
        if config.get(key) and config.get("use_mtp", True):
            yield f"{key}={config[key]}: the heads that predict further tokens"
    if config["model_type"] == "llama4_text" and (chunk := config.get("attention_chunk_size")):
        yield f"attention_chunk_size={chunk}: here all layers attend to all tokens"
    dense = DENSE[config["model_type"]](config) if config["model_type"] in DENSE else []
    if dense != list(range(len(dense))):
        yield f"the place of {len(dense)} dense layers between others: here they are the first"
