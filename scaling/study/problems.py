"""The problem of a value that does not fit its schema, as one sentence."""

import reprlib
import typing

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from scaling.errors import did_you_mean

SAFE = "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"  # names that are safe in paths and shells
NAME = f"^{SAFE}$"
FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+:-]*$"
WORD = r"^[^\s;&|`$]+$"
LINE = r"^[^\r\n]+$"
GRES = r"^[\w.-]+(:[\w.-]+)?$"
CONSTRAINT = r"^[\w&|,*\[\]().-]+$"

_PATTERNS = {
    NAME: (
        "a name is letters, digits, '_', '-' and '.' only, starts with a letter or digit, and has "
        "at most 64"
    ),
    FILE_NAME: (
        "must be letters, digits, '_', '-', '+', ':' and '.' only, and start with a letter or digit"
    ),
    WORD: "must be one word without blanks or signs of the shell",
    LINE: "must be one line of text",
    GRES: "must be a name and a type without a count, such as gpu or gpu:h100",
    CONSTRAINT: "must be features of nodes without blanks, such as h100&ib or [rack1|rack2]",
}
_WORDS = {  # by pydantic's type of a problem, with its context
    **dict.fromkeys(("int_type", "int_from_float"), "must be a whole number"),
    "bool_type": "must be true or false",
    "string_type": "must be text",
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    "finite_number": "must be a finite number",
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    **dict.fromkeys(
        ("model_type", "model_attributes_type", "dict_type"), "must hold keys and values"
    ),
    **dict.fromkeys(("too_short", "string_too_short"), "must not be empty"),
    "string_too_long": "must have at most {max_length} characters",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
}
_REPR = reprlib.Repr()  # a few aliases in YAML may stand for a value without end
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 200


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
            if problem["input"] in allowed:  # the text of a number
                return f"{stated}: {_WORDS['int_type']}"
            return f"{stated}: {did_you_mean(problem['input'], allowed)}"
        case "string_pattern_mismatch":
            return f"{stated}: {_PATTERNS[context['pattern']]}"
        case "value_error":  # raised by our own validators
            return f"{key}: {context['error']}"
    words = _WORDS[kind].format(**context) if kind in _WORDS else problem["msg"]
    return f"{stated}: {words}"


def _key_path(location: tuple[int | str, ...]) -> str:
    """A location in the file as people write it: `layouts[2].zero_stage`."""
    path = ""
    for part in location:
        if part in ("[key]", "[list]", "[mapping]"):  # pydantic's mark, and a union's tags
            continue
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part if len(part) <= 60 and part.isprintable() else quoted(part)}"
    return path.removeprefix(".") or "the file"


def quoted(value: object) -> str:
    """A value as an error sentence quotes it: on one line, at most 60 characters."""
    text = "null" if value is None else _REPR.repr(value)
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
