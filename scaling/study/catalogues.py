"""Read the named models of config/models.yaml and the named clusters of config/clusters.yaml."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model, model_validator

from scaling.cluster.hardware import GBIT_PER_S, GPUS, Cluster
from scaling.cluster.site import Slurm
from scaling.layout.optional_parts import PART_NAMES, PART_SIZES, OptionalParts, part_errors
from scaling.layout.shapes import Family, ModelShape
from scaling.study.paths import CONFIG
from scaling.study.schema import Count, File, Flag, Name
from scaling.study.yaml_files import load_yaml

# Upper bounds far beyond any model, so that what is counted with them fits into 64 bits.
Layers = Annotated[int, Field(strict=True, ge=1, le=10_000)]
Width = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Heads = Annotated[int, Field(strict=True, ge=1, le=100_000)]

Rate = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
GpuName: Any = Literal[tuple(GPUS)]


def load_clusters(path: Path = CONFIG / "clusters.yaml") -> dict[str, Cluster]:
    """The clusters by name.

    Raises:
        InputError: the file is missing or invalid, or names an unknown GPU.
    """
    entries = load_yaml(path, dict[Name, ClusterEntry])
    return {name: entry.cluster() for name, entry in entries.items()}


def load_models(path: Path = CONFIG / "models.yaml") -> dict[str, ModelShape]:
    """The model shapes by name, with every default filled in.

    Raises:
        InputError: the file is missing or invalid.
    """
    shapes = {}
    for name, entry in load_yaml(path, dict[Name, ModelEntry]).items():
        sizes = entry.model_dump(exclude={"source", "num_kv_heads", "head_dim", "gated_mlp"})
        shapes[name] = ModelShape(
            **sizes,
            num_kv_heads=entry.num_kv_heads or entry.num_heads,
            head_dim=entry.head_dim or entry.hidden_size // entry.num_heads,
            gated_mlp=entry.family != "gpt" if entry.gated_mlp is None else entry.gated_mlp,
        )
    return shapes


def _part_type(field: "dataclasses.Field[Any]") -> Any:
    if field.name in PART_SIZES:
        return Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
    return Flag if field.type is bool else field.type


if TYPE_CHECKING:
    _Parts = File
else:
    _Parts = create_model(
        "_Parts",
        __base__=File,
        **{one.name: (_part_type(one), one.default) for one in dataclasses.fields(OptionalParts)},
    )


class ModelEntry(_Parts):
    """One model of config/models.yaml, which states only what differs from the defaults."""

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
        parts = [name for name in PART_NAMES if getattr(self, name) != fields[name].default]
        if self.family != "llama" and parts:
            raise ValueError(f"{parts[0]} is a part of family llama only, not of {self.family}")
        if errors := part_errors(self):
            raise ValueError(errors[0])
        return self


Word = Annotated[str, Field(strict=True, min_length=1, pattern=r"^[^\s;&|`$]+$")]
Line = Annotated[str, Field(strict=True, min_length=1, pattern=r"^[^\r\n]+$")]


class SlurmEntry(File):
    """Slurm options of a cluster; `setup` holds lines of the site's shell."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Annotated[str, Field(strict=True, pattern=r"^[\w&|,*\[\]().-]+$")] | None = None
    reservation: Word | None = None
    exclusive: Flag = False
    gres: Annotated[str, Field(strict=True, pattern=r"^[\w.-]+(:[\w.-]+)?$")] | None = None
    cpus_per_task: Count | None = None
    mem_mb: Annotated[int, Field(strict=True, ge=0, le=10**12)] | None = None
    setup: tuple[Line, ...] = ()
    srun_args: tuple[Line, ...] = ()
    extra: tuple[Line, ...] = ()


class ClusterEntry(File):
    """One cluster of config/clusters.yaml."""

    gpu: GpuName
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
        others = {"node_link_gbit_per_s", "all_reduce_gbyte_per_s", "slurm"}
        return Cluster(
            **self.model_dump(exclude=others),
            node_link_bytes_per_s=gbit and gbit * GBIT_PER_S,
            bus_bytes_per_s=bus and {nodes: bus[nodes] * 1e9 for nodes in sorted(bus)},
            slurm=Slurm(**self.slurm.model_dump()),
        )
