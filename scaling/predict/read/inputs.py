"""What the predictor is asked: layouts as arrays, wherever they come from."""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats, Strings
from scaling.layout.axes import AXES, DEFAULTS, ROUTINGS, PipelineSchedule
from scaling.layout.layout import Layout
from scaling.layout.optional_parts import PART_SIZES
from scaling.layout.shapes import ModelShape

# Rows without a framework column are this project's own: this name is that of its first engine.
OWN_FRAMEWORK = "scaling"
# Software of others of which a table says nothing.
UNNAMED = "unnamed"

SCHEDULES = typing.get_args(PipelineSchedule)

SHAPE = (
    "num_layers", "num_encoder_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim",
    "ffn_hidden_size", "vocab_size", "gated_mlp", "tied_embeddings",
    "query_key_norm", "max_positions", *PART_SIZES,
)  # fmt: skip

# Choices that came after the formulas and that none of them knows: on or off, later.
UNPREDICTED = tuple(name for name, axis in AXES.items() if axis.kind is bool and axis.added_later)
_AS_STATED = (
    "world_size", "tp", "pp", "cp", "dp", "ep", "micro_batch_size", "gradient_accumulation_steps",
    "seq_length", "zero_stage", "zero_shard_size", "virtual_stages",
)  # fmt: skip
_PREDICTED_AS = {"compile": "with fused norms and nothing else of it"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One value per point, (n,); float64 with NaN where nobody said, unless noted otherwise.

    `shape` has the columns of SHAPE (flags as 0 and 1). `gpus_per_node` NaN: the cluster's own;
    `zero_shard_size` NaN: all dp ranks. `virtual_stages` are the model chunks of a pipeline rank,
    `ring` that cp passes keys and values around instead of trading tokens for heads, `recomputes`
    that the software recomputes what does not fit, because nobody said what is recomputed;
    `unfused` that a table shows it to run norms as chains of operators. `etp`: ranks that share an
    expert; `imbalance`: tokens of the fullest expert over the mean; `schedule`: of the pipeline,
    its place in SCHEDULES; `setting`: choices on the axes that belong to the work. `note` says why
    a point cannot be predicted, None if it can; `assumptions` are sentences about what was taken
    for granted.
    """

    model: Strings
    cluster: Strings
    framework: Strings
    shape: dict[str, Floats]
    world_size: Floats
    tp: Floats
    pp: Floats
    cp: Floats
    dp: Floats
    micro_batch_size: Floats
    gradient_accumulation_steps: Floats
    seq_length: Floats
    gpus_per_node: Floats
    zero_stage: Floats
    zero_shard_size: Floats
    virtual_stages: Floats
    ring: Flags
    sequence_parallel: Flags
    fused_norm: Flags
    fused_mlp: Flags
    fused_cross_entropy: Flags
    offload: Flags
    short_states: Flags
    compiled: Flags
    schedule: Floats
    attention: Strings
    checkpointing: Strings
    recomputes: Flags
    unfused: Flags
    precision: Strings
    ep: Floats
    etp: Floats
    imbalance: Floats
    setting: Strings
    note: Strings
    assumptions: tuple[str, ...]
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
    framework: str | None = None,
    point_id: Sequence[str] | None = None,
) -> Inputs:
    """Layouts that exist in memory, each with its model's shape and name and its cluster's name.

    Without a framework each is trained by this project, under the engine it names.
    """
    n = len(layouts)

    def numbers(name: str) -> Floats:
        return np.array([getattr(one, name) for one in layouts], dtype=np.float64)

    def words(name: str) -> Strings:
        return np.array([getattr(one, name) for one in layouts], dtype=object)

    different = {id(shape): shape for shape in shapes}  # most points share a few shapes
    place = {key: index for index, key in enumerate(different)}
    which = np.array([place[id(shape)] for shape in shapes], dtype=np.int64)
    table = np.array(
        [[float(getattr(shape, name)) for name in SHAPE] for shape in different.values()],
        dtype=np.float64,
    ).reshape(len(different), len(SHAPE))
    return Inputs(
        model=np.array(models, dtype=object),
        cluster=np.array(clusters, dtype=object),
        framework=np.array([framework or own_framework(each.engine) for each in layouts], object),
        shape={name: table[which, column] for column, name in enumerate(SHAPE)},
        **{name: numbers(name) for name in _AS_STATED},
        gpus_per_node=(
            np.full(n, np.nan) if gpus_per_node is None else np.array(gpus_per_node, np.float64)
        ),
        ring=words("cp_style") == "ring",
        sequence_parallel=numbers("sequence_parallel") > 0,
        # Inductor makes one kernel of a norm's chain
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
        unfused=np.zeros(n, dtype=bool),
        precision=words("precision"),
        etp=numbers("tp"),  # an expert is cut as a dense feed-forward is
        imbalance=np.array([ROUTINGS[one.routing] for one in layouts], dtype=np.float64),
        setting=np.array(["|".join(map(str, one.setting_values)) for one in layouts], object),
        note=np.full(n, None, dtype=object),
        assumptions=tuple(without(_left_out(layouts))),
        point_id=None if point_id is None else np.array(point_id, dtype=object),
    )


def own_framework(engine: str) -> str:
    """The framework that an engine of this project is to the prediction."""
    return OWN_FRAMEWORK if engine == DEFAULTS["engine"] else f"{OWN_FRAMEWORK} {engine}"


def schedule_codes(schedules: Strings) -> Floats:
    """The place of each in SCHEDULES, (n,)."""
    code = {name: float(place) for place, name in enumerate(SCHEDULES)}
    return np.array([code[name] for name in schedules.tolist()], dtype=np.float64)


def usable_rows(note: Strings) -> Flags:
    """Rows nothing speaks against, bool (n,)."""
    return np.array([reason is None for reason in note.tolist()], dtype=bool)


def without(chosen: Mapping[str, Flags]) -> list[str]:
    """A sentence for every choice, bool (n,), that a prediction leaves out of account in part."""
    return [
        f"{name} is asked for in {int(rows.sum())} rows: predicted "
        + _PREDICTED_AS.get(name, "as without it")
        for name, rows in chosen.items()
        if rows.any()
    ]


def _left_out(layouts: Sequence[Layout]) -> dict[str, Flags]:
    chosen = {
        name: np.array([getattr(one, name) for one in layouts], dtype=bool) for name in UNPREDICTED
    }
    other = [one.pipeline_schedule not in ("1f1b", "interleaved") for one in layouts]
    return {"pipeline_schedule": np.array(other, dtype=bool), **chosen}
