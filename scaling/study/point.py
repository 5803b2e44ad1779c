"""A point of a study: the input of one job, its id, and the first columns of its row."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from scaling.cluster.hardware import gpu_named
from scaling.layout.axes import layout_label
from scaling.layout.layout import Layout
from scaling.layout.shapes import (
    ModelShape,
    hardware_flops_per_token,
    matmul_flops_per_token,
    model_flops_per_token,
)
from scaling.study.short_steps import Accumulation, is_worth_shortening
from scaling.study.time_limits import STARTUP_S

if TYPE_CHECKING:  # pydantic costs a quarter of a second, and the types are all we need
    from scaling.study.study import Study

# What stays fixed while GPUs are added. strong: the global batch; weak: the batch per GPU
StudyKind = Literal["strong", "weak"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Everything a job needs to measure one layout once."""

    study: str
    study_kind: StudyKind
    point_id: str
    repeat: int
    model: str
    shape: ModelShape
    cluster: str
    gpu: str
    gpus_per_node: int
    peak_flop_per_s: float | None
    layout: Layout
    seed: int
    warmup_steps: int
    measured_steps: int
    time_limit_s: float
    # files leave these out at their defaults, as files written before a field existed do
    keep_trace: bool = False  # of the profiler's window, next to the ranks' logs
    gradient_clipping: float = 0.0  # the norm above which gradients are scaled down; 0: never
    expected_step_s: float | None = None  # predicted, for time limits; None without a prediction
    # measuring stops between at_least_steps and measured_steps, once half the confidence interval
    # of the median step is at most `until` of the median; None: measured_steps are run
    at_least_steps: int | None = None
    until: float | None = None
    accumulation: Accumulation = "full"  # see short_steps

    @property
    def world_size(self) -> int:
        """Ranks, one per GPU."""
        return self.layout.world_size

    def to_json(self) -> str:
        """The content of points/<point_id>.json."""
        content = dataclasses.asdict(self)
        content |= {"layout": self.layout.stored_fields(), "shape": self.shape.stored_fields()}
        for field in dataclasses.fields(self):
            if content[field.name] == field.default:
                del content[field.name]
        return json.dumps(content, indent=1) + "\n"


def point_from_json(text: str) -> Point:
    """The point that `to_json` wrote."""
    fields: dict[str, Any] = json.loads(text)
    shape, layout = ModelShape(**fields.pop("shape")), Layout(**fields.pop("layout"))
    return Point(shape=shape, layout=layout, **fields)


_NO_COLUMNS = (  # fields that the row replaces by its own columns
    "shape", "layout", "measured_steps", "keep_trace", "expected_step_s", "at_least_steps", "until",
    "accumulation",
)  # fmt: skip


def point_columns(point: Point) -> dict[str, Any]:
    """The columns of the row that are known before the point runs, by name."""
    shape, layout = point.shape, point.layout
    columns = dataclasses.asdict(point)
    for name in _NO_COLUMNS:
        del columns[name]
    return {
        **columns,
        **dataclasses.asdict(shape),
        **dataclasses.asdict(layout),
        "world_size": point.world_size,
        "layout": layout.label,
        "global_batch_size": layout.global_batch_size,
        # a model without experts has no router
        **({} if shape.num_experts else {"router": None, "normalised_router": None}),
        "total_params": shape.total_params,
        "active_params": shape.active_params,
        "tokens_per_step": layout.global_batch_size * shape.tokens_per_sequence(layout.seq_length),
        "model_flops_per_token": model_flops_per_token(shape, layout.seq_length),
        "hardware_flops_per_token": hardware_flops_per_token(
            shape, layout.seq_length, layout.activation_checkpointing
        ),
        "matmul_flops_per_token": matmul_flops_per_token(shape, layout.seq_length),
    }


# Hexadecimal digits of the digest in an id: usually, and where two points of a grid share those.
DIGEST, LONG_DIGEST = 8, 32


def make_point(
    study: "Study", axes: dict[str, Any], layout: Layout, repeat: int, *, digits: int | None = None
) -> Point:
    """The point of one combination of axis values and one repeat.

    Its id is a readable name and a digest of everything that could change the measurement. The
    digest leaves out the time limit, so that a longer one does not repeat measurements, and whether
    a short point also runs in full, which predictions decide.
    """
    measure, cluster = study.measure, study.clusters[axes["cluster"]]
    is_short = measure.accumulation == "short" and can_be_short(study, layout)
    steps = measure.measured_steps
    digested = [
        study.models[axes["model"]].stored_fields(),
        layout.stored_fields(),
        axes["cluster"],
        cluster.gpu,
        study.kind,
        measure.seed,
        measure.warmup_steps,
        steps.at_most,
        repeat,
        *([measure.gradient_clipping] if measure.gradient_clipping else []),
        # options added later count only where they are used, so that older points stay valid
        *([{"at_least": steps.at_least, "until": steps.until}] if steps.until else []),
        *([{"accumulation": "short"}] if is_short else []),
    ]
    digest = hashlib.sha256(json.dumps(digested, sort_keys=True).encode()).hexdigest()
    readable = f"{axes['model']}-g{axes['world_size']}-{layout_label(axes).replace(' ', '-')}"
    return Point(
        study=study.name,
        study_kind=study.kind,
        point_id=f"{readable}-{digest[: digits or DIGEST]}",
        repeat=repeat,
        model=axes["model"],
        shape=study.models[axes["model"]],
        cluster=axes["cluster"],
        gpu=cluster.gpu,
        gpus_per_node=cluster.gpus_per_node,
        peak_flop_per_s=gpu_named(cluster.gpu).peak(layout.precision),
        layout=layout,
        seed=measure.seed,
        warmup_steps=measure.warmup_steps,
        measured_steps=steps.at_most,
        time_limit_s=measure.time_limit_s or STARTUP_S,  # replaced once step times are predicted
        keep_trace=measure.keep_trace,
        gradient_clipping=measure.gradient_clipping,
        at_least_steps=None if steps.until is None else steps.at_least,
        until=steps.until,
        accumulation="short" if is_short else "full",
    )


def can_be_short(study: "Study", layout: Layout) -> bool:
    """Whether short steps would save time for this layout in this study."""
    measure = study.measure
    return is_worth_shortening(
        layout, warmup=measure.warmup_steps, steps=measure.measured_steps.at_least
    )
