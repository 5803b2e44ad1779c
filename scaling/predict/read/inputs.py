"""Layouts to predict as arrays, before anything is derived from them."""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.arrays import Flags, Floats, Strings
from scaling.layout.axes import AXES, DEFAULTS, ROUTINGS, PipelineSchedule
from scaling.layout.layout import Layout
from scaling.layout.optional_parts import PART_SIZES
from scaling.layout.shapes import ModelShape
from scaling.predict.read.stacks import OWN_STACKS

# Framework of this project's default engine, and of rows that state neither framework nor source.
OWN_FRAMEWORK = "scaling"
# Framework of other people's rows that do not state theirs.
UNNAMED_FRAMEWORK = "unnamed"

SCHEDULES = typing.get_args(PipelineSchedule)

SHAPE = (
    "num_layers", "num_encoder_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim",
    "ffn_hidden_size", "vocab_size", "gated_mlp", "tied_embeddings",
    "query_key_norm", "max_positions", *PART_SIZES,
)  # fmt: skip

# On-off axes added after the formulas, which take no account of them.
UNPREDICTED = tuple(name for name, axis in AXES.items() if axis.kind is bool and axis.added_later)
_AS_STATED = (
    "world_size", "tp", "pp", "cp", "dp", "ep", "micro_batch_size", "gradient_accumulation_steps",
    "seq_length", "zero_stage", "zero_shard_size", "virtual_stages",
)  # fmt: skip
# How rows are predicted that choose one of UNPREDICTED, if not as without it.
_PREDICTED_AS = {"compile": "with fused norms and nothing else of it"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One value per point, (n,); numbers are NaN where unknown."""

    model: Strings
    cluster: Strings
    framework: Strings
    shape: dict[str, Floats]  # by the names of SHAPE, flags as 0 and 1
    world_size: Floats
    tp: Floats
    pp: Floats
    cp: Floats
    dp: Floats
    micro_batch_size: Floats
    gradient_accumulation_steps: Floats
    seq_length: Floats
    gpus_per_node: Floats  # NaN: the cluster's
    zero_stage: Floats
    zero_shard_size: Floats  # NaN: all dp ranks
    virtual_stages: Floats  # model chunks per pipeline rank
    ring: Flags  # cp passes keys and values around instead of trading tokens for heads
    sequence_parallel: Flags
    fused_norm: Flags
    fused_mlp: Flags
    fused_cross_entropy: Flags
    offload: Flags
    short_states: Flags
    compiled: Flags
    schedule: Floats  # of the pipeline, as an index of SCHEDULES
    attention: Strings
    checkpointing: Strings
    recomputes: Flags  # recomputes what does not fit, because checkpointing was not stated
    precision: Strings
    ep: Floats
    etp: Floats  # ranks that share an expert
    imbalance: Floats  # tokens of the fullest expert over the mean
    setting: Strings  # choices on the axes that define the work, which rivals must share
    note: Strings  # why the point cannot be predicted, None if it can
    assumptions: tuple[str, ...]  # sentences about what was taken for granted
    point_id: Strings | None

    def __len__(self) -> int:
        return len(self.note)


def inputs_of_layouts(
    layouts: Sequence[Layout],
    shapes: Sequence[ModelShape],
    *,
    models: Sequence[str],
    clusters: Sequence[str],
    gpus_per_node: Sequence[float] | None = None,
    point_id: Sequence[str] | None = None,
) -> Inputs:
    """Inputs of `Layout` objects, each with its model's shape and name and its cluster's name."""
    n = len(layouts)

    def numbers(name: str) -> Floats:
        return np.array([getattr(one, name) for one in layouts], dtype=np.float64)

    def words(name: str) -> Strings:
        return np.array([getattr(one, name) for one in layouts], dtype=object)

    unique = {id(shape): shape for shape in shapes}  # most points share a few shapes
    index_by_id = {key: index for index, key in enumerate(unique)}
    index = np.array([index_by_id[id(shape)] for shape in shapes], dtype=np.int64)
    table = np.array(
        [[float(getattr(shape, name)) for name in SHAPE] for shape in unique.values()],
        dtype=np.float64,
    ).reshape(len(unique), len(SHAPE))
    frameworks = np.array([own_framework(each.engine) for each in layouts], object)
    return Inputs(
        model=np.array(models, dtype=object),
        cluster=np.array(clusters, dtype=object),
        framework=frameworks,
        shape={name: table[index, column] for column, name in enumerate(SHAPE)},
        **{name: numbers(name) for name in _AS_STATED},
        gpus_per_node=(
            np.full(n, np.nan) if gpus_per_node is None else np.array(gpus_per_node, np.float64)
        ),
        ring=words("cp_style") == "ring",
        sequence_parallel=numbers("sequence_parallel") > 0,
        # Inductor fuses a norm into one kernel
        fused_norm=(numbers("fused_norm") > 0) | (numbers("compile") > 0),
        fused_mlp=numbers("fused_mlp") > 0,
        fused_cross_entropy=numbers("fused_cross_entropy") > 0,
        offload=words("optimizer_offload") != "none",
        short_states=words("optimizer_precision") != "fp32",
        compiled=numbers("compile") > 0,
        schedule=schedule_codes(words("pipeline_schedule")),
        attention=words("attention"),
        checkpointing=words("activation_checkpointing"),
        recomputes=np.zeros(n, dtype=bool),
        precision=words("precision"),
        etp=ranks_per_expert(frameworks, numbers("tp"), numbers("ep")),
        imbalance=np.array([ROUTINGS[one.routing] for one in layouts], dtype=np.float64),
        setting=np.array(["|".join(map(str, one.setting_values)) for one in layouts], object),
        note=np.full(n, None, dtype=object),
        assumptions=tuple(left_out_sentences(_left_out_choices(layouts))),
        point_id=None if point_id is None else np.array(point_id, dtype=object),
    )


def ranks_per_expert(framework: Strings, tp: Floats, ep: Floats) -> Floats:
    """Ranks that share one expert, (n,): the tp group without ep, and in this project's engines.

    Other software (Megatron, FSDP) leaves experts whole where it deals them to ep ranks.
    """
    is_own = np.isin(framework.astype(str), [*OWN_STACKS])
    return np.where((ep > 1) & ~is_own, 1.0, tp)


def own_framework(engine: str) -> str:
    """The framework name of an engine of this project."""
    return OWN_FRAMEWORK if engine == DEFAULTS["engine"] else f"{OWN_FRAMEWORK} {engine}"


def schedule_codes(schedules: Strings) -> Floats:
    """Each schedule as an index of SCHEDULES, (n,)."""
    code = {name: float(index) for index, name in enumerate(SCHEDULES)}
    return np.array([code[name] for name in schedules.tolist()], dtype=np.float64)


def predictable_rows(note: Strings) -> Flags:
    """Mask of rows without a note against them, (n,)."""
    return np.array([reason is None for reason in note.tolist()], dtype=bool)


def left_out_sentences(chosen: Mapping[str, Flags]) -> list[str]:
    """A sentence per choice that predictions leave out; `chosen`: masks of its rows, (n,) each."""
    return [
        f"{name} is asked for in {int(rows.sum())} rows: predicted "
        + _PREDICTED_AS.get(name, "as without it")
        for name, rows in chosen.items()
        if rows.any()
    ]


def _left_out_choices(layouts: Sequence[Layout]) -> dict[str, Flags]:
    return {
        name: np.array([getattr(one, name) for one in layouts], dtype=bool) for name in UNPREDICTED
    }
