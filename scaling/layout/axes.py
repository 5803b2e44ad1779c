"""The axes of a layout: one field of `LayoutAxes` per choice that a study can make.

The rest of the project derives from this table: study keys, columns of points, rows and refusals,
ids and labels, DuckDB tables, columns of the report page, lists in the documents and test samples.
A new axis needs code in two more places: training and prediction (docs/extending.md).
"""

import dataclasses
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

from scaling.layout.engines import ENGINES
from scaling.layout.kernels import ATTENTION

# Values of the axis `routing` -> tokens of the busiest expert over the mean. balanced: every expert
# gets the same number, whatever the router scores. skewed: one expert gets that multiple of the
# mean. learned: the router decides; predictions use this number, which comes from published steps
# with and without forced balance.
ROUTINGS = {
    "balanced": 1.0, "learned": 3.0, "skewed:1.25": 1.25, "skewed:1.5": 1.5, "skewed:2": 2.0,
    "skewed:3": 3.0, "skewed:4": 4.0,
}  # fmt: skip

ZeroStage = Literal[0, 1, 2, 3]
OptimizerOffload = Literal["none", "cpu"]
OptimizerPrecision = Literal["fp32", "bf16"]
PipelineSchedule = Literal["1f1b", "interleaved", "zero_bubble", "zbv", "dualpipev"]
CpStyle = Literal["all_to_all", "ring"]
# Schedules that put two model chunks on a rank, one from each half, whatever virtual_stages is.
V_SCHEDULES = ("zbv", "dualpipev")
ActivationCheckpointing = Literal["none", "selective", "full"]
Attention = str  # a key of ATTENTION
Precision = Literal["fp32", "fp16", "bf16", "fp8"]
Fp8Scaling = Literal["tensor", "row"]
Engine = str  # a key of ENGINES, or of trainers.yaml
Routing = str  # a key of ROUTINGS

# The places that show a default value: in labels and names, in names only, or in neither.
ShowDefault = Literal["always", "in names", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisText:
    """How an axis is written for people. `{}` stands for the value; flags do without it."""

    title: str  # in tables and on a chart's axis: "micro-batch"
    name: str  # in a sentence: "micro-batch {}"
    label: str  # in a layout's label: "mbs{}"
    column: str  # heads a column of the report page's tables
    show_default: ShowDefault = "never"
    always_column: bool = False  # the column is shown even where all layouts have the same value
    needs_degree: str | None = None  # the choice has no effect where this degree is 1


def _axis(default: Any, title: str, **stated: Any) -> Any:
    """A field of `LayoutAxes`; `stated` are fields of `Axis` and of `AxisText`.

    Texts that are not stated follow from the title.
    """
    name = stated.get("name", f"{title} {{}}")
    text = {"title": title, "name": name, "label": name.replace(" ", ""), "column": title}
    for field in dataclasses.fields(AxisText):
        if field.name in stated:
            text[field.name] = stated.pop(field.name)
    return dataclasses.field(default=default, metadata={**stated, "text": AxisText(**text)})


def _flag(name: str, label: str, **other: Any) -> Any:
    """An axis that is on or off, shown only where it is on."""
    return _axis(False, other.pop("title", name), name=name, label=label, **other)


@dataclass(frozen=True, kw_only=True)
class LayoutAxes:
    """The choices of a layout, in the order in which they are written for people.

    Sizes count ranks; batch sizes count sequences, never tokens.
    """

    tp: int = _axis(1, "tp", multiplies_ranks=True, show_default="in names", always_column=True)
    pp: int = _axis(1, "pp", multiplies_ranks=True, show_default="in names", always_column=True)
    cp: int = _axis(1, "cp", multiplies_ranks=True, show_default="in names")
    # what ranks of a cp group exchange: heads for tokens, or keys and values around a ring
    cp_style: CpStyle = _axis(
        "all_to_all", "cp style", added_later=True, name="{} cp", label="cp-{}",
        needs_degree="cp",
    )  # fmt: skip
    # ranks of dp x cp over which the experts of a layer are split
    ep: int = _axis(1, "ep", added_later=True)
    routing: Routing = _axis(
        "balanced", "routing", values=tuple(ROUTINGS), added_later=True, setting=True,
        name="{} routing", label="{}",
    )  # fmt: skip
    pipeline_schedule: PipelineSchedule = _axis(
        "1f1b", "schedule", added_later=True, name="{}", show_default="in names", needs_degree="pp"
    )
    # model chunks per pipeline rank
    virtual_stages: int = _axis(
        1, "virtual stages", added_later=True, name="{} virtual stages",
        label="virtual{}", column="virt.", needs_degree="pp",
    )  # fmt: skip
    # Megatron's: norms and dropout sharded inside the tp group
    sequence_parallel: bool = _flag("sequence parallel", "sp", column="seq. par.")
    zero_stage: ZeroStage = _axis(
        0,
        "ZeRO",
        name="ZeRO-{}",
        label="zero{}",
        show_default="always",
        always_column=True,
    )
    # ranks that share one copy; null: all dp ranks do
    zero_shard_size: int | None = _axis(
        None, "ZeRO shard", added_later=True, name="shard {}", label="shard{}",
        column="shard",
    )  # fmt: skip
    optimizer_offload: OptimizerOffload = _axis(
        "none", "optimizer offload", added_later=True, name="optimizer on {}",
        label="offload-{}", column="offload",
    )  # fmt: skip
    # of the master weights and both moments
    optimizer_precision: OptimizerPrecision = _axis(
        "fp32", "optimizer precision", added_later=True, name="{} optimizer",
        label="opt-{}", column="opt. prec.",
    )  # fmt: skip
    micro_batch_size: int = _axis(
        1, "micro-batch", label="mbs{}", column="mb", show_default="always"
    )
    activation_checkpointing: ActivationCheckpointing = _axis(
        "none", "checkpointing", name="{} checkpointing", label="ckpt-{}",
        column="ckpt",
    )  # fmt: skip
    attention: Attention = _axis(
        "flash2",
        "attention",
        values=tuple(ATTENTION),
        name="{} attention",
        label="{}",
        show_default="always",
    )
    fused_norm: bool = _flag("fused norm", "fused-norm")
    fused_rope: bool = _flag("fused rope", "fused-rope", added_later=True)
    fused_mlp: bool = _flag("fused mlp", "fused-mlp", added_later=True)
    fused_cross_entropy: bool = _flag(
        "fused cross-entropy", "fused-cross-entropy", added_later=True, column="fused CE"
    )
    compile: bool = _flag(
        "compiled", "compile", added_later=True, title="compile", column="compiled"
    )
    precision: Precision = _axis("bf16", "precision", name="{}", show_default="always")
    # for 8-bit products: one scale per operand or per row
    fp8_scaling: Fp8Scaling = _axis(
        "tensor", "fp8 scaling", added_later=True, name="scaled by {}",
        label="scaled-by-{}",
    )  # fmt: skip
    engine: Engine = _axis(
        "deepspeed",
        "engine",
        values=tuple(ENGINES),
        other_names=True,
        added_later=True,
        name="{} engine",
        label="{}",
    )

    @property
    def setting_values(self) -> tuple[Any, ...]:
        """The values of the setting axes. Only layouts that share them compete."""
        return tuple(getattr(self, name) for name in SETTING_AXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis of `LayoutAxes` with everything that its field states."""

    name: str
    kind: type  # of its values: int, bool or str
    values: tuple[Any, ...] | None  # the allowed ones; None: any count from 1
    optional: bool  # whether null is allowed too
    default: Any  # for studies that do not name the axis
    # Points had been measured before the axis existed. Their files and ids name it only where it is
    # not at its default, so that they need not be measured again.
    added_later: bool = False
    multiplies_ranks: bool = False  # of one replica
    # part of the task, like the sequence length: layouts that differ in it do not compete
    setting: bool = False
    other_names: bool = False  # whether names beside `values` are allowed; a plan knows which
    text: AxisText


def _axis_from_field(field: "dataclasses.Field[Any]", annotation: Any) -> Axis:
    optional = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    if optional:
        (annotation,) = (t for t in typing.get_args(annotation) if t is not types.NoneType)
    values = field.metadata.get("values") or typing.get_args(annotation) or None
    kind = type(values[0]) if values else annotation
    facts = {"values": values, "kind": kind, "optional": optional, "default": field.default}
    if kind is bool:
        facts["values"] = (False, True)
    return Axis(name=field.name, **{**field.metadata, **facts})


def axes_of(table: type) -> dict[str, Axis]:
    """The axes of `LayoutAxes` or a subclass, by name; fields that are no axes are left out."""
    annotations = typing.get_type_hints(table)
    return {
        field.name: _axis_from_field(field, annotations[field.name])
        for field in dataclasses.fields(table)
        if "text" in field.metadata
    }


# The null of an optional count means all ranks, so it is ordered behind every count.
_PLACE_OF_NULL = float(2**31)


def axis_levels(axis: Axis) -> list[dict[str, Any]]:
    """The values of an axis that are not counts, each with its text and its place in order."""
    null = {"value": None, "level": "all", "place": _PLACE_OF_NULL}
    levels = [null] if axis.optional else []
    for order, value in enumerate(axis.values or (), start=1):
        levels.append(
            {
                "value": str(value).lower() if axis.kind is bool else str(value),
                "level": str(value) if axis.kind is not bool else "on" if value else "off",
                "place": float(order if axis.kind is str else value),
            }
        )
    return levels


AXES: dict[str, Axis] = axes_of(LayoutAxes)
DEFAULTS: dict[str, Any] = {name: axis.default for name, axis in AXES.items()}
REPLICA_AXES = tuple(name for name, axis in AXES.items() if axis.multiplies_ranks)
SETTING_AXES = tuple(name for name, axis in AXES.items() if axis.setting)
