"""The entries of config/trainers.yaml, checked."""

import dataclasses
import re
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from scaling.errors import InputError, did_you_mean, shortened
from scaling.layout.axes import AXES
from scaling.layout.engines import ENGINES
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.study.load import load_yaml
from scaling.study.paths import CONFIG, SHIPPED
from scaling.study.schema import File, Name

FILE = "trainers.yaml"
PLACEHOLDER = re.compile(r"\{(\w+)\}")
# The names of a template besides the fields of the layout and of the model's shape.
DERIVED = (
    "world_size", "global_batch_size", "gpus_per_node", "nodes", "steps", "seed", "files",
    "tokens_per_micro_batch", "tokens_per_step", "expert_layers", "shared_ffn_hidden_size",
)  # fmt: skip
FIELDS = {field.name: field for kind in (Layout, ModelShape) for field in dataclasses.fields(kind)}
NAMES = {*FIELDS, *DERIVED}
_IMPLIED = {"engine", "dp", "gradient_accumulation_steps"}

# The values in one line of a step. Rates are per GPU unless they say `all`.
Quantity = Literal[
    "step", "seconds", "ms", "tokens_per_s_per_gpu", "tokens_per_s_all", "samples_per_s_all",
    "loss", "grad_norm", "skipped", "peak_gib", "peak_mib", "peak_gb",
]  # fmt: skip


def _pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return pattern


def _one_group(pattern: str) -> str:
    if (groups := re.compile(pattern).groups) != 1:
        raise ValueError(f"{pattern!r} has {groups} groups; it needs one, around the value")
    return pattern


def _template(text: str) -> str:
    for name in PLACEHOLDER.findall(text):
        if name not in NAMES:
            raise ValueError(f"{text!r}: {name!r} is no axis or size: {did_you_mean(name, NAMES)}")
    return text


Text = Annotated[str, Field(strict=True), AfterValidator(_pattern)]
Value = Annotated[Text, AfterValidator(_one_group)]
Template = Annotated[str, Field(strict=True), AfterValidator(_template)]
Words = tuple[Template, ...]


def _tag(value: Any) -> str:
    return "[mapping]" if isinstance(value, dict) else "[list]"


ByValue = Annotated[dict[str | int, Words], Tag("[mapping]")]
Ways = Annotated[Annotated[Words, Tag("[list]")] | ByValue, Discriminator(_tag)]

Failure = Literal["oom", "kernel_unavailable", "hang", "error"]


class Reads(File):
    """Regular expressions, searched in each line of a log; each has one group, the value."""

    step: Text  # marks the line of a training step; no group is needed
    unlike: Text | None = None  # a line of this kind is no training step
    ends: Text | None = None  # how such a line ends, where a terminal may have wrapped it
    unsteady: Text | None = None  # after such a line the next step is no ordinary one
    fields: dict[Quantity, Value]
    anywhere: dict[Quantity, Value] = Field(
        default_factory=dict
    )  # on other lines too: the largest value counts
    head: dict[str, Value] = Field(
        default_factory=dict
    )  # a field of the layout or the shape -> the first value

    @model_validator(mode="after")
    def _known(self) -> "Reads":
        for name in self.head:
            if name not in NAMES:
                raise ValueError(f"head.{name}: no axis or size: {did_you_mean(name, NAMES)}")
        return self


class Trainer(File):
    """One program: the command of one rank, how it is told each axis, and what it prints."""

    source: Annotated[str, Field(strict=True, min_length=1)]
    command: Words = ()  # empty: its logs can be read, and nothing else
    flags: dict[str, Ways] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)  # why an axis cannot be said
    environment: dict[str, Template | dict[str, dict[str | int, Template]]] = Field(
        default_factory=dict
    )
    untold: str | None = None  # what of the shape the command leaves to the program
    files: dict[Name, Template] = Field(default_factory=dict)
    reads: Reads
    earlier: dict[str, Reads] = Field(default_factory=dict)  # formats of earlier releases
    fails: dict[Failure, tuple[Text, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _says_axes(self) -> "Trainer":
        by_axis = [axis for v in self.environment.values() if isinstance(v, dict) for axis in v]
        named = {"flags": [*self.flags], "reasons": [*self.reasons], "environment": by_axis}
        for key, names in named.items():
            for name in names:
                if name not in FIELDS:
                    hint = did_you_mean(name, FIELDS)
                    raise ValueError(f"{key}.{name}: no axis or size: {hint}")
        return self

    @property
    def formats(self) -> tuple[Reads, ...]:
        """How its logs are read: the newest release first."""
        return (self.reads, *self.earlier.values())

    @cached_property
    def limits(self) -> dict[str, frozenset[Any]]:
        """Each field that it cannot be told freely -> the values that it can, by `key_of`."""
        texts = (*self.command, *self.files.values())
        free = {*_IMPLIED, *(name for text in texts for name in PLACEHOLDER.findall(text))}
        free |= {name for name, ways in self.flags.items() if not isinstance(ways, dict)}
        if self.untold:
            shape = {name for name in FIELDS if name not in AXES or name == "attention"}
            free |= shape - self.flags.keys()
        return {
            name: frozenset({key_of(default_of(name)), *self.flags.get(name, ())})
            for name in FIELDS
            if name not in free
        }


def trainer_named(name: str, config: Path = CONFIG) -> Trainer:
    """The entry of that name.

    Raises:
        InputError: a file of entries is invalid, or none has such an entry.
    """
    entries = all_trainers(config)
    if name not in entries:
        hint = did_you_mean(name[:60], {*ENGINES, *entries})
        raise InputError(f"trainer {shortened(name)!r}: not in config/trainers.yaml: {hint}")
    return entries[name]


def all_trainers(config: Path = CONFIG) -> dict[str, Trainer]:
    """The entries that ship, then those of this folder, which replace one of the same name.

    Raises:
        InputError: a file of entries is invalid.
    """
    own = config / FILE
    return _merged(Path.cwd(), own, own.stat().st_mtime_ns if own.exists() else None)


@cache
def _merged(folder: Path, own: Path, changed_ns: int | None) -> dict[str, Trainer]:
    shipped = load_trainers(SHIPPED / CONFIG / FILE)
    return shipped if changed_ns is None else shipped | load_trainers(own)


def load_trainers(path: Path) -> dict[str, Trainer]:
    """All entries of a trainers.yaml.

    Raises:
        InputError: the file is missing or invalid.
    """
    return load_yaml(path, dict[Name, Trainer])


def axis_refusals(name: str, shape: ModelShape, layout: Layout) -> Iterator[str]:
    """Why a program cannot be told this layout or shape: a sentence for each axis."""
    trainer = trainer_named(name)
    if not trainer.command:
        yield f"{name} has no command in config/trainers.yaml"
        return
    for field, known in trainer.limits.items():
        value = getattr(layout if hasattr(layout, field) else shape, field)
        if key_of(value) not in known:
            why = trainer.reasons.get(field, "config/trainers.yaml has no words for it")
            yield f"{name} cannot be told {field}={str(value).lower()}: {why}"


def values_of(shape: ModelShape, layout: Layout) -> dict[str, Any]:
    """Every field of the layout and of the shape, by name."""
    fields = ((part, each.name) for part in (layout, shape) for each in dataclasses.fields(part))
    return {name: getattr(part, name) for part, name in fields}


def default_of(name: str) -> Any:
    """The value that a program need not be told; a value that nothing equals, without one."""
    default = AXES[name].default if name in AXES else FIELDS[name].default
    return object() if default is dataclasses.MISSING else default


def key_of(value: Any) -> Any:
    """How a mapping of `flags` writes a value."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value
