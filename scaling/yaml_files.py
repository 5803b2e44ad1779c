"""A YAML file, read and checked against a schema; what is wrong with it becomes one sentence."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from scaling.errors import InputError
from scaling.study_errors import sentence

T = TypeVar("T")


class _UniqueKeys(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice instead of keeping the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice!r} is written twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def validated(path: Path, schema: type[T]) -> T:
    """The file's content as `schema`.

    Raises:
        InputError: it cannot be read, is not YAML, or does not fit the schema.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    try:
        content = yaml.load(text, Loader=_UniqueKeys)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise InputError(f"{path}: {where}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: must hold keys and values, not {type(content).__name__}")
    try:
        return TypeAdapter(schema).validate_python(content)
    except ValidationError as error:
        raise InputError(f"{path}: {sentence(error, schema)}") from None
