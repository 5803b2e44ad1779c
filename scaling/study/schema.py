"""The keys and values of a study file, as pydantic models."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from scaling.layout.axes import AXES, Axis
from scaling.study.point import StudyKind
from scaling.study.problems import NAME

Mode = Literal["measure", "predict"]
Block = dict[str, tuple[Any, ...]]  # axis -> values


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r}: must be one line without control characters")
    return text


Flag = Annotated[bool, Field(strict=True)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=7 * 86_400, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
Name = Annotated[str, Field(strict=True, pattern=NAME)]

_LISTED = (BeforeValidator(_as_list), Field(min_length=1))  # one value or a list of them
Counts = Annotated[list[Count], *_LISTED]
Names = Annotated[list[Name], *_LISTED]
# A name of models.yaml, the path of a config.json or of its folder, or a name in the hub cache.
ModelName = Annotated[
    str, Field(strict=True, min_length=1, max_length=4096), AfterValidator(_printable)
]
Models = Annotated[list[ModelName], *_LISTED]


UNSET: Any = None  # placeholder only: a null in the file is a value, which overrides `axes`


class File(BaseModel):
    """A part of a file that allows no other keys than its fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Grid(File):
    """Values of the grid's axes; a block of `layouts` overrides `axes`."""

    model: Models = UNSET
    cluster: Names = UNSET
    world_size: Counts = UNSET
    global_batch_size: Counts = UNSET
    batch_size_per_gpu: Counts = UNSET
    seq_length: Counts = UNSET

    def stated(self) -> Block:
        """The axes that the file states, without duplicate values."""
        names = sorted(self.model_fields_set)
        return {name: tuple(dict.fromkeys(getattr(self, name))) for name in names}


def _as_written(value: object) -> object:
    if isinstance(value, bool | float):  # which a Literal takes for the number that it equals
        raise PydanticCustomError("kind", "must be a whole number")
    return value


def _axis_type(axis: Axis) -> Any:
    """The type of an axis's key in a study: a list of its values, or one of them."""
    one: Any = Count if axis.values is None else Flag if axis.kind is bool else Literal[axis.values]
    if axis.other_names:
        one = Name
    elif axis.values is not None and axis.kind is int:
        one = Annotated[one, BeforeValidator(_as_written)]
    values = list[one | None] if axis.optional else list[one]
    return Annotated[values, *_LISTED]


if TYPE_CHECKING:
    Axes = _Grid
else:
    Axes = create_model(
        "Axes", __base__=_Grid, **{name: (_axis_type(axis), UNSET) for name, axis in AXES.items()}
    )


StepCount = Annotated[int, Field(strict=True, ge=10, le=10_000)]
RepeatCount = Annotated[int, Field(strict=True, ge=1, le=100)]


class Steps(File):
    """`measured_steps: {at_least: 5, at_most: 50, until: 0.01}`: stop at a precise median."""

    at_least: Annotated[int, Field(strict=True, ge=5, le=10_000)] = 5
    at_most: Annotated[int, Field(strict=True, ge=10, le=10_000)] = 50
    # half the 95 % interval of the median over the median
    until: Annotated[float, Field(strict=True, gt=0, lt=1, allow_inf_nan=False)] | None = 0.01

    @model_validator(mode="after")
    def _in_order(self) -> "Steps":
        if self.at_least > self.at_most:
            raise ValueError(
                f"at_least={self.at_least}: must not be more than at_most={self.at_most}"
            )
        return self


def _or_block(one: Any, wanted: str, block: Callable[[Any], object]) -> BeforeValidator:
    """A validator that takes a value of type `one` for a block, and lets blocks through."""

    def validated(value: object) -> object:
        kinds = (bool,) if one is bool else (int, float)
        if isinstance(value, dict | File):
            return value
        if not isinstance(value, kinds):
            raise PydanticCustomError("kind", wanted)
        return block(TypeAdapter(one).validate_python(value))

    return BeforeValidator(validated)


_OrSteps = _or_block(
    StepCount,
    "must be a whole number, or {at_least, at_most, until}",
    lambda number: {"at_least": number, "at_most": number, "until": None},
)


class Repeats(File):
    """`repeats: {at_most: 5, for: contenders}`: repeat only what could be the best."""

    at_most: Annotated[int, Field(strict=True, ge=1, le=100)] = 5
    only: Annotated[Literal["contenders"] | None, Field(alias="for")] = "contenders"


_OrRepeats = _or_block(
    RepeatCount,
    "must be a whole number, or {at_most, for: contenders}",
    lambda number: {"at_most": number, "for": None},
)


class Measure(File):
    """How each point is measured."""

    warmup_steps: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 3
    measured_steps: Annotated[Steps, _OrSteps] = Steps(at_least=10, at_most=10, until=None)
    # short: steps with fewer micro-batches, from which the full step is derived (short_steps); the
    # predicted best and one of each size run in full too
    accumulation: Literal["full", "short"] = "full"
    repeats: Annotated[Repeats, _OrRepeats] = Repeats.model_validate({"at_most": 1, "for": None})
    # the most a point may take; its predicted step time may set a shorter limit (time_limits)
    time_limit_s: Seconds | None = None
    # later points avoid nodes that probes or residuals show to be slow
    exclude_slow_nodes: Flag = True
    keep_trace: Flag = False
    gradient_clipping: Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)] = 0.0
    measure_oom: Flag = False
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**31)] = 0
    # a guided sweep measures what is expected to gain most on the best of its size, and stops once
    # nothing is expected to gain 1 %, or at a budget
    guided: Flag = False
    budget_gpu_hours: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] | None = None

    @property
    def is_guided(self) -> bool:
        """Whether predictions choose which points are measured."""
        return self.guided or self.budget_gpu_hours is not None


class Probing(File):
    """`probe: true`, `false`, or this block: probe the cluster before measuring anything.

    By default studies on GPUs are probed, since finding a bad node takes minutes and saves a sweep.
    Studies on a CPU, where ranks share one machine, are not.
    """

    enabled: Flag | None = None
    world_size: Count | None = None  # ranks of the probe; by default the study's largest size
    time_limit_s: Seconds = 300.0


_OrProbing = _or_block(
    bool,
    "must be true or false, or {world_size, time_limit_s}",
    lambda flag: {"enabled": flag},
)


class Reporting(File):
    """Parameters of the report; changing them measures nothing again."""

    # the knee is where doubling the GPUs returns less than this share of twice the throughput
    knee_share: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] = 0.75


class StudyFile(File):
    """config/studies/<study>.yaml."""

    title: Annotated[
        str, Field(strict=True, min_length=1, max_length=200), AfterValidator(_printable)
    ]
    kind: StudyKind
    mode: Mode = "measure"
    axes: Axes = Axes()
    layouts: list[Axes] = Field([Axes()], min_length=1)
    measure: Measure = Measure()
    probe: Annotated[Probing, _OrProbing] = Probing()
    report: Reporting = Reporting()
    max_points: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 5_000
    replicates: Name | None = None
