"""Plan the probes for a study: its GEMMs, its attention, and the group shapes its layouts use.

Pure. A rank reads the plan from a file and runs its tasks in order.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from scaling.layout.axes import Attention, Precision
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.record.probe_row import COLLECTIVES, Collective
from scaling.study.plan_file import Allocation
from scaling.study.point import Point

STARTUP_MINUTES = 10  # of a probe, on top of its limit
KIB, MIB, GIB = 2**10, 2**20, 2**30

GroupName = Literal["node", "world", "node_pair", "tp", "cp", "data", "shard", "pp"]

# The collectives that training runs in each kind of group (scaling/train).
_USED_IN: dict[str, tuple[Collective, ...]] = {
    "tp": ("all_reduce", "all_gather", "reduce_scatter"),
    "cp": ("all_to_all",),
    "data": ("all_reduce", "all_gather", "reduce_scatter", "broadcast"),
    "shard": ("all_gather",),  # of ZeRO-3's secondary partition (hpZ)
    "pp": ("send_recv",),
    "node": COLLECTIVES,
    "world": COLLECTIVES,
    "node_pair": ("send_recv",),
}


class Limits(NamedTuple):
    """The sizes to probe. They are small on a CPU, where ranks share one machine."""

    messages: tuple[int, ...]  # bytes
    squares: tuple[int, ...]  # m = n = k of the GEMMs that show the best rate
    copies: tuple[int, ...]  # bytes


_GPU = Limits(
    messages=tuple(KIB * 4**power for power in range(12)),  # 1 KiB to 4 GiB
    squares=(1024, 2048, 4096, 8192, 16384),
    copies=(MIB, 16 * MIB, 256 * MIB, GIB),
)
_CPU = Limits(
    messages=(KIB, 16 * KIB, 256 * KIB, 4 * MIB),
    squares=(64, 128, 256, 512),
    copies=(MIB, 64 * MIB),  # the first fits a cache
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Groups of one shape that tile the ranks: `ranks` ranks each, `stride` apart.

    `first` is the lowest rank of the first group. With tp innermost, then cp, dp and pp outermost,
    the groups of a layout have these (ranks, stride): tp (tp, 1), cp (cp, tp), data (cp * dp, tp),
    shard (cp * zero_shard_size, tp), pp (pp, tp * cp * dp).
    """

    name: GroupName
    ranks: int
    stride: int
    first: int = 0
    at_once: bool = False  # probe all groups at once, else only the first

    def has_same_ranks(self, other: "Group") -> bool:
        """Whether both have the same groups of ranks."""
        return (self.ranks, self.stride, self.first) == (other.ranks, other.stride, other.first)

    def members(self, world_size: int) -> list[tuple[int, ...]]:
        """The ranks of each group that takes part."""
        span = self.ranks * self.stride
        groups = [
            tuple(range(start + offset, start + offset + span, self.stride))
            for start in range(self.first, world_size - span + 1, span)
            for offset in range(self.stride)
        ]
        return groups if self.at_once else groups[:1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to measure. Fields that do not belong to its kind are None."""

    kind: str  # a ProbeKind
    precision: Precision = "fp32"
    m: int | None = None
    n: int | None = None
    k: int | None = None
    attention: Attention | None = None
    batch_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    seq_length: int | None = None
    group: Group | None = None
    message_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """Everything the ranks of a probe need."""

    cluster: str
    gpu: str
    gpus_per_node: int  # that it uses
    world_size: int
    time_limit_s: float  # no task starts after it
    tasks: tuple[Task, ...]

    @property
    def digest(self) -> str:
        """A hash of the whole plan."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @property
    def allocation(self) -> Allocation:
        """The nodes and minutes that its job requests."""
        return Allocation(
            world_size=self.world_size,
            nodes=self.world_size // self.gpus_per_node,
            ranks_per_node=self.gpus_per_node,
            minutes=int(self.time_limit_s // 60) + STARTUP_MINUTES,
        )

    def to_json(self) -> str:
        """The text of a plan's file."""
        return json.dumps(dataclasses.asdict(self)) + "\n"


def plan_from_json(text: str) -> ProbePlan:
    """The plan that `to_json` wrote."""
    fields: dict[str, Any] = json.loads(text)
    tasks = tuple(
        Task(**{**task, "group": Group(**task["group"]) if task["group"] else None})
        for task in fields.pop("tasks")
    )
    return ProbePlan(tasks=tasks, **fields)


def probe_plan(points: Sequence[Point], *, world_size: int, time_limit_s: float) -> ProbePlan:
    """The probes on `world_size` ranks for these points: devices first, then groups.

    Args:
        points: at least one, all of one cluster.
        world_size: ranks of the probe; larger group shapes are left out.
        time_limit_s: seconds after which no further task starts.
    """
    first = points[0]
    limits = _CPU if first.gpu == "cpu" else _GPU
    per_node = min(first.gpus_per_node, world_size)
    messages = [
        Task(kind=kind, group=group, message_bytes=size)
        for group in _groups((point.layout for point in points), world_size, per_node)
        for kind in _USED_IN[group.name]
        for size in limits.messages
    ]
    return ProbePlan(
        cluster=first.cluster, gpu=first.gpu, gpus_per_node=per_node, world_size=world_size,
        time_limit_s=time_limit_s, tasks=(*dict.fromkeys(_device_tasks(points, limits)), *messages),
    )  # fmt: skip


def _device_tasks(points: Sequence[Point], limits: Limits) -> Iterator[Task]:
    # of 8-bit layouts the 16-bit products: attention and head run so, and torch has no 8-bit GEMM
    for precision in dict.fromkeys(point.layout.model_precision for point in points):
        for size in limits.squares:
            yield Task(kind="gemm", precision=precision, m=size, n=size, k=size)
    for size in limits.copies:
        yield Task(kind="memory_copy", message_bytes=size)
    if any(point.layout.optimizer_offload == "cpu" for point in points):
        yield Task(kind="host_update", message_bytes=limits.copies[-1] // 4)
    for point in points:
        yield _attention_task(point.shape, point.layout)
    for point in points:
        yield from _gemm_tasks(point.shape, point.layout)


def _attention_task(shape: ModelShape, layout: Layout) -> Task:
    """A rank's causal attention: under cp all tokens of its heads, in a ring its tokens of all."""
    in_ring = layout.cp_style == "ring"
    ranks = layout.tp if in_ring else layout.tp * layout.cp
    return Task(
        kind="attention",
        precision=layout.model_precision,
        attention=layout.attention,
        batch_size=layout.micro_batch_size,
        num_heads=shape.num_heads // ranks,
        num_kv_heads=shape.num_kv_heads // ranks,
        head_dim=shape.head_dim,
        seq_length=layout.seq_length // layout.cp if in_ring else layout.seq_length,
    )


def _gemm_tasks(shape: ModelShape, layout: Layout) -> Iterator[Task]:
    """The forward GEMMs of a layer and of the head on one rank, weights split by tp."""
    tokens = layout.micro_batch_size * layout.seq_length // layout.cp
    inner = shape.ffn_hidden_size // layout.tp
    queries, keys = (n * shape.head_dim // layout.tp for n in (shape.num_heads, shape.num_kv_heads))
    head, h = shape.vocab_size // layout.tp, shape.hidden_size
    # in this order: a plan's digest tells whether a study was probed
    for n, k in ((queries, h), (keys, h), (h, queries), (inner, h), (h, inner), (head, h)):
        yield Task(kind="gemm", precision=layout.model_precision, m=tokens, n=n, k=k)


def _groups(layouts: Iterable[Layout], world_size: int, per_node: int) -> list[Group]:
    """Each shape once: whole nodes, all ranks, pairs of nodes, then the layouts' groups.

    Shapes with the same ranks follow each other, so that their groups are made once.
    """
    shapes: dict[tuple[int, int, int], dict[GroupName, None]] = {}

    def add(name: GroupName, ranks: int, stride: int, first: int = 0) -> None:
        if ranks > 1 and ranks * stride <= world_size:
            shapes.setdefault((ranks, stride, first), {})[name] = None

    add("node", per_node, 1)
    if world_size > per_node:
        add("world", world_size, 1)
        add("node_pair", 2, per_node)
    if world_size > 2 * per_node:  # so that every node is paired with both neighbours
        add("node_pair", 2, per_node, per_node)
    for layout in layouts:
        tp, data = layout.tp, layout.cp * layout.dp
        add("tp", tp, 1)
        add("cp", layout.cp, tp)
        add("data", data, tp)
        if layout.zero_shard_size not in (None, layout.dp):
            add("shard", layout.cp * (layout.zero_shard_size or 1), tp)
        add("pp", layout.pp, tp * data)
    groups = []
    for (ranks, stride, first), names in shapes.items():
        for name in names:
            every = Group(name=name, ranks=ranks, stride=stride, first=first, at_once=True)
            count = len(every.members(world_size))
            # all nodes at once show each node's own rate, and all pairs each pair's
            if count == 1 or name not in ("node", "node_pair"):
                groups.append(dataclasses.replace(every, at_once=False))
            if count > 1:
                groups.append(every)
    return groups
