"""Read and validate the file of a point or a probe before anything runs.

Types are those of the dataclasses, bounds are those of a study file: nothing else may run.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from scaling.errors import InputError
from scaling.probe.plan import ProbePlan, plan_from_json
from scaling.study.catalogues import ModelEntry
from scaling.study.point import Point, point_from_json, stored_fields
from scaling.study.problems import FILE_NAME, first_problem
from scaling.study.schema import Axes, Count, Measure, Name

_FileName = Annotated[str, Field(pattern=FILE_NAME, max_length=250)]
_Steps = Annotated[int, Field(ge=0, le=10_000_000)]
_Amount = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
T = TypeVar("T")
Bounds = Iterator[tuple[Any, dict[str, Any]]]  # a schema, and the values it must accept


def read_point(path: Path) -> Point:
    """Read points/<point_id>.json."""
    return _read(path, "point", Point, point_from_json, _bounds_of_point)


def read_probe_plan(path: Path) -> ProbePlan:
    """Read probe.json."""
    return _read(path, "probe", ProbePlan, plan_from_json, _bounds_of_probe)


def _bounds_of_point(point: Point) -> Bounds:
    layout = point.layout
    axes = {
        name: value for name, value in stored_fields(layout).items() if name in Axes.model_fields
    }
    yield Axes, {**axes, "model": point.model, "cluster": point.cluster}
    yield ModelEntry, {**dataclasses.asdict(point.shape), "source": "a study"}
    yield Measure, {"time_limit_s": point.time_limit_s, "seed": point.seed}
    yield (
        dict[str, Count],
        {
            "dp": layout.dp,
            "gradient_accumulation_steps": layout.gradient_accumulation_steps,
            "gpus_per_node": point.gpus_per_node,
            "measured_steps": point.measured_steps,
        },
    )
    yield dict[str, Name], {"study": point.study, "gpu": point.gpu}
    yield dict[str, _FileName], {"point_id": point.point_id}
    counts = ("repeat", "warmup_steps", "at_least_steps")
    yield dict[str, _Steps | None], {name: getattr(point, name) for name in counts}
    amounts = ("peak_flop_per_s", "expected_step_s", "until", "gradient_clipping")
    yield dict[str, _Amount | None], {name: getattr(point, name) for name in amounts}


def _bounds_of_probe(plan: ProbePlan) -> Bounds:
    yield dict[str, Count], {"world_size": plan.world_size, "gpus_per_node": plan.gpus_per_node}
    yield Measure, {"time_limit_s": plan.time_limit_s}


def _read(
    path: Path, what: str, kind: type[T], parse: Callable[[str], T], bounds: Callable[[T], Bounds]
) -> T:
    schema: Any = kind
    if path.exists() and not path.is_file():  # a fifo would wait, a device would never end
        raise InputError(f"{path}: is no file; a {what} is JSON that `scaling plan` writes")
    try:
        text = path.read_bytes()
        TypeAdapter(kind).validate_json(text, strict=True)
        parsed = parse(text.decode("utf-8"))  # as the ranks do
        for schema, facts in bounds(parsed):
            TypeAdapter(schema).validate_python(facts)
        return parsed
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such {what}; `scaling plan` writes it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        reason = first_problem(error, schema)
    except (TypeError, KeyError) as error:  # a key is missing or unknown
        reason = str(error)
    raise InputError(f"{path}: is no {what} of this version ({reason}); `scaling plan` writes it")
