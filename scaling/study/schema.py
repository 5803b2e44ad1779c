"""What may be written in a study file, as pydantic models."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from scaling.layout.axes import AXES, Axis
from scaling.study.measuring import File, Flag, Measure, Seconds
from scaling.study.mistakes import SAFE
from scaling.study.point import StudyKind

Mode = Literal["measure", "predict"]


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r}: must be one line without control characters")
    return text


Count = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
Name = Annotated[str, Field(strict=True, pattern=f"^{SAFE}$")]

_LISTED = (BeforeValidator(_as_list), Field(min_length=1))  # one value or a list of them
Counts = Annotated[list[Count], *_LISTED]
Names = Annotated[list[Name], *_LISTED]


UNSAID: Any = None  # null is a value of its own: it overrides what `axes` says


class _Grid(File):
    """Values of the grid's axes; a block of `layouts` overrides those of `axes`."""

    model: Names = UNSAID
    cluster: Names = UNSAID
    world_size: Counts = UNSAID
    global_batch_size: Counts = UNSAID
    batch_size_per_gpu: Counts = UNSAID
    seq_length: Counts = UNSAID


def _values_of(axis: Axis) -> Any:
    """The type of an axis's key in a study: one of its values, or a list of them."""
    one: Any = Count if axis.values is None else Flag if axis.kind is bool else Literal[axis.values]
    listed = list[one | None] if axis.optional else list[one]
    return Annotated[listed, *_LISTED]


if TYPE_CHECKING:
    Axes = _Grid
else:
    Axes = create_model(
        "Axes", __base__=_Grid, **{name: (_values_of(axis), UNSAID) for name, axis in AXES.items()}
    )


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
