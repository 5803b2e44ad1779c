"""What a job reads before it does anything: a point's file, a probe's file, each checked whole.

Types are those of the classes; the bounds are those of a study, so that what no study may ask for
runs from no file either.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from scaling.errors import InputError
from scaling.probe.plan import ProbePlan, plan_from_json
from scaling.study.catalogues import ModelEntry
from scaling.study.measuring import Measure
from scaling.study.mistakes import sentence
from scaling.study.point import Point, point_from_json
from scaling.study.schema import Axes, Count, Name

T = TypeVar("T")


def read_point(path: Path) -> Point:
    """The point of points/<point_id>.json.

    Raises:
        InputError: there is no such point, or the file is none.
    """
    point = _read(path, Point, point_from_json, "point")
    layout = point.layout
    axes = {name: value for name, value in layout.facts().items() if name in Axes.model_fields}
    _check(path, "point", Axes, {**axes, "model": point.model, "cluster": point.cluster})
    _check(path, "point", ModelEntry, {**dataclasses.asdict(point.shape), "source": "a study"})
    _check(path, "point", Measure, {"time_limit_s": point.time_limit_s, "seed": point.seed})
    counts = {
        "dp": layout.dp,
        "gradient_accumulation_steps": layout.gradient_accumulation_steps,
        "gpus_per_node": point.gpus_per_node,
        "measured_steps": point.measured_steps,
    }
    _check(path, "point", dict[str, Count], counts)
    _check(path, "point", dict[str, Name], {"study": point.study, "gpu": point.gpu})
    return point


def read_probe_plan(path: Path) -> ProbePlan:
    """The plan of probe.json.

    Raises:
        InputError: there is no such plan, or the file is none.
    """
    plan = _read(path, ProbePlan, plan_from_json, "probe")
    counts = {"world_size": plan.world_size, "gpus_per_node": plan.gpus_per_node}
    _check(path, "probe", dict[str, Count], counts)
    _check(path, "probe", Measure, {"time_limit_s": plan.time_limit_s})
    return plan


def _read(path: Path, kind: type[T], parse: Callable[[str], T], what: str) -> T:
    try:
        text = path.read_bytes()
        TypeAdapter(kind).validate_json(text, strict=True)
        return parse(text.decode("utf-8"))  # as the ranks will
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such {what}; `scaling plan` writes it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise _refused(path, what, sentence(error, kind)) from None
    except (TypeError, KeyError) as error:  # a key more or less than is known here
        raise _refused(path, what, str(error)) from None


def _check(path: Path, what: str, schema: Any, facts: dict[str, Any]) -> None:
    try:
        TypeAdapter(schema).validate_python(facts)
    except ValidationError as error:
        raise _refused(path, what, sentence(error, schema)) from None


def _refused(path: Path, what: str, reason: str) -> InputError:
    return InputError(f"{path}: is no {what} of this version ({reason}); `scaling plan` writes it")
