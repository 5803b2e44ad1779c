"""Every layout of a model on a number of GPUs that an engine can run."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from scaling.cluster.hardware import Cluster, gpu_named
from scaling.errors import InputError
from scaling.layout.axes import ActivationCheckpointing, Precision, ZeroStage
from scaling.layout.engines import ENGINES, engine_refusals, programs
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.clusters import cluster_named
from scaling.predict.read.features import Points
from scaling.predict.read.points import points_of_layouts
from scaling.predict.read.stacks import own_framework
from scaling.study.point import Point
from scaling.trainers.render import point_to_start

_CHECKPOINTING: tuple[ActivationCheckpointing, ...] = ("none", "selective", "full")
_ZERO: tuple[ZeroStage, ...] = (0, 1, 2, 3)
_MOST_TP, _MOST_STAGES, _MOST_MICRO_BATCH, _MOST_CP, _MOST_EP = 64, 64, 64, 16, 256
_CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 12)
# A rank of a cp group gets at least this many tokens: shorter pieces only add traffic.
_FEWEST_TOKENS_A_RANK = 2048

# Tokens of a step where no batch is given: at least as for Llama 2, at most as for Llama 3 405B
# (arXiv 2307.09288, 2407.21783), between them a sequence a GPU.
_LEAST_USUAL_TOKENS, _MOST_USUAL_TOKENS = 2**22, 2**24


def usual_batch(seq_length: int, gpus: int) -> int:
    """Sequences of a step where none are given: one a GPU, within 4 to 16 million tokens."""
    least, most = _LEAST_USUAL_TOKENS // seq_length, _MOST_USUAL_TOKENS // seq_length
    return max(least, min(gpus, most), 1)


@dataclass(frozen=True, kw_only=True)
class Search:
    """A model on so many GPUs of a cluster, and what all of its layouts share.

    model: its name; a model that was calibrated has a narrower interval.
    cluster: its name in `clusters`, or a GPU's for the vendor's reference node.
    global_batch_size: sequences of a step; `usual_batch` if None.
    precision: if None, bf16, or fp16 on a GPU that has no bf16.
    engine: whose layouts to search, or the program's that can be told them.
    setting: choices on axes that are the same in all layouts, where not the default.
    framework: the software; if None, the engine's own.
    """

    model: str
    shape: ModelShape
    cluster: str
    clusters: Mapping[str, Cluster]
    gpus: int
    seq_length: int = 4096
    global_batch_size: int | None = None
    precision: Precision | None = None
    engine: str = "deepspeed"
    setting: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    framework: str | None = None

    @cached_property
    def site(self) -> Cluster:
        """The cluster."""
        return cluster_named(self.cluster, self.clusters)

    @cached_property
    def hosts(self) -> Cluster:
        """The cluster as it is described: links of GPUs may join several of its hosts to a node."""
        return self.clusters.get(self.cluster, self.site)

    @cached_property
    def batch(self) -> int:
        """Sequences of a step."""
        return self.global_batch_size or usual_batch(self.seq_length, self.gpus)

    def check_size(self) -> None:
        """Refuse a number of GPUs that the cluster cannot give.

        Raises:
            InputError: it has fewer, or these are no whole nodes.
        """
        per_node, most = self.hosts.gpus_per_node, self.hosts.gpus_per_node * self.hosts.nodes
        said = f"--gpus {self.gpus}: cluster {self.cluster} has"
        if self.gpus > most:
            raise InputError(f"{said} {most} GPUs")
        if self.gpus > per_node and self.gpus % per_node:
            whole = self.gpus // per_node * per_node
            raise InputError(
                f"{said} nodes of {per_node} GPUs: give at most {per_node} or whole nodes, "
                f"e.g. {whole}"
            )

    def with_software(self, calibration: Calibration | None) -> "Search":
        """This search with the framework by which rows know the engine."""
        name = self.framework or own_framework(self.engine)
        stacks = None if calibration is None else calibration.stacks
        is_known = stacks is None or f"{name}|{self.cluster}" in stacks
        if self.framework is None and self.engine not in ENGINES and not is_known:
            name = self.engine  # as rows of its logs have it
        return dataclasses.replace(self, framework=name)

    def point(self, layout: Layout) -> Point:
        """The layout as a study would have it."""
        return point_to_start(
            self.model, self.shape, layout, cluster=self.cluster, gpu=self.hosts.gpu,
            gpus_per_node=self.hosts.gpus_per_node,
        )  # fmt: skip

    def points(self, layouts: Sequence[Layout]) -> Points:
        """The layouts as points.

        Raises:
            InputError: none of them can be predicted on this cluster.
        """
        n = len(layouts)
        points = points_of_layouts(
            layouts, [self.shape] * n, self.clusters, models=[self.model] * n,
            clusters=[self.cluster] * n, framework=self.framework,
        )  # fmt: skip
        if not points.groups:
            reason = points.note[0].removeprefix(f"cluster {self.cluster}: ")
            raise InputError(f"--cluster {self.cluster}: {reason}")
        return points

    @cached_property
    def on_one_gpu(self) -> Layout:
        """The plainest layout."""
        precision = self.precision or gpu_named(self.site.gpu).usual_precision
        compiled = precision == "fp8" and self.engine in ENGINES  # which refuse it otherwise
        attention = "math" if self.shape.family == "t5" else "flash2"
        stated: dict[str, Any] = {"compile": compiled, "attention": attention, **self.setting}
        return Layout(seq_length=self.seq_length, precision=precision, engine=self.engine, **stated)


def candidates(search: Search) -> Iterator[Layout]:
    """Every layout that divides the GPUs and the batch and is not refused."""
    if why_none(search) is not None:
        return
    shape, count, plain = search.shape, search.gpus, search.on_one_gpu
    layers = shape.num_layers + shape.num_encoder_layers
    sharded, whole = (
        set(engine_refusals(shape, dataclasses.replace(plain, tp=2, sequence_parallel=on)))
        for on in (True, False)
    )
    sharded_norms = sharded <= whole  # if the engine has them
    most_cp = max(search.seq_length // _FEWEST_TOKENS_A_RANK, 1)
    for tp, pp, cp in itertools.product(
        powers_of_two(min(count, _MOST_TP)),
        pipeline_depths(count),
        powers_of_two(min(most_cp, _MOST_CP, count)),
    ):
        if count % (tp * pp * cp) or pp > layers or shape.num_heads % tp:
            continue
        dp = count // (tp * pp * cp)
        sequences, rest = divmod(search.batch, dp)
        if rest:
            continue
        for micro_batch in powers_of_two(min(sequences, _MOST_MICRO_BATCH)):
            if sequences % micro_batch:
                continue
            layout = dataclasses.replace(
                plain,
                tp=tp,
                pp=pp,
                cp=cp,
                dp=dp,
                sequence_parallel=sharded_norms and tp > 1 and search.seq_length % (tp * cp) == 0,
                micro_batch_size=micro_batch,
                gradient_accumulation_steps=sequences // micro_batch,
            )
            if next(refusals(shape, layout), None) is None:
                yield from _variants(search, layout)


def why_none(search: Search) -> str | None:
    """Why no layout at all is a candidate, None if only sizes and batch do not go together."""
    first = None
    for zero in (1, 0, 2, 3):  # fp16 refuses some stages, a program others
        plain = dataclasses.replace(search.on_one_gpu, zero_stage=zero)
        of_engine = engine_refusals(search.shape, plain)
        reason = next(itertools.chain(refusals(search.shape, plain), of_engine), None)
        if reason is None:
            return None
        first = first or reason
    return first


def programs_for(search: Search) -> list[str]:
    """The engines and programs with a layout of the model that is not refused."""
    asked = {name: dataclasses.replace(search, engine=name) for name in programs()}
    return [name for name, one in asked.items() if why_none(one) is None]


def _variants(search: Search, layout: Layout) -> Iterator[Layout]:
    """The layout with every way to shard, recompute, interleave and distribute experts.

    Model chunks of a pipeline rank divide the layers evenly, where embedding and head may count as
    a layer each, as for Llama 3 (arXiv 2407.21783). Experts are distributed over dp x cp ranks.
    """
    layers, experts = search.shape.num_layers, search.shape.num_experts
    pp, ranks = layout.pp, layout.dp * layout.cp
    even = {n for n in _CHUNKS if not layers % (pp * n) or not (layers + 2) % (pp * n)}
    spread = powers_of_two(min(experts, ranks, _MOST_EP))
    for (zero, shard), chunks, ep, checkpointing in itertools.product(
        _sharding(search, layout),
        [n for n in _CHUNKS if n == 1 or (pp > 1 and n in even)],
        [n for n in spread if not experts % n and not ranks % n] or [1],
        _CHECKPOINTING,
    ):
        variant = dataclasses.replace(
            layout,
            zero_stage=zero,
            zero_shard_size=shard,
            virtual_stages=chunks,
            pipeline_schedule="interleaved" if chunks > 1 else "1f1b",
            ep=ep,
            activation_checkpointing=checkpointing,
        )
        if next(refusals(search.shape, variant), None) is None and _runs(search, variant):
            yield variant


def _sharding(search: Search, layout: Layout) -> Iterator[tuple[ZeroStage, int | None]]:
    """ZeRO stages, and stage 3 inside a node with copies across nodes, as (stage, shard size)."""
    for zero in _ZERO:
        yield zero, None
        # other stages lie on other nodes
        inside = search.site.gpus_per_node // (layout.tp * layout.cp)
        if zero == 3 and 1 < inside < layout.dp and layout.dp % inside == 0:
            yield zero, inside
        if layout.dp * layout.cp == 1 and _runs(
            search, dataclasses.replace(layout, zero_stage=zero)
        ):
            return  # nothing to shard over: further stages are the same


def _runs(search: Search, layout: Layout) -> bool:
    """Whether the engine trains the layout."""
    return next(engine_refusals(search.shape, layout), None) is None


def powers_of_two(limit: int) -> list[int]:
    """Powers of two up to a limit, 1 first."""
    return [2**k for k in range(limit.bit_length()) if 2**k <= limit]


def pipeline_depths(gpus: int) -> list[int]:
    """Numbers of pipeline stages that divide the GPUs."""
    return [d for d in range(1, min(gpus, _MOST_STAGES) + 1) if gpus % d == 0]
