"""Read the file of a point or a probe before anything runs, with types as in its dataclass."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from scaling.errors import InputError
from scaling.probe.plan import ProbePlan, plan_from_json
from scaling.study.point import Point, point_from_json
from scaling.study.problems import first_problem

T = TypeVar("T")


def read_point(path: Path) -> Point:
    """Read points/<point_id>.json.

    Raises:
        InputError: the file is missing or holds no point.
    """
    return _read(path, "point", Point, point_from_json)


def read_probe_plan(path: Path) -> ProbePlan:
    """Read probe.json.

    Raises:
        InputError: the file is missing or holds no plan.
    """
    return _read(path, "probe", ProbePlan, plan_from_json)


def _read(path: Path, what: str, kind: type[T], parse: Callable[[str], T]) -> T:
    if path.exists() and not path.is_file():  # a fifo would wait, a device would never end
        raise InputError(f"{path}: is no file; a {what} is JSON that `scaling plan` writes")
    try:
        text = path.read_bytes()
        TypeAdapter(kind).validate_json(text, strict=True)
        return parse(text.decode("utf-8"))  # as the ranks do
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such {what}; `scaling plan` writes it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        reason = first_problem(error, kind)
    except (TypeError, KeyError) as error:  # a key is missing or unknown
        reason = str(error)
    raise InputError(f"{path}: is no {what} of this version ({reason}); `scaling plan` writes it")
