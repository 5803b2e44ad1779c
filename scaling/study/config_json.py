"""The shape of a model by its Hugging Face config.json; no network, no transformers.

A family is a table: which key holds which field of a model. A family, or a key, that changes the
number of weights in a way that `ModelShape` does not count is refused.
"""

import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from scaling.errors import InputError, shortened
from scaling.layout.shapes import ModelShape
from scaling.study.catalogues import ModelEntry
from scaling.study.problems import SAFE, first_problem, quoted

MAX_BYTES = 2_000_000
FILE = "config.json"
Config = Mapping[str, Any]


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
    """The model of a config.json."""
    whole = _object(path)
    part, place = whole.get("text_config"), "text_config."
    if not isinstance(part, dict):
        part, place = {}, ""
    config = whole | {k: v for k, v in part.items() if v is not None or k not in whole}
    try:
        for model_type in (whole.get("model_type"), config.get("model_type")):
            for pattern, what in catalogue()["refused_families"].items():
                if re.match(pattern, str(model_type)):
                    raise WrongKey("model_type", f"{what}, which cannot be counted here")
        sizes, family = _sizes_of(config), config["model_type"]
    except WrongKey as error:
        stated = f"={quoted(config[error.key])}" if config.get(error.key) is not None else ""
        inside = "" if error.key in whole and error.key not in part else place
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
    table = catalogue()["families"][config["model_type"]]
    dense = _dense_layers(config) if table.get("dense_layers") == {"by": "dense_layers"} else []
    if dense != list(range(len(dense))):
        yield f"the place of {len(dense)} dense layers between others: here they are the first"


class WrongKey(Exception):
    """A key whose value cannot be read, and why."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key, self.problem = key, problem


@functools.cache
def catalogue() -> dict[str, Any]:
    """The content of families.yaml."""
    loaded: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_name("families.yaml").read_text(encoding="utf-8")
    )
    return loaded


def _sizes_of(config: Config) -> dict[str, Any]:
    """The fields of a ModelEntry that the family's table finds.

    Raises:
        WrongKey: a key is missing, cannot be read, or says something that is not counted.
    """
    family, known = config.get("model_type"), catalogue()
    if not isinstance(family, str) or family not in known["families"]:
        what = "is missing" if family is None else "cannot be counted"
        raise WrongKey("model_type", f"{what}; the families are {', '.join(known['families'])}")
    for key, what in known["refused_keys"].items():
        if config.get(key):
            raise WrongKey(key, f"{what}, which cannot be counted here")
    for key, only in known["only"].get(family, {}).items():
        if config.get(key) not in (None, only):
            raise WrongKey(key, f"only {json.dumps(only)} can be counted here")
    table = known["families"][family]
    sizes = {field: _value(config, source) for field, source in table.items()}
    if not sizes.get("windowed_layers"):
        sizes |= {"window": None, "windowed_layers": None}
    return {field: value for field, value in sizes.items() if value is not None}


def _by_their_keys(problem: str, family: str) -> str:
    """A sentence about fields of ours that says their keys."""
    for field, source in catalogue()["families"][family].items():
        if isinstance(source, str | list):
            key = source if isinstance(source, str) else source[0]
            problem = re.sub(rf"\b{field}=", f"{key}=", problem)
    return problem


def _value(config: Config, source: Any) -> Any:
    """The value of a field, None if its key is missing and has no default."""
    if isinstance(source, dict):
        return source["is"] if "is" in source else _COMPUTED[source["by"]](config)
    if source is None:
        return None
    key, default = (source, None) if isinstance(source, str) else source
    value = config.get(key)
    if value is None and isinstance(source, str):
        raise WrongKey(key, "is missing")
    return default if value is None else value


def _count(config: Config, key: str, default: int | None = None, most: int = 10_000) -> int:
    value = _value(config, key if default is None else [key, default])
    if type(value) is not int or not 0 <= value <= most:
        raise WrongKey(key, f"must be a whole number up to {most:,}")
    return value


def _numbers(config: Config, key: str) -> list[int] | None:
    value = config.get(key)
    if value is not None and not (isinstance(value, list) and all(type(n) is int for n in value)):
        raise WrongKey(key, "must be a list of whole numbers")
    return value


def _windowed(config: Config, default: Callable[[int], int], switch: str | None = None) -> int:
    """The layers that see a window: those of `layer_types`, else `default` of them."""
    layers, kinds = _count(config, "num_hidden_layers"), config.get("layer_types")
    if kinds is not None and not (isinstance(kinds, list) and len(kinds) == layers):
        raise WrongKey("layer_types", f"must be a list of {layers} kinds, one a layer")
    for kind in kinds or ():
        if kind not in ("full_attention", "sliding_attention"):
            raise WrongKey("layer_types", f"{quoted(kind)} cannot be counted here")
    if not config.get("sliding_window") or (switch and not config.get(switch)):
        return 0
    return default(layers) if kinds is None else kinds.count("sliding_attention")


def _last_windowed(config: Config) -> int:
    def default(layers: int) -> int:
        return max(layers - _count(config, "max_window_layers", layers), 0)

    return _windowed(config, default, "use_sliding_window")


def _dense_layers(config: Config) -> list[int]:
    """The layers without experts, of a family in which these need not be the first."""
    layers = range(_count(config, "num_hidden_layers"))
    if config["model_type"] == "llama4_text":
        every = _count(config, "interleave_moe_layer_step", 1)
        mixed = _numbers(config, "moe_layers")
        return [n for n in layers if ((n + 1) % max(every, 1) if mixed is None else n not in mixed)]
    every, named = _count(config, "decoder_sparse_step", 1), _numbers(config, "mlp_only_layers")
    return [n for n in layers if n in (named or ()) or (n + 1) % max(every, 1)]


def _unprojected_width(config: Config) -> int:
    width = _count(config, "hidden_size", most=10**6)
    if config.get("word_embed_proj_dim") not in (None, width):
        raise WrongKey("word_embed_proj_dim", f"only hidden_size={width} can be counted here")
    return width


def _width_of_gpt2(config: Config) -> int:
    return _count(config, "n_inner", 4 * _count(config, "n_embd", most=10**6), most=10**7)


def _is_gated(config: Config) -> bool:
    default = {"t5": "relu", "mt5": "gated-gelu"}[config["model_type"]]
    return str(_value(config, ["feed_forward_proj", default])).startswith("gated-")


def _query_rank(config: Config) -> Any:
    """0 for a null, which is one matrix for the query."""
    if "q_lora_rank" not in config:
        raise WrongKey("q_lora_rank", "is missing")
    return _value(config, ["q_lora_rank", 0])


_COMPUTED: dict[str, Callable[[Config], Any]] = {
    "all_windowed": lambda config: _windowed(config, lambda layers: layers),
    "half_windowed": lambda config: _windowed(config, lambda layers: (layers + 1) // 2),
    "last_windowed": _last_windowed,
    "dense_layers": lambda config: len(_dense_layers(config)),
    "number_of_experts": lambda config: _value(
        config, "num_local_experts" if config.get("num_experts") is None else "num_experts"
    ),
    "balances_by_bias": lambda config: config.get("topk_method") == "noaux_tc",
    "width_of_gpt2": _width_of_gpt2,
    "unprojected_width": _unprojected_width,
    # its look-up is shifted by two
    "positions_of_opt": lambda config: _count(config, "max_position_embeddings", most=10**6) + 2,
    "layers_of_t5": lambda config: _value(config, ["num_decoder_layers", config.get("num_layers")]),
    "is_gated": _is_gated,
    "query_rank": _query_rank,
}
