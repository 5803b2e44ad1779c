"""Every layout of a model on a number of GPUs that an engine can run."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.layout.axes import ActivationCheckpointing, Precision, ZeroStage
from scaling.layout.engines import ENGINES, engine_refusals
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape

_CHECKPOINTING: tuple[ActivationCheckpointing, ...] = ("none", "selective", "full")
_ZERO: tuple[ZeroStage, ...] = (0, 1, 2, 3)
_MOST_TP, _MOST_STAGES, _MOST_MICRO_BATCH, _MOST_CP, _MOST_EP = 64, 64, 64, 16, 256
_CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 12)
# A rank of a cp group gets at least this many tokens: shorter pieces only add traffic.
_FEWEST_TOKENS_A_RANK = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The axes of the search.

    `gpus_per_node` bounds what is sharded inside a node. `setting`: choices on the axes that belong
    to the work, the same in all layouts.
    """

    shape: ModelShape
    gpus: int
    global_batch_size: int  # sequences
    seq_length: int
    precision: Precision
    engine: str
    gpus_per_node: int
    setting: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def candidates(search: Search) -> Iterator[Layout]:
    """Every layout that divides the GPUs and the batch and is not refused."""
    shape, count, plain = search.shape, search.gpus, _on_one_gpu(search)
    layers = shape.num_layers + shape.num_encoder_layers
    most_cp = max(search.seq_length // _FEWEST_TOKENS_A_RANK, 1)
    for tp, pp, cp in itertools.product(
        powers_of_two(min(count, _MOST_TP)),
        pipeline_depths(count),
        powers_of_two(min(most_cp, _MOST_CP, count)),
    ):
        if count % (tp * pp * cp) or pp > layers or shape.num_heads % tp:
            continue
        dp = count // (tp * pp * cp)
        if search.global_batch_size % dp:
            continue
        sequences = search.global_batch_size // dp
        for micro_batch in powers_of_two(min(sequences, _MOST_MICRO_BATCH)):
            if sequences % micro_batch:
                continue
            layout = dataclasses.replace(
                plain,
                tp=tp,
                pp=pp,
                cp=cp,
                dp=dp,
                sequence_parallel=tp > 1 and search.seq_length % (tp * cp) == 0,
                micro_batch_size=micro_batch,
                gradient_accumulation_steps=sequences // micro_batch,
            )
            if next(refusals(shape, layout), None) is None:
                yield from _variants(search, layout)


def why_none(search: Search) -> str | None:
    """Why no layout at all is a candidate, None if only sizes and batch do not go together."""
    plain = dataclasses.replace(_on_one_gpu(search), zero_stage=1)  # which no precision refuses
    reasons = itertools.chain(refusals(search.shape, plain), engine_refusals(search.shape, plain))
    return next(reasons, None)


def _on_one_gpu(search: Search) -> Layout:
    compiled = search.precision == "fp8" and search.engine in ENGINES  # which refuse it otherwise
    stated: dict[str, Any] = {"compile": compiled, **search.setting}
    return Layout(
        seq_length=search.seq_length,
        attention="math" if search.shape.family == "t5" else "flash2",
        precision=search.precision,
        engine=search.engine,
        **stated,
    )


def _variants(search: Search, layout: Layout) -> Iterator[Layout]:
    """The layout with every way to shard, recompute, interleave and distribute experts."""
    for (zero, shard), chunks, ep, checkpointing in itertools.product(
        _sharding(search, layout), _chunks(search, layout), _ep(search, layout), _CHECKPOINTING
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
        inside = search.gpus_per_node // (layout.tp * layout.cp)  # other stages lie on other nodes
        if zero == 3 and 1 < inside < layout.dp and layout.dp % inside == 0:
            yield zero, inside
        if layout.dp * layout.cp == 1 and _runs(
            search, dataclasses.replace(layout, zero_stage=zero)
        ):
            return  # nothing to shard over: further stages are the same


def _runs(search: Search, layout: Layout) -> bool:
    """Whether the engine trains the layout."""
    return next(engine_refusals(search.shape, layout), None) is None


def _chunks(search: Search, layout: Layout) -> Iterator[int]:
    """Model chunks of a pipeline rank that divide the layers evenly.

    Embedding and head may count as a layer each, as for Llama 3 (arXiv 2407.21783).
    """
    layers = search.shape.num_layers
    for chunks in _CHUNKS:
        total = layout.pp * chunks
        if chunks == 1 or (layout.pp > 1 and (layers % total == 0 or (layers + 2) % total == 0)):
            yield chunks


def _ep(search: Search, layout: Layout) -> Iterator[int]:
    """Numbers of dp x cp ranks over which experts can be distributed."""
    yield 1
    experts, ranks = search.shape.num_experts, layout.dp * layout.cp
    if experts > 1:
        for ep in powers_of_two(min(experts, ranks, _MOST_EP))[1:]:
            if not experts % ep and not ranks % ep:
                yield ep


def powers_of_two(limit: int) -> list[int]:
    """Powers of two up to a limit, 1 first."""
    return [2**k for k in range(limit.bit_length()) if 2**k <= limit]


def pipeline_depths(gpus: int) -> list[int]:
    """Numbers of pipeline stages that divide the GPUs."""
    return [d for d in range(1, min(gpus, _MOST_STAGES) + 1) if gpus % d == 0]
