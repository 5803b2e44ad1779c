"""The entries of config/models.yaml and config/clusters.yaml, as pydantic models."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model, model_validator

from scaling.cluster.hardware import GPUS
from scaling.layout.optional_parts import PART_DEFAULTS, PART_SIZES, OptionalParts
from scaling.layout.shapes import Family, ModelShape
from scaling.study.problems import CONSTRAINT, GRES, LINE, WORD
from scaling.study.schema import Count, File, Flag

# Upper bounds far beyond any model, so that what is counted with them fits into 64 bits.
Layers = Annotated[int, Field(strict=True, ge=1, le=10_000)]
Width = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Heads = Annotated[int, Field(strict=True, ge=1, le=100_000)]

Rate = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
GpuName: Any = Literal[tuple(GPUS)]


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
        parts = [name for name, absent in PART_DEFAULTS.items() if getattr(self, name) != absent]
        if self.family != "llama" and parts:
            raise ValueError(f"{parts[0]} is a part of family llama only, not of {self.family}")
        if errors := part_errors(self):
            raise ValueError(errors[0])
        return self

    @property
    def shape(self) -> ModelShape:
        """The model's shape, with every default filled in."""
        sizes = self.model_dump(exclude={"source", "num_kv_heads", "head_dim", "gated_mlp"})
        return ModelShape(
            **sizes,
            num_kv_heads=self.num_kv_heads or self.num_heads,
            head_dim=self.head_dim or self.hidden_size // self.num_heads,
            gated_mlp=self.family != "gpt" if self.gated_mlp is None else self.gated_mlp,
        )


def part_errors(parts: Any) -> list[str]:
    """Contradictions among the fields of `OptionalParts` and num_layers: one sentence each."""
    errors = []
    experts = ("experts_per_token", "expert_ffn_hidden_size")
    latent = ("rotary_head_dim", "value_head_dim")
    for main, required, optional in (
        ("num_experts", experts, ("shared_experts", "dense_layers")),
        ("key_value_rank", latent, ("query_rank",)),
    ):
        if size := getattr(parts, main):
            missing = [name for name in required if not getattr(parts, name)]
            errors += [f"{main}={size}: {name} is missing" for name in missing[:1]]
        else:
            alone = [name for name in (*required, *optional) if getattr(parts, name)]
            errors += [f"{name}={getattr(parts, name)}: {main} is missing" for name in alone[:1]]
    if parts.num_experts and parts.experts_per_token > parts.num_experts:
        errors.append(
            f"experts_per_token={parts.experts_per_token} is more than "
            f"num_experts={parts.num_experts}"
        )
    if parts.num_experts and parts.dense_layers >= parts.num_layers:
        errors.append(
            f"dense_layers={parts.dense_layers} leaves none of num_layers={parts.num_layers} "
            "for the experts"
        )
    if (parts.window > 0) != (parts.windowed_layers > 0):
        errors.append(
            f"window={parts.window} and windowed_layers={parts.windowed_layers}: "
            "give both or neither"
        )
    for one, other in (
        ("query_key_norm", "whole_query_key_norm"),
        ("linear_biases", "query_key_value_biases"),
    ):
        if getattr(parts, one) and getattr(parts, other):
            errors.append(f"{one} and {other}: give one of them")
    if parts.windowed_layers > parts.num_layers:
        errors.append(
            f"windowed_layers={parts.windowed_layers} is more than num_layers={parts.num_layers}"
        )
    return errors


Word = Annotated[str, Field(strict=True, min_length=1, pattern=WORD)]
Line = Annotated[str, Field(strict=True, min_length=1, pattern=LINE)]


class SlurmEntry(File):
    """Slurm options of a cluster; `setup` holds lines of the site's shell."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Annotated[str, Field(strict=True, pattern=CONSTRAINT)] | None = None
    reservation: Word | None = None
    exclusive: Flag = False
    gres: Annotated[str, Field(strict=True, pattern=GRES)] | None = None
    cpus_per_task: Count | None = None
    mem_mb: Annotated[int, Field(strict=True, ge=0, le=10**12)] | None = None
    max_minutes: Count | None = None
    dependency: Word | None = None
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
