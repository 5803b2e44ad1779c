"""Read a YAML file and check it against a schema; the first mistake becomes one sentence.

Only the YAML that a study needs: mappings, lists, and scalars as in YAML 1.2. What YAML 1.1 would
silently convert (`yes` to true, `010` to 8, `1:30` to 90) stays text here, and is refused where a
number or a flag is expected.
"""

import re
import typing
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from yaml.constructor import ConstructorError

from scaling.errors import InputError, did_you_mean

T = TypeVar("T")

MAX_BYTES = 250_000
MAX_VALUES = 50_000  # an alias counts as all the values it stands for
MAX_LEVELS = 20
MAX_DIGITS = 18  # of a whole number, so that it fits into 64 bits

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


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML without tags, limited in size and depth, without duplicate keys."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (as in the base class)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = self._values = 0
        self._sizes: dict[int, int] = {}  # id of a node -> values in it

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            raise _refused(f"{event.tag} is a tag; a study needs none", event)
        self._level += 1
        if self._level > MAX_LEVELS:
            raise _refused(f"nested deeper than {MAX_LEVELS} levels", event)
        values_before = self._values
        node = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                raise _refused(f"*{event.anchor} stands for what it is a part of", event)
            self._values += self._sizes[id(node)]
        self._values += 1
        if self._values > MAX_VALUES:
            raise _refused(f"holds more than {MAX_VALUES:,} values", event)
        self._sizes[id(node)] = self._values - values_before
        self._level -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if type(key) not in (str, int):
                raise _refused(f"the key {quoted(key)} must be text or a whole number", key_node)
            if key in seen:
                raise _refused(f"the key {quoted(key)} is written twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value.lstrip("+-")) > MAX_DIGITS:
            raise _refused(f"{quoted(node.value)} has more than {MAX_DIGITS} digits", node)
        return int(node.value)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        text = node.value.lower()
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))


for _type, (_pattern, _first) in _SCALARS.items():
    _StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_type}", re.compile(f"(?:{_pattern})$"), _first
    )
_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)
_StrictLoader.add_constructor("tag:yaml.org,2002:float", _StrictLoader.construct_yaml_float)


def _refused(problem: str, event_or_node: Any) -> ConstructorError:
    return ConstructorError(None, None, problem, event_or_node.start_mark)


def load_yaml(path: Path, schema: type[T]) -> T:
    """The content of a YAML file as an instance of `schema`.

    Raises:
        InputError: the file cannot be read, is not YAML, or does not fit the schema.
    """
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
        raise InputError(f"{path}: no such file") from None
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
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


SAFE = "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"  # names that are safe in paths and shells

_TYPES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "model_type": "must hold keys and values",
    "model_attributes_type": "must hold keys and values",
    "dict_type": "must hold keys and values",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least"),
    "greater_than": ("gt", "must be more than"),
    "less_than_equal": ("le", "must be at most"),
    "less_than": ("lt", "must be less than"),
}


def first_problem(error: ValidationError, schema: object) -> str:
    """The first problem as `key=value: what would be right`, and how many more there are."""
    problems = error.errors(include_url=False)
    sentence = _problem_sentence(problems[0], schema)
    if more := len(problems) - 1:
        sentence += f" ({more} more problem{'s' if more > 1 else ''} in this file)"
    return sentence


def _problem_sentence(problem: ErrorDetails, schema: object) -> str:
    key, kind, context = _key_path(problem["loc"]), problem["type"], problem.get("ctx", {})
    stated = f"{key}={quoted(problem['input'])}"
    match kind:
        case "missing":
            return f"{key}: is missing"
        case "json_invalid":
            return f"invalid JSON: {context['error']}"
        case "extra_forbidden":
            name = problem["loc"][-1]
            hint = did_you_mean(name, _allowed_keys(schema, problem["loc"]))
            return f"{key}: unknown key {quoted(name)}: {hint}"
        case "literal_error":
            allowed = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
            return f"{stated}: {did_you_mean(problem['input'], allowed)}"
        case "string_pattern_mismatch":
            return f"{stated}: {_pattern_in_words(context['pattern'])}"
        case "too_short" | "string_too_short":
            return f"{stated}: must not be empty"
        case "string_too_long":
            return f"{stated}: must have at most {context['max_length']} characters"
        case "value_error":  # raised by our own validators
            return f"{key}: {context['error']}"
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"{stated}: {words} {context[bound]}"
    return f"{stated}: {_TYPES.get(kind, problem['msg'])}"


def _pattern_in_words(pattern: str) -> str:
    if "\\s;" in pattern:
        return "must be one word without blanks or signs of the shell"
    if SAFE not in pattern:
        return f"must look like {pattern}"
    return (
        "a name is letters, digits, '_', '-' and '.' only, starts with a letter or digit, and has "
        "at most 64"
    )


def _key_path(location: tuple[int | str, ...]) -> str:
    """A location in the file as people write it: `layouts[2].zero_stage`."""
    path = ""
    for part in location:
        if part == "[key]":  # pydantic's mark for the key of a mapping
            continue
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part if len(part) <= 60 and part.isprintable() else quoted(part)}"
    return path.removeprefix(".") or "the file"


def quoted(value: object) -> str:
    """A value as an error sentence quotes it: on one line, at most 60 characters."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _allowed_keys(schema: object, location: tuple[int | str, ...]) -> list[str]:
    """The keys that are allowed at the place of the unknown one."""
    for part in location[:-1]:
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            schema = schema.model_fields[str(part)].annotation
        else:  # an entry of a list or mapping, whose type is the last argument
            schema = typing.get_args(schema)[-1]
    assert isinstance(schema, type)
    assert issubclass(schema, BaseModel)
    return [field.alias or name for name, field in schema.model_fields.items()]
