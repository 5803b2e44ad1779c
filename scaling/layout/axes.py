"""The table of axes: every choice of a layout, and all that the rest of the project asks of one.

A line of `LayoutAxes` is an axis. The keys of a study, the columns of points, rows and refusals,
ids and labels, DuckDB's tables, the page's columns, the lists in the documents and the tests'
samples are derived from it; what computes an axis and what predicts it are its other two places
(docs/extending.md).
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scaling.layout.engines import ENGINES
from scaling.layout.kernels import ATTENTION

# The values of the axis `routing` -> tokens of the fullest expert over the mean. balanced: every
# expert gets as many, whatever the router scores; skewed: one gets so many times the mean. learned
# is what the router does; the number is what a prediction takes for it, from published steps with
# forced balance beside those without (docs/formulas.md).
ROUTINGS = {
    "balanced": 1.0, "learned": 3.0, "skewed:1.25": 1.25, "skewed:1.5": 1.5, "skewed:2": 2.0,
    "skewed:3": 3.0, "skewed:4": 4.0,
}  # fmt: skip

ZeroStage = Literal[0, 1, 2, 3]
OptimizerOffload = Literal["none", "cpu"]
OptimizerPrecision = Literal["fp32", "bf16"]
PipelineSchedule = Literal["1f1b", "interleaved", "zero_bubble", "zbv", "dualpipev"]
CpStyle = Literal["all_to_all", "ring"]
# Two chunks of the model on a rank, one from each half, whatever virtual_stages is.
V_SCHEDULES = ("zbv", "dualpipev")
ActivationCheckpointing = Literal["none", "selective", "full"]
Attention = str  # of ATTENTION
Precision = Literal["fp32", "fp16", "bf16", "fp8"]
Fp8Scaling = Literal["tensor", "row", "block"]
Engine = str  # of ENGINES
Routing = str  # of ROUTINGS

# Where an axis is said at its default: in labels and names, in names only, or in neither.
Said = Literal["always", "in names", "where chosen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How people say an axis. `{}` stands for the value; on/off choices need none."""

    title: str  # in tables and on an axis of a chart: "micro-batch"
    name: str  # in a sentence: "micro-batch {}"
    short: str  # beside others in a chart: "mb {}"
    label: str  # in a layout's label: "mbs{}"
    column: str  # over a column of the page's tables
    said: Said = "where chosen"
    leading: bool = False  # its column is shown though all layouts agree on it
    within: str | None = None  # the degree without which the choice means nothing


def _axis(
    default: Any,
    title: str,
    *,
    values: tuple[str, ...] | None = None,
    later: bool = False,
    ranks: bool = False,
    setting: bool = False,
    **words: Any,
) -> Any:
    """A field of `LayoutAxes`.

    Args:
        default: what a study means that does not name the axis.
        title: of `Words`; the others are made of it where they are not given.
        values: that may be chosen, where another table has them; else its type says so.
        later: the axis came after studies had been measured. A point's file and its id name it
            only where it is not at its default: what was measured before is not measured again.
        ranks: it multiplies the ranks of one replica.
        setting: it is a property of the work, as the sequence length is: layouts that differ in it
            do not compete.
        words: of `Words`.
    """
    name = words.get("name", f"{title} {{}}")
    short = words.get("short", name)
    own = {"name": name, "short": short, "label": short.replace(" ", ""), "column": title}
    facts = {
        "values": values,
        "later": later,
        "ranks": ranks,
        "setting": setting,
        "words": Words(title=title, **own | words),
    }
    return dataclasses.field(default=default, metadata=facts)


def _flag(name: str, short: str, label: str, **other: Any) -> Any:
    """An axis that is on or off, said only where it is on."""
    return _axis(False, other.pop("title", name), name=name, short=short, label=label, **other)


@dataclass(frozen=True, kw_only=True)
class LayoutAxes:
    """What a study may choose of a layout, in the order in which people say it.

    Sizes count ranks; batch sizes count sequences, never tokens.
    """

    tp: int = _axis(1, "tp", ranks=True, said="in names", leading=True)
    pp: int = _axis(1, "pp", ranks=True, said="in names", leading=True)
    cp: int = _axis(1, "cp", ranks=True, said="in names")
    # what the ranks of a cp group pass each other: heads for tokens, or keys and values around
    cp_style: CpStyle = _axis(
        "all_to_all", "cp style", later=True, name="{} cp", short="{}", label="cp-{}", within="cp"
    )
    # ranks of dp x cp that the experts of a layer are dealt to
    ep: int = _axis(1, "ep", later=True)
    routing: Routing = _axis(
        "balanced", "routing", values=tuple(ROUTINGS), later=True, setting=True,
        name="{} routing", short="{}",
    )  # fmt: skip
    pipeline_schedule: PipelineSchedule = _axis(
        "1f1b", "schedule", later=True, name="{}", said="in names", within="pp"
    )
    # model chunks per pipeline rank
    virtual_stages: int = _axis(
        1, "virtual stages", later=True, name="{} virtual stages", short="vs {}",
        label="virtual{}", column="virt.", within="pp",
    )  # fmt: skip
    # Megatron's: norms and dropout sharded inside the tp group
    sequence_parallel: bool = _flag("sequence parallel", "sp", "sp", column="seq. par.")
    zero_stage: ZeroStage = _axis(
        0, "ZeRO", short="Z{}", label="zero{}", said="always", leading=True
    )
    # null: all dp ranks share one copy
    zero_shard_size: int | None = _axis(
        None, "ZeRO shard", later=True, name="shard {}", short="sh {}", label="shard{}",
        column="shard",
    )  # fmt: skip
    optimizer_offload: OptimizerOffload = _axis(
        "none", "optimizer offload", later=True, name="optimizer on {}", short="offload",
        label="offload-{}", column="offload",
    )  # fmt: skip
    # of master weights and of both moments
    optimizer_precision: OptimizerPrecision = _axis(
        "fp32", "optimizer precision", later=True, name="{} optimizer", short="opt {}",
        label="opt-{}", column="opt. prec.",
    )  # fmt: skip
    micro_batch_size: int = _axis(
        1, "micro-batch", short="mb {}", label="mbs{}", column="mb", said="always"
    )
    activation_checkpointing: ActivationCheckpointing = _axis(
        "none", "checkpointing", name="{} checkpointing", short="ckpt", label="ckpt-{}",
        column="ckpt",
    )  # fmt: skip
    attention: Attention = _axis(
        "flash2", "attention", values=tuple(ATTENTION), name="{}", said="always"
    )
    fused_norm: bool = _flag("fused norm", "fn", "fused-norm")
    fused_rope: bool = _flag("fused rope", "fr", "fused-rope", later=True)
    fused_mlp: bool = _flag("fused mlp", "fm", "fused-mlp", later=True)
    fused_cross_entropy: bool = _flag(
        "fused cross-entropy", "fce", "fused-cross-entropy", later=True, column="fused CE"
    )
    compile: bool = _flag(
        "compiled", "comp", "compile", later=True, title="compile", column="compiled"
    )
    precision: Precision = _axis("bf16", "precision", name="{}", said="always")
    # of 8-bit products: a scale for each operand, each of its rows, or 32 elements of one (MXFP8)
    fp8_scaling: Fp8Scaling = _axis(
        "tensor", "fp8 scaling", later=True, name="scaled by {}", short="by {}",
        label="scaled-by-{}",
    )  # fmt: skip
    engine: Engine = _axis("deepspeed", "engine", values=tuple(ENGINES), later=True, name="{}")

    @property
    def setting_choices(self) -> tuple[Any, ...]:
        """What it chooses on the axes that belong to the setting: rivals have the same."""
        return tuple(getattr(self, name) for name in SETTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One line of the table, as values."""

    name: str
    kind: type  # of a value: int, bool or str
    values: tuple[Any, ...] | None  # that may be chosen; None: any count from 1 on
    optional: bool  # null is a choice too
    default: Any
    later: bool
    ranks: bool
    setting: bool
    words: Words

    def allows(self, value: object) -> bool:
        """Whether a study may say this value."""
        if value is None:
            return self.optional
        if self.values is None:
            return type(value) is int and value >= 1
        return any(value == each and type(value) is type(each) for each in self.values)

    def in_names(self, value: Any) -> bool:
        """Whether a layout's name says this value."""
        return value is not None and (self.words.said != "where chosen" or value != self.default)

    def in_label(self, value: Any) -> bool:
        """Whether a layout's label says this value; one that is not known is left out."""
        return value is not None and (self.words.said == "always" or value != self.default)

    @property
    def otherwise(self) -> str | None:
        """What a chart says where this is not chosen and the others' choice is not plain."""
        if self.words.said != "where chosen":
            return None
        return f"no {self.words.short.format('').strip()}"


def _of_field(each: "dataclasses.Field[Any]", hint: Any) -> Axis:
    optional = typing.get_origin(hint) in (types.UnionType, typing.Union)
    if optional:
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    facts = dict(each.metadata)
    values: tuple[Any, ...] | None = facts.pop("values") or typing.get_args(hint) or None
    kind = type(values[0]) if values else hint
    return Axis(
        name=each.name,
        kind=kind,
        values=(False, True) if kind is bool else values,
        optional=optional,
        default=each.default,
        **facts,
    )


def axes_of(table: type) -> dict[str, Axis]:
    """The axes of a class that has those of `LayoutAxes`, by name; its other fields are none."""
    hints = typing.get_type_hints(table)
    fields = (each for each in dataclasses.fields(table) if "words" in each.metadata)
    return {each.name: _of_field(each, hints[each.name]) for each in fields}


# Where the null of an optional count stands: it means all there are, more than any count.
_ALL = float(2**31)


def levels_of(axis: Axis) -> list[dict[str, Any]]:
    """The values of an axis that are no counts, with their place in order and their words.

    `words` and `short` are null where a value goes without saying.
    """
    texts = {"value": None, "level": "all", "place": _ALL, "words": None, "short": None}
    levels = [texts] if axis.optional else []
    for order, value in enumerate(axis.values or (), start=1):
        said = axis.in_names(value)
        levels.append(
            {
                "value": str(value).lower() if axis.kind is bool else str(value),
                "level": str(value) if axis.kind is not bool else "on" if value else "off",
                "place": float(order if axis.kind is str else value),
                "words": axis.words.name.format(value) if said else None,
                "short": axis.words.short.format(value) if said else None,
            }
        )
    return levels


AXES: dict[str, Axis] = axes_of(LayoutAxes)
DEFAULTS: dict[str, Any] = {name: axis.default for name, axis in AXES.items()}
REPLICA = tuple(name for name, axis in AXES.items() if axis.ranks)
SETTING = tuple(name for name, axis in AXES.items() if axis.setting)


def label_of(choices: Mapping[str, Any]) -> str:
    """A layout in words from its axes by name: `tp2 pp2 zero1 mbs4 flash2 bf16`.

    Degrees of 1 and the plain choices are left out, and what is null (not known). For people;
    nothing parses it.
    """
    return " ".join(
        axis.words.label.format(choices[name])
        for name, axis in AXES.items()
        if axis.in_label(choices[name])
    )


def facts_of(layout: LayoutAxes) -> dict[str, Any]:
    """Every field of a layout by name, later axes only where they are not at their default."""
    values = {each.name: getattr(layout, each.name) for each in dataclasses.fields(layout)}
    return {
        name: value
        for name, value in values.items()
        if not (name in AXES and AXES[name].later and value == AXES[name].default)
    }
