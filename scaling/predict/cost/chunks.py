"""Which chunks of a model a rank of torch's pipelines holds, and how many micro-batches of each.

A rank holds one chunk under 1F1B, `virtual` ones, every pp-th, under interleaved schedules, two in
the shape of a V. What is on its way is counted from torch's own tables of actions
(torch.distributed.pipelining.schedules); a test compares the two.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.stages import stages_of
from scaling.predict.read.features import Features, Group
from scaling.predict.read.inputs import SCHEDULES

ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, ZBV, DUALPIPEV = range(len(SCHEDULES))


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of one pipeline rank together, (n,).

    `flying` sums, over chunks, layers times the micro-batches whose activations the rank holds;
    `passes` sums these micro-batches. Where backward has two parts, `left` is what `flying` is when
    most gradients of weights wait, and `split` the part of it whose gradients do, `split_heads` the
    micro-batches whose head's gradient does. `received` are
    messages that a micro-batch brings: what enters each chunk but the first and the gradient of
    what leaves each but the last; `deferred` those of them whose gradients stay for the step, where
    backward is in two parts.
    """

    layers: Floats
    flying: Floats
    passes: Floats
    left: Floats
    split: Floats
    split_heads: Floats
    received: Floats
    deferred: Floats
    looks_up: Flags
    has_head: Flags


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
    flying: Floats = np.where(p > 1, np.minimum(most, f.accumulation), 1.0)
    return flying


def chunks_of(group: Group, f: Features) -> Iterator[Chunks]:
    """Of the first, the second and the last rank, as far as any of the layouts has them."""
    each = np.where(f.schedule >= ZBV, 2.0, f.virtual)  # chunks of a rank
    each = np.where(f.pp > 1, each, 1.0)
    chunks = f.pp * each
    dealt = stages_of(dataclasses.replace(f, pp=chunks), group.stack)
    fuller = np.where(chunks > 1, f.num_layers - dealt.last - dealt.first * (chunks - 1), 0.0)
    ranks = (np.zeros(len(f)), np.minimum(1.0, f.pp - 1), f.pp - 1)
    for rank in ranks[: int(f.pp.max(initial=1))]:
        layers, flying, passes, left, split, heads, received, deferred = np.zeros((8, len(f)))
        looks_up, has_head = np.zeros((2, len(f)), dtype=bool)
        for chunk in range(int(each.max(initial=1))):
            there = chunk < each
            straight = rank + chunk * f.pp
            index = np.where((f.schedule >= ZBV) & (chunk == 1), chunks - 1 - rank, straight)
            first, last = index == 0, index == chunks - 1
            count = np.where(last, dealt.last, dealt.first + (index >= chunks - 1 - fuller)) * there
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
        yield Chunks(
            layers, flying, passes, left, split, heads, received, deferred, looks_up, has_head
        )
