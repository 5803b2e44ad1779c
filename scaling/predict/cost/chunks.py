"""Which layers a rank holds, and how many micro-batches of them wait for their backward.

A rank of torch's pipelines holds one chunk under 1F1B, `virtual` ones, every pp-th, under
interleaved schedules, two in the shape of a V. What is on its way there is counted from torch's own
tables of actions (torch.distributed.pipelining.schedules); a test compares the two.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.stages import ends_of_two_kinds, stages_of
from scaling.predict.read.features import Features, Group
from scaling.predict.read.inputs import SCHEDULES

ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, ZBV, DUALPIPEV = range(len(SCHEDULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """The chunks of one rank together, (n,) or the same of all.

    Of torch's pipelines alone: `passes` sums over chunks the micro-batches of `flying`. Where
    backward has two parts, `left` is what `flying` is when most gradients of weights wait, and
    `split` the part of it whose gradients do, `split_heads` the micro-batches whose head's gradient
    does. `received` are messages that a micro-batch brings: what enters each chunk but the first
    and the gradient of what leaves each but the last; `deferred` those of them whose gradients stay
    for the step, where backward is in two parts.
    """

    layers: Floats
    tables: Floats | float  # vocabulary matrices
    flying: Floats  # sums over chunks layers times the micro-batches whose activations wait
    staying: Floats | float  # share of it when the first layer's backward of the last is done
    messages: Floats | float  # hidden states of a micro-batch that are kept or on their way
    looks_up: Flags | bool
    has_head: Flags | bool
    rounds: Floats | float = 1.0  # micro-batches that begin before each weight has a gradient
    outputs: Floats | float = 0.0  # buffers of logits
    positions: Floats | float = 0.0  # tables of an encoder-decoder's that recomputing reads
    passes: Floats | float = 1.0
    left: Floats | float = 0.0
    split: Floats | float = 0.0
    split_heads: Floats | float = 0.0
    received: Floats | float = 0.0
    deferred: Floats | float = 0.0
    dense: Floats | None = None  # layers without experts; None: as many as on average


def whole_model(f: Features) -> Chunks:
    """All layers on every rank."""
    return Chunks(
        layers=f.num_layers, tables=f.embeddings, flying=f.num_layers, staying=0.0, messages=0.0,
        looks_up=True, has_head=True, positions=2.0,
    )  # fmt: skip


def deepspeeds_chunks(group: Group, f: Features) -> tuple[Chunks, Chunks]:
    """Of the first and the last rank; the layouts all run 1F1B or all DualPipeV."""
    is_1f1b = (f.schedule == ONE_F_ONE_B).all()
    return _ends_of_1f1b(group, f) if is_1f1b else _ends_of_v(f)


def _ends_of_1f1b(group: Group, f: Features) -> tuple[Chunks, Chunks]:
    """min(accumulation, pp) micro-batches on their way, and one."""
    stages, rounds = stages_of(f, group.stack), np.minimum(f.accumulation, f.pp)
    # tp ranks keep a part each of what came in, where all of them have the same
    kept = np.where(f.attentions > 1, 2.0, np.where(f.sequence_parallel, 1.0, 1 / f.tp))
    first = Chunks(
        layers=stages.first, tables=1.0, flying=rounds * stages.first, staying=1 - 1 / rounds,
        messages=rounds * kept + 1.5, looks_up=True, has_head=False, rounds=rounds,
        positions=rounds,
    )  # fmt: skip
    last = Chunks(
        layers=stages.last, tables=1.0, flying=stages.last, staying=1.0 * (stages.last == 0),
        messages=kept + 1.5, looks_up=False, has_head=True, positions=1.0,
        outputs=np.minimum(f.accumulation, 2.0),
    )  # fmt: skip
    return first, last


def _ends_of_v(f: Features) -> tuple[Chunks, Chunks]:
    """The first and the last rank of DualPipeV, each with a stage on the way out and one back.

    DeepSpeed deals layers evenly to 2 pp stages, and first the ones left over. Rank r holds
    2 pp - r micro-batches on their way out and r + 1 on their way back
    (deepspeed/runtime/pipe/schedule.py, DualPipeVSchedule.steps, from step 4 on), of each what its
    stages took and what they gave.
    """
    stages = 2 * f.pp
    fewest, fuller = np.divmod(f.num_layers, stages)

    def of(rank: Floats | float, looks_up: bool) -> Chunks:
        out, back = fewest + (rank < fuller), fewest + (stages - 1 - rank < fuller)
        going, coming = np.minimum(stages - rank, f.accumulation - 1), rank + 1.0
        flying = going * out + coming * back
        return Chunks(
            layers=out + back,
            tables=f.embeddings * looks_up,
            flying=flying,
            staying=1 - back / np.maximum(flying, 1.0),
            messages=(going + coming) * (1.0 if looks_up else 2.0),
            looks_up=looks_up,
            has_head=looks_up,
            rounds=0.0,
            outputs=1.0 * looks_up,
        )

    return of(0.0, True), of(f.pp - 1, False)


def in_flight(f: Features, rank: Floats, chunk: int) -> Floats:
    """Micro-batches whose activations `rank` holds at most of its chunk, (n,).

    With p ranks and v chunks: 1F1B p - rank. Interleaved 2 (p - rank - 1) + (v - 1) p passes before
    the first backward and the one that follows, zero bubble p - rank - 1 of them and as many more
    as its weights' gradients wait; rounds of p go to one chunk after the other. ZBV 2p - 1 - rank
    and rank + 1. DualPipeV the same and one more.
    """
    p, v, s = f.pp, f.virtual, f.schedule
    ahead = np.where(s == INTERLEAVED, 2 * (p - rank - 1) + (v - 1) * p + 1, v * p)
    in_rounds = np.where(
        chunk == 0, np.where(ahead > v * p, ahead - (v - 1) * p, np.minimum(ahead, p)),
        np.clip(ahead - chunk * p, 0.0, p),
    )  # fmt: skip
    in_v = np.where(chunk == 0, 2 * p - 1 - rank + (s == DUALPIPEV), rank + 1)
    most = np.where(s >= ZBV, in_v, np.where(s == ONE_F_ONE_B, p - rank, in_rounds))
    flying: Floats = np.minimum(most, f.accumulation)
    return flying


def torchs_chunks(group: Group, f: Features) -> Iterator[Chunks]:
    """Of the first, the second and the last rank, as far as any of the layouts has them."""
    each = np.where(f.schedule >= ZBV, 2.0, f.virtual)  # chunks of a rank
    chunks = f.pp * each
    dealt = stages_of(dataclasses.replace(f, pp=chunks), group.stack)
    fuller = f.num_layers - dealt.last - dealt.first * (chunks - 1)
    mixed = (f.expert_share > 0) & (f.expert_share < 1)
    ends = ends_of_two_kinds(f, chunks) if mixed.any() else None
    row, dense_layers = np.arange(len(f)), (1 - f.expert_share) * f.num_layers
    ranks = (np.zeros(len(f)), np.minimum(1.0, f.pp - 1), f.pp - 1)
    for rank in ranks[: int(f.pp.max(initial=1))]:
        layers, flying, passes, left, split, heads = np.zeros((6, len(f)))
        received, deferred, dense = np.zeros((3, len(f)))
        looks_up, has_head = np.zeros((2, len(f)), dtype=bool)
        for chunk in range(int(each.max(initial=1))):
            there = chunk < each
            straight = rank + chunk * f.pp
            index = np.where((f.schedule >= ZBV) & (chunk == 1), chunks - 1 - rank, straight)
            first, last = index == 0, index == chunks - 1
            count = np.where(last, dealt.last, dealt.first + (index >= chunks - 1 - fuller)) * there
            if ends is not None:
                place = np.minimum(index, chunks - 1).astype(int)
                before, until = ends[row, place], ends[row, place + 1]
                count = np.where(mixed, (until - before) * there, count)
                of_dense = np.clip(dense_layers - before, 0.0, until - before) * there
                dense = dense + np.where(mixed, of_dense, (1 - f.expert_share) * count)
            micro_batches = in_flight(f, rank, chunk) * there
            layers = layers + count
            flying = flying + count * micro_batches
            passes = passes + micro_batches
            # ZBV ends with pp + rank passes, of which it puts off 2 rank + 1 weights' gradients
            at_end = np.where(f.schedule == ZBV, f.pp if chunk == 0 else rank, micro_batches)
            last_waits = (f.schedule == ZERO_BUBBLE) & (chunk == each - 1)
            waiting = np.where(f.schedule == ZBV, rank + (chunk == 0), rank * last_waits)
            left = left + count * np.minimum(at_end, micro_batches)
            put_off = np.minimum(waiting, micro_batches) * there
            split, heads = split + count * put_off, heads + last * put_off
            received = received + (~first * 1.0 + ~last) * there
            in_parts = (f.schedule == ZERO_BUBBLE) | (f.schedule == ZBV)
            turn = (f.schedule == ZBV) & (index == f.pp)  # its gradient takes a buffer's place
            deferred = deferred + (~first & there & in_parts & ~turn)
            looks_up |= first & there
            has_head |= last & there
        # others than the one whose backward is over; no chunk has more than are left of the step
        others = np.minimum(passes, (f.accumulation - 1) * each) - 1
        kept_for_step = deferred * f.accumulation - np.where(deferred > 0, passes, 0.0)
        yield Chunks(
            layers=layers,
            tables=looks_up * 1.0 + has_head,
            flying=flying,
            staying=np.maximum(others, 0.0) / passes,
            messages=passes + np.maximum(kept_for_step, 0.0),
            looks_up=looks_up,
            has_head=has_head,
            outputs=1.0,
            passes=passes,
            left=left,
            split=split,
            split_heads=heads,
            received=received,
            deferred=deferred,
            dense=None if ends is None else dense,
        )
