"""What may be written in a study file, as pydantic models; `Measure`: how points are measured."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from scaling.layout.axes import AXES, Axis
from scaling.study.point import StudyKind
from scaling.study.yaml_files import SAFE

Mode = Literal["measure", "predict"]


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
Name = Annotated[str, Field(strict=True, pattern=f"^{SAFE}$")]

_LISTED = (BeforeValidator(_as_list), Field(min_length=1))  # one value or a list of them
Counts = Annotated[list[Count], *_LISTED]
Names = Annotated[list[Name], *_LISTED]


UNSET: Any = None  # null is a value of its own: it overrides what `axes` says


class File(BaseModel):
    """What may be written, and nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Grid(File):
    """Values of the grid's axes; a block of `layouts` overrides those of `axes`."""

    model: Names = UNSET
    cluster: Names = UNSET
    world_size: Counts = UNSET
    global_batch_size: Counts = UNSET
    batch_size_per_gpu: Counts = UNSET
    seq_length: Counts = UNSET


def _values_of(axis: Axis) -> Any:
    """The type of an axis's key in a study: one of its values, or a list of them."""
    one: Any = Count if axis.values is None else Flag if axis.kind is bool else Literal[axis.values]
    listed = list[one | None] if axis.optional else list[one]
    return Annotated[listed, *_LISTED]


if TYPE_CHECKING:
    Axes = _Grid
else:
    Axes = create_model(
        "Axes", __base__=_Grid, **{name: (_values_of(axis), UNSET) for name, axis in AXES.items()}
    )


StepCount = Annotated[int, Field(strict=True, ge=10, le=10_000)]
RepeatCount = Annotated[int, Field(strict=True, ge=1, le=100)]


class Steps(File):
    """Steps that stop by themselves: `measured_steps: {at_least: 5, at_most: 50, until: 0.01}`.

    A number is that many of them.
    """

    at_least: Annotated[int, Field(strict=True, ge=5, le=10_000)] = 5
    at_most: Annotated[int, Field(strict=True, ge=10, le=10_000)] = 50
    # ratio: half the 95 % interval of the median over it
    until: Annotated[float, Field(strict=True, gt=0, lt=1, allow_inf_nan=False)] | None = 0.01

    @model_validator(mode="after")
    def _in_order(self) -> "Steps":
        if self.at_least > self.at_most:
            raise ValueError(
                f"at_least={self.at_least}: must not be more than at_most={self.at_most}"
            )
        return self


def _number_or(
    number: Any, what: str, make: Callable[[Any], object] = lambda value: value, word: str = ""
) -> Callable[[object], object]:
    """A validator that takes a number as short for what `make` makes of it, or one word.

    Without a word a mapping is left to be read as what `make` makes.
    """

    def validator(value: object) -> object:
        if value == word if word else isinstance(value, dict | File):
            return value
        if not isinstance(value, int | float):
            raise PydanticCustomError("kind", what)
        return make(TypeAdapter(number).validate_python(value))

    return validator


_as_steps = _number_or(
    StepCount,
    "must be a whole number, or {at_least, at_most, until}",
    lambda number: Steps(at_least=number, at_most=number, until=None),
)


class Repeats(File):
    """Repeats where they decide: `repeats: {at_most: 5, for: contenders}`. A number: of all."""

    at_most: Annotated[int, Field(strict=True, ge=1, le=100)] = 5
    only: Annotated[Literal["contenders"] | None, Field(alias="for")] = "contenders"


_as_repeats = _number_or(
    RepeatCount,
    "must be a whole number, or {at_most, for: contenders}",
    lambda number: Repeats.model_validate({"at_most": number, "for": None}),
)
_as_share = _number_or(Share, "must be advised, or a share from 0 to 1", word="advised")


GUIDES = ("keep", "budget_gpu_hours", "budget_usd")  # keys that make a sweep a guided one


class Measure(File):
    """How each point is measured."""

    warmup_steps: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 3
    measured_steps: Annotated[Steps, BeforeValidator(_as_steps)] = _as_steps(10)  # type: ignore[assignment]
    # short: steps of fewer micro-batches, from which the full step is derived (short_steps)
    accumulation: Literal["full", "short"] = "full"
    # of short points, which run in full too: the predicted best and one of each size, or a share
    in_full: Annotated[float | Literal["advised"], PlainValidator(_as_share)] = "advised"
    repeats: Annotated[Repeats, BeforeValidator(_as_repeats)] = _as_repeats(1)  # type: ignore[assignment]
    # of a point, from above; by default what its predicted step time says (see time_limits)
    time_limit_s: Seconds | None = None
    # nodes that probes or residuals name as slow are left out of later points
    exclude_slow_nodes: Flag = True
    keep_trace: Flag = False
    gradient_clipping: Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)] = 0.0
    measure_oom: Flag = False
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**31)] = 0
    # a guided sweep: only what is predicted to be near the best of its size, within a budget
    keep: Annotated[float, Field(strict=True, ge=0, le=10, allow_inf_nan=False)] | None = None
    spread: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] = 0.1
    budget_gpu_hours: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] | None = None
    budget_usd: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] | None = None

    @property
    def guided(self) -> bool:
        """Whether predictions choose what is measured."""
        return any(getattr(self, key) is not None for key in GUIDES)

    @property
    def guidance(self) -> str:
        """What the choice rests on, as one text; empty if nothing is chosen."""
        text = f"keep {self.keep} spread {self.spread} budget {self.budget_gpu_hours}"
        text += "" if self.budget_usd is None else f" usd {self.budget_usd}"
        return text if self.guided else ""


class Probing(File):
    """Probes of the cluster before anything is measured: `probe: true`, `false`, or this block.

    Left out, they run where the points run on GPUs: a sick node found in minutes saves a sweep. On
    a CPU, whose ranks share one machine, they are left out.
    """

    enabled: Flag | None = None
    world_size: Count | None = None  # ranks of the probe; the largest of the study's by default
    time_limit_s: Seconds = 300.0


def _as_probing(value: object) -> object:
    return {"enabled": value} if isinstance(value, bool) else value


class Reporting(File):
    """What the report's words rest on; changing it measures nothing again."""

    # of twice the throughput: what a doubling must return for returns not to have ended
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
    probe: Annotated[Probing, BeforeValidator(_as_probing)] = Probing()
    report: Reporting = Reporting()
    max_points: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 5_000
    replicates: Name | None = None
