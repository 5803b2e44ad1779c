"""What may be written in a study file, in models.yaml and in clusters.yaml, as pydantic models."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)

from scaling.cluster.hardware import Cluster, gpu_named
from scaling.cluster.site import Slurm
from scaling.layout.axes import AXES, Axis
from scaling.layout.optional_parts import NAMES, SIZES, OptionalParts, mistakes
from scaling.layout.shapes import Family, ModelShape
from scaling.study.measuring import Flag, Measure, Seconds
from scaling.study.mistakes import SAFE
from scaling.study.point import StudyKind

GBIT = 1e9 / 8  # bytes

Mode = Literal["measure", "predict"]


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r}: must be one line without control characters")
    return text


Count = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
# Sizes of a model, far beyond any: all that is counted with them fits into 64 bits.
Layers = Annotated[int, Field(strict=True, ge=1, le=10_000)]
Width = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Heads = Annotated[int, Field(strict=True, ge=1, le=100_000)]
Name = Annotated[str, Field(strict=True, pattern=f"^{SAFE}$")]

Rate = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]

# One value or a list of them.
Counts = Annotated[list[Count], BeforeValidator(_as_list), Field(min_length=1)]
Names = Annotated[list[Name], BeforeValidator(_as_list), Field(min_length=1)]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


UNSAID: Any = None  # null is a value of its own: it overrides what `axes` says


class _Grid(_File):
    """Values of the grid's axes; a block of `layouts` overrides those of `axes`."""

    model: Names = UNSAID
    cluster: Names = UNSAID
    world_size: Counts = UNSAID
    global_batch_size: Counts = UNSAID
    batch_size_per_gpu: Counts = UNSAID
    seq_length: Counts = UNSAID

    def given(self) -> dict[str, tuple[Any, ...]]:
        """The axes somebody wrote down, each value once."""
        values = {name: getattr(self, name) for name in sorted(self.model_fields_set)}
        return {name: tuple(dict.fromkeys(listed)) for name, listed in values.items()}


def _values_of(axis: Axis) -> Any:
    """The type of an axis's key in a study: one of its values, or a list of them."""
    one: Any = Count if axis.values is None else Flag if axis.kind is bool else Literal[axis.values]
    listed = list[one | None] if axis.optional else list[one]
    return Annotated[listed, BeforeValidator(_as_list), Field(min_length=1)]


if TYPE_CHECKING:
    Axes = _Grid
else:
    Axes = create_model(
        "Axes", __base__=_Grid, **{name: (_values_of(axis), UNSAID) for name, axis in AXES.items()}
    )


class Probing(_File):
    """Probes of the cluster before anything is measured: `probe: true`, `false`, or this block.

    Left out, they run where the points run on GPUs: a sick node found in minutes saves a sweep. On
    a CPU, whose ranks share one machine, they are left out.
    """

    enabled: Flag | None = None
    world_size: Count | None = None  # ranks of the probe; the largest of the study's by default
    time_limit_s: Seconds = 300.0


def _as_probing(value: object) -> object:
    return {"enabled": value} if isinstance(value, bool) else value


class Reporting(_File):
    """What the report's words rest on; changing it measures nothing again."""

    # of twice the throughput: what a doubling must return for returns not to have ended
    knee_share: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] = 0.75


class StudyFile(_File):
    """config/studies/<study>.yaml."""

    title: Annotated[
        str, Field(strict=True, min_length=1, max_length=200), AfterValidator(_printable)
    ]
    kind: StudyKind
    mode: Mode = "measure"
    axes: Axes = Axes()
    layouts: Annotated[list[Axes], Field(min_length=1)] = [Axes()]
    measure: Measure = Measure()
    probe: Annotated[Probing, BeforeValidator(_as_probing)] = Probing()
    report: Reporting = Reporting()
    max_points: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 5_000
    replicates: Name | None = None


_PARTS: dict[str, Any] = {
    each.name: (
        Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
        if each.name in SIZES
        else Flag
        if each.type is bool
        else each.type,
        each.default,
    )
    for each in dataclasses.fields(OptionalParts)
}
if TYPE_CHECKING:
    _Parts = _File
else:
    _Parts = create_model("_Parts", __base__=_File, **_PARTS)


class ModelEntry(_Parts):
    """One model of config/models.yaml; only what differs from the defaults is said."""

    family: Family = "llama"
    num_layers: Layers
    num_encoder_layers: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 0
    hidden_size: Width
    num_heads: Heads
    num_kv_heads: Heads | None = None
    head_dim: Heads | None = None
    ffn_hidden_size: Width
    gated_mlp: Flag | None = None
    vocab_size: Count
    tied_embeddings: Flag = False
    max_positions: Annotated[int, Field(strict=True, ge=0, le=10_000_000)] = 0
    source: Annotated[str, Field(strict=True, min_length=1)]

    @model_validator(mode="after")
    def _fits_together(self) -> "ModelEntry":
        if self.head_dim is None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not divisible by num_heads={self.num_heads}; "
                "say head_dim if that is meant"
            )
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise ValueError(
                f"num_heads={self.num_heads} is not divisible by num_kv_heads={self.num_kv_heads}"
            )
        if (self.family == "t5") != (self.num_encoder_layers > 0):
            raise ValueError(
                f"num_encoder_layers={self.num_encoder_layers}: family t5 needs at least 1, "
                "the others have none"
            )
        if (self.family == "gpt") != (self.max_positions > 0):
            raise ValueError(
                f"max_positions={self.max_positions}: family gpt needs at least 1, "
                "the others have none"
            )
        if self.family == "llama" and (self.head_dim or self.hidden_size // self.num_heads) % 2:
            raise ValueError("rotary positions need an even head_dim")
        fields = type(self).model_fields
        chosen = [name for name in NAMES if getattr(self, name) != fields[name].default]
        if self.family != "llama" and chosen:
            raise ValueError(f"{chosen[0]} is a part of family llama only, not of {self.family}")
        if wrong := mistakes(self):
            raise ValueError(wrong[0])
        return self

    def shape(self) -> ModelShape:
        """The shape with every default filled in."""
        fields = self.model_dump(exclude={"source", "num_kv_heads", "head_dim", "gated_mlp"})
        return ModelShape(
            **fields,
            num_kv_heads=self.num_kv_heads or self.num_heads,
            head_dim=self.head_dim or self.hidden_size // self.num_heads,
            gated_mlp=self.family != "gpt" if self.gated_mlp is None else self.gated_mlp,
        )


Word = Annotated[str, Field(strict=True, min_length=1, pattern=r"^[^\s;&|`$]+$")]
Line = Annotated[str, Field(strict=True, min_length=1, pattern=r"^[^\r\n]+$")]


class SlurmEntry(_File):
    """What the site's Slurm wants to be told; set-up lines are the site's own shell."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Annotated[str, Field(strict=True, pattern=r"^[\w&|,*\[\]().-]+$")] | None = None
    reservation: Word | None = None
    exclusive: Flag = False
    gres: Annotated[str, Field(strict=True, pattern=r"^[\w.-]+(:[\w.-]+)?$")] | None = None
    cpus_per_task: Count | None = None
    mem_mb: Annotated[int, Field(strict=True, ge=0, le=10**12)] | None = None
    setup: list[Line] = []
    srun_args: list[Line] = []
    extra: list[Line] = []

    def site(self) -> Slurm:
        """The same as values that do not change."""
        return Slurm(
            **self.model_dump(exclude={"setup", "srun_args", "extra"}),
            setup=tuple(self.setup),
            srun_args=tuple(self.srun_args),
            extra=tuple(self.extra),
        )


class ClusterEntry(_File):
    """One cluster of config/clusters.yaml."""

    gpu: Name
    gpus_per_node: Count
    nodes: Count
    node_link_gbit_per_s: Rate | None = None
    all_reduce_gbyte_per_s: Annotated[dict[Count, Rate], Field(min_length=1)] | None = None
    lossy_transport: Flag = False
    usd_per_gpu_hour: Rate | None = None
    slurm: SlurmEntry = SlurmEntry()
    source: Annotated[str, Field(strict=True, min_length=1)]

    def cluster(self) -> Cluster:
        """The cluster in bytes and seconds."""
        gbit, bus = self.node_link_gbit_per_s, self.all_reduce_gbyte_per_s
        return Cluster(
            gpu=gpu_named(self.gpu).name,
            gpus_per_node=self.gpus_per_node,
            nodes=self.nodes,
            node_link_bytes_per_s=None if gbit is None else gbit * GBIT,
            bus_bytes_per_s=(
                None if bus is None else {nodes: bus[nodes] * 1e9 for nodes in sorted(bus)}
            ),
            lossy_transport=self.lossy_transport,
            usd_per_gpu_hour=self.usd_per_gpu_hour,
            slurm=self.slurm.site(),
            source=self.source,
        )
