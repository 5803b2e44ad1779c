"""Every layout of a model on so many GPUs that an engine, or a named framework, has."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.layout.axes import ActivationCheckpointing, Precision, ZeroStage
from scaling.layout.engines import engine_refusals
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape

_CHECKPOINTING: tuple[ActivationCheckpointing, ...] = ("none", "selective", "full")
_ZERO: tuple[ZeroStage, ...] = (0, 1, 2, 3)
_MOST_TP, _MOST_STAGES, _MOST_MICRO_BATCH, _MOST_CP, _MOST_EP = 64, 64, 64, 16, 256
_CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 12)
# A rank of a cp group keeps so many tokens at least: shorter pieces only add traffic.
_FEWEST_TOKENS_A_RANK = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is searched.

    `engine`: whose refusals count; None: a framework of which only arithmetic is known, with every
    axis of the table that is predicted. `gpus_per_node` bounds what is sharded inside a node;
    `ring`: the framework's ranks of a cp group pass keys and values around. `setting`: the same
    choices in all layouts, on the axes that belong to the work.
    """

    shape: ModelShape
    gpus: int
    global_batch_size: int  # sequences
    seq_length: int
    precision: Precision
    engine: str | None
    gpus_per_node: int
    ring: bool = False
    setting: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def candidates(search: Search) -> Iterator[Layout]:
    """Every layout that divides the GPUs and the batch and that nothing refuses."""
    shape, count = search.shape, search.gpus
    layers = shape.num_layers + shape.num_encoder_layers
    for tp, pp, cp in itertools.product(
        powers(min(count, _MOST_TP)), stages_of(count), _context(search)
    ):
        if count % (tp * pp * cp) or pp > layers or shape.num_heads % tp:
            continue
        dp = count // (tp * pp * cp)
        if search.global_batch_size % dp:
            continue
        share = search.global_batch_size // dp
        for micro in powers(min(share, _MOST_MICRO_BATCH)):
            if share % micro:
                continue
            first = Layout(
                tp=tp,
                pp=pp,
                cp=cp,
                cp_style="ring" if cp > 1 and search.ring else "all_to_all",
                dp=dp,
                sequence_parallel=tp > 1 and search.seq_length % (tp * cp) == 0,
                micro_batch_size=micro,
                gradient_accumulation_steps=share // micro,
                seq_length=search.seq_length,
                attention="math" if shape.family == "t5" else "flash2",
                precision=search.precision,
                engine=search.engine or "deepspeed",
                **search.setting,
            )
            if next(refusals(shape, first), None) is None:
                yield from _variants(search, first)


def _variants(search: Search, first: Layout) -> Iterator[Layout]:
    """The layout with every way to shard, recompute, interleave and deal experts."""
    ways = itertools.product(
        _sharding(search, first), _chunks(search, first), _experts(search, first)
    )
    for (zero, shard), chunks, ep in ways:
        for again in _CHECKPOINTING:
            layout = dataclasses.replace(
                first,
                zero_stage=zero,
                zero_shard_size=shard,
                virtual_stages=chunks,
                pipeline_schedule="interleaved" if chunks > 1 else "1f1b",
                ep=ep,
                activation_checkpointing=again,
            )
            refused = next(refusals(search.shape, layout), None)
            if refused is None and search.engine is not None:
                refused = next(engine_refusals(search.shape, layout), None)
            if refused is None:
                yield layout


def _context(search: Search) -> list[int]:
    """Ranks that may share a sequence."""
    most = max(search.seq_length // _FEWEST_TOKENS_A_RANK, 1)
    return powers(min(most, _MOST_CP, search.gpus))


def _sharding(search: Search, layout: Layout) -> Iterator[tuple[ZeroStage, int | None]]:
    """ZeRO stages, and full sharding inside a node with copies across nodes."""
    for zero in _ZERO:
        if layout.dp * layout.cp == 1 and zero > 0:
            continue  # nothing to shard over: the same as stage 0
        if layout.pp > 1 and zero > 1 and search.engine is None:
            continue  # no framework here gathers weights behind a pipeline's micro-batches
        yield zero, None
        inside = search.gpus_per_node // (layout.tp * layout.cp * layout.pp)
        if zero == 3 and 1 < inside < layout.dp and layout.dp % inside == 0:
            yield zero, inside


def _chunks(search: Search, layout: Layout) -> Iterator[int]:
    """Model chunks a pipeline rank may hold: those that deal layers evenly.

    Embedding and head may count as a layer each, as Llama 3 was dealt (arXiv 2407.21783).
    """
    layers = search.shape.num_layers
    for chunks in _CHUNKS:
        whole = layout.pp * chunks
        if chunks == 1 or (layout.pp > 1 and (layers % whole == 0 or (layers + 2) % whole == 0)):
            yield chunks


def _experts(search: Search, layout: Layout) -> Iterator[int]:
    """Over how many ranks of dp x cp experts are dealt."""
    yield 1
    experts, ranks = search.shape.num_experts, layout.dp * layout.cp
    if experts > 1:
        yield from (
            ep
            for ep in powers(min(experts, ranks, _MOST_EP))[1:]
            if not experts % ep and not ranks % ep
        )


def powers(limit: int) -> list[int]:
    """Powers of two up to a limit, 1 first."""
    return [2**k for k in range(limit.bit_length()) if 2**k <= limit]


def stages_of(count: int) -> list[int]:
    """Numbers of pipeline stages that divide the GPUs."""
    return [d for d in range(1, min(count, _MOST_STAGES) + 1) if count % d == 0]
