"""The entries of config/trainers.yaml, checked."""

import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from scaling.errors import InputError, did_you_mean
from scaling.layout.axes import AXES
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.study.inputs import local_or_shipped
from scaling.study.load import load_yaml
from scaling.study.paths import CONFIG
from scaling.study.schema import File, Name

PLACEHOLDER = re.compile(r"\{(\w+)\}")
# The names of a template besides the fields of the layout and of the model's shape.
DERIVED = (
    "world_size", "global_batch_size", "gpus_per_node", "nodes", "steps", "seed", "files",
    "tokens_per_micro_batch", "tokens_per_step", "expert_layers", "shared_ffn_hidden_size",
)  # fmt: skip
FIELDS = {field.name: field for kind in (Layout, ModelShape) for field in dataclasses.fields(kind)}
NAMES = {*FIELDS, *DERIVED}

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

    @property
    def said(self) -> set[str]:
        """The names that its command and its files always say."""
        texts = (*self.command, *self.files.values())
        return {name for text in texts for name in PLACEHOLDER.findall(text)}


def trainer_named(name: str, config: Path = CONFIG) -> Trainer:
    """The entry of that name in config/trainers.yaml.

    Raises:
        InputError: the file is invalid, or has no such entry.
    """
    entries = load_trainers(trainers_file(config))
    if name not in entries:
        raise InputError(
            f"trainer {name!r}: not in config/trainers.yaml: {did_you_mean(name, entries)}"
        )
    return entries[name]


def trainers_file(config: Path = CONFIG) -> Path:
    """The trainers.yaml of this folder, or the one that ships."""
    return local_or_shipped(config / "trainers.yaml")


def load_trainers(path: Path) -> dict[str, Trainer]:
    """All entries of a trainers.yaml.

    Raises:
        InputError: the file is missing or invalid.
    """
    return _loaded(path.absolute(), path.stat().st_mtime_ns if path.is_file() else 0)


@functools.cache
def _loaded(path: Path, changed_ns: int) -> dict[str, Trainer]:
    return load_yaml(path, dict[Name, Trainer])


_IMPLIED = {"engine", "dp", "gradient_accumulation_steps"}


def axis_refusals(name: str, shape: ModelShape, layout: Layout) -> Iterator[str]:
    """Why a program cannot be told this layout or shape: a sentence for each axis."""
    trainer = trainer_named(name)
    if not trainer.command:
        yield f"{name} has no command in config/trainers.yaml"
        return
    for field, value in values_of(shape, layout).items():
        if field in trainer.said or field in _IMPLIED:
            continue
        if trainer.untold and (field not in AXES or field == "attention"):
            continue
        ways = trainer.flags.get(field)
        known = () if ways is None else None if not isinstance(ways, dict) else ways
        if known is None or value == default_of(field) or key_of(value) in known:
            continue
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
