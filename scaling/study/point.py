"""A point of a study: the input of one job, its id, and what the job requests."""

import dataclasses
import hashlib
import json
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from scaling.layout.axes import AXES
from scaling.layout.layout import Layout
from scaling.layout.optional_parts import PART_DEFAULTS
from scaling.layout.shapes import ModelShape
from scaling.study.plan_file import Allocation
from scaling.study.short_steps import Accumulation

# Start-up and clean-up of a job, on top of its point's limit: mostly imports, possibly from a
# network file system.
STARTUP_MINUTES = 5

# Hexadecimal digits of the digest in an id: usually, and where two points of a grid share those.
DIGEST, LONG_DIGEST = 8, 32

_ADDED_LATER = PART_DEFAULTS | {n: axis.default for n, axis in AXES.items() if axis.added_later}

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

    @property
    def layout_key(self) -> Hashable:
        """Equal for the repeats of one layout."""
        return self.model, self.cluster, self.study_kind, self.layout

    @property
    def setting_key(self) -> Hashable:
        """Equal for layouts of one size that are compared with each other."""
        layout = self.layout
        kind = (self.model, self.cluster, self.study_kind)
        return *kind, layout.seq_length, layout.setting_values

    @property
    def allocation(self) -> Allocation:
        """The nodes and minutes that its job requests."""
        ranks_per_node = min(self.world_size, self.gpus_per_node)
        return Allocation(
            world_size=self.world_size,
            nodes=self.world_size // ranks_per_node,
            ranks_per_node=ranks_per_node,
            minutes=int(self.time_limit_s // 60) + STARTUP_MINUTES,
            repeat=self.repeat,
        )

    def to_json(self) -> str:
        """The content of points/<point_id>.json."""
        content: dict[str, Any] = {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
        content |= {"layout": stored_fields(self.layout), "shape": stored_fields(self.shape)}
        return json.dumps(content, indent=1) + "\n"


def point_id(readable: str, point: Point, digits: int) -> str:
    """The readable text, and a digest of everything that could change the point's measurement.

    The digest leaves out the time limit, so that a longer one does not repeat measurements. It also
    leaves out whether a short point runs in full, which predictions decide.
    """
    digested = [
        stored_fields(point.shape),
        stored_fields(point.layout),
        point.cluster,
        point.gpu,
        point.study_kind,
        point.seed,
        point.warmup_steps,
        point.measured_steps,
        point.repeat,
        *([point.gradient_clipping] if point.gradient_clipping else []),
        # options added later count only where they are used, so that older points stay valid
        *([{"at_least": point.at_least_steps, "until": point.until}] if point.until else []),
        *([{"accumulation": "short"}] if point.accumulation != "full" else []),
    ]
    digest = hashlib.sha256(json.dumps(digested, sort_keys=True).encode()).hexdigest()
    return f"{readable}-{digest[:digits]}"


def stored_fields(part: Layout | ModelShape) -> dict[str, Any]:
    """The fields that files and ids of points hold: without those added later at their default.

    So an added axis, or an added part of a model, leaves points alone that were measured before.
    """
    fields = ((field.name, getattr(part, field.name)) for field in dataclasses.fields(part))
    return {
        name: value
        for name, value in fields
        if name not in _ADDED_LATER or value != _ADDED_LATER[name]
    }


def point_from_json(text: str) -> Point:
    """The point that `to_json` wrote."""
    fields: dict[str, Any] = json.loads(text)
    shape, layout = ModelShape(**fields.pop("shape")), Layout(**fields.pop("layout"))
    return Point(shape=shape, layout=layout, **fields)


def micro_batch_twins(points: Iterable[Point]) -> dict[Hashable, list[Point]]:
    """Points that differ in the micro-batch only, the smallest first, by what they share."""
    twins: dict[Hashable, list[Point]] = {}
    for point in sorted(points, key=lambda one: one.layout.micro_batch_size):
        layout = point.layout
        sequences = layout.micro_batch_size * layout.gradient_accumulation_steps
        shared = dataclasses.replace(
            layout, micro_batch_size=1, gradient_accumulation_steps=sequences
        )
        key = (point.model, point.study_kind, point.cluster, point.repeat, shared)
        twins.setdefault(key, []).append(point)
    return twins
