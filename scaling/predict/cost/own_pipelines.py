"""The model chunks of a rank in a pipeline of this project's engines, and its passes in flight.

A pass is one micro-batch through one chunk. The micro-batches in flight in torch's pipelines are
counted from torch's own tables of actions (torch.distributed.pipelining.schedules); a test compares
the two.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.predict.cost.stages import Stages, ends_of_two_kinds, stages_of
from scaling.predict.read.features import SCHEDULES, Features, Group

ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, ZBV, DUALPIPEV = range(len(SCHEDULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """All model chunks of one rank together, (n,) or one value for all layouts.

    The fields from `passes` on are of torch's pipelines alone, most of them of schedules whose
    backward has two parts: gradients of activations first, gradients of weights later.
    """

    layers: Floats
    vocab_matrices: Floats | float
    layer_passes: Floats  # most layers times passes whose activations are held at once
    staying: Floats | float  # share of it left when the last chunk's first layer ends its backward
    messages: Floats | float  # hidden states of a micro-batch that are kept or on their way
    has_embedding: Flags | bool
    has_head: Flags | bool
    warm_up: Floats | float = 1.0  # micro-batches that begin before each weight has a gradient
    logit_buffers: Floats | float = 0.0
    position_biases: Floats | float = 0.0  # of an encoder-decoder, which recomputing reads
    passes: Floats | float = 1.0  # most whose activations are held at once
    final_layer_passes: Floats | float = 0.0  # `layer_passes` when most weight gradients wait
    waiting_layer_passes: Floats | float = 0.0  # those of them whose weight gradients wait
    waiting_heads: Floats | float = 0.0  # micro-batches whose head's weight gradient waits
    received: Floats | float = 0.0  # messages of a micro-batch, both ways
    kept_received: Floats | float = 0.0  # those whose gradients stay for the whole step
    dense_layers: Floats | None = None  # layers without experts; None: as many as on average


def whole_model(f: Features) -> Chunks:
    """All layers on every rank."""
    return Chunks(
        layers=f.num_layers, vocab_matrices=f.embeddings, layer_passes=f.num_layers, staying=0.0,
        messages=0.0, has_embedding=True, has_head=True, position_biases=2.0,
    )  # fmt: skip


def deepspeed_chunks(group: Group, f: Features) -> tuple[Chunks, Chunks]:
    """The first and the last rank's chunks; the layouts all run 1F1B or all DualPipeV."""
    is_1f1b = (f.schedule == ONE_F_ONE_B).all()
    return _ends_of_1f1b(group, f) if is_1f1b else _ends_of_dualpipev(f)


def _ends_of_1f1b(group: Group, f: Features) -> tuple[Chunks, Chunks]:
    """The first rank has min(accumulation, pp) micro-batches in flight, the last one."""
    stages, in_flight = stages_of(f, group.stack), np.minimum(f.accumulation, f.pp)
    # tp ranks each keep a part of the message that came in, where all of them have the same
    kept = np.where(f.attentions > 1, 2.0, np.where(f.sequence_parallel, 1.0, 1 / f.tp))
    first = Chunks(
        layers=stages.first, vocab_matrices=1.0, layer_passes=in_flight * stages.first,
        staying=1 - 1 / in_flight, messages=in_flight * kept + 1.5, has_embedding=True,
        has_head=False, warm_up=in_flight, position_biases=in_flight,
    )  # fmt: skip
    last = Chunks(
        layers=stages.last, vocab_matrices=1.0, layer_passes=stages.last,
        staying=1.0 * (stages.last == 0), messages=kept + 1.5, has_embedding=False, has_head=True,
        position_biases=1.0, logit_buffers=np.minimum(f.accumulation, 2.0),
    )  # fmt: skip
    return first, last


def _ends_of_dualpipev(f: Features) -> tuple[Chunks, Chunks]:
    """The first and the last rank, each with a stage on the way out and one on the way back.

    DeepSpeed deals layers evenly to 2 pp stages, one more to the first ones if need be. Rank r
    holds 2 pp - r micro-batches on their way out and r + 1 on their way back. It has them with the
    input and output of its stages (deepspeed/runtime/pipe/schedule.py, DualPipeVSchedule.steps,
    from step 4).
    """
    stages = 2 * f.pp
    fewest, fuller = np.divmod(f.num_layers, stages)

    def chunks_of(rank: Floats | float, is_first: bool) -> Chunks:
        out, back = fewest + (rank < fuller), fewest + (stages - 1 - rank < fuller)
        going, coming = np.minimum(stages - rank, f.accumulation - 1), rank + 1.0
        layer_passes = going * out + coming * back
        return Chunks(
            layers=out + back,
            vocab_matrices=f.embeddings * is_first,
            layer_passes=layer_passes,
            staying=1 - back / np.maximum(layer_passes, 1.0),
            messages=(going + coming) * (1.0 if is_first else 2.0),
            has_embedding=is_first,
            has_head=is_first,
            warm_up=0.0,
            logit_buffers=1.0 * is_first,
        )

    return chunks_of(0.0, True), chunks_of(f.pp - 1, False)


def torch_chunks(group: Group, f: Features) -> Iterator[Chunks]:
    """The chunks of the first, the second and the last rank, as far as any layout has them."""
    is_v, is_zbv = f.schedule >= ZBV, f.schedule == ZBV
    in_parts = is_zbv | (f.schedule == ZERO_BUBBLE)  # a backward: of activations, and of weights
    per_rank = np.where(is_v, 2.0, f.virtual)
    count = f.pp * per_rank
    dealt = stages_of(f.but(pp=count), group.stack)
    chunk = np.arange(per_rank.max(initial=1))[:, np.newaxis]
    exists = chunk < per_rank
    ranks = (np.zeros(len(f)), np.minimum(1.0, f.pp - 1), f.pp - 1)
    for rank in ranks[: int(f.pp.max(initial=1))]:
        index = np.where(is_v & (chunk == 1), count - 1 - rank, rank + chunk * f.pp)
        is_first, is_last = exists & (index == 0), exists & (index == count - 1)
        layers, dense_layers = _layers_of_chunks(f, dealt, count, index)
        layers = layers * exists
        in_flight = passes_in_flight(f, rank, chunk) * exists
        passes = in_flight.sum(0)
        # ZBV ends with pp + rank passes, and the gradients of weights of 2 rank + 1 wait then
        at_end = np.where(is_zbv, np.where(chunk == 0, f.pp, rank), in_flight)
        waiting = rank * ((f.schedule == ZERO_BUBBLE) & (chunk == per_rank - 1))
        waiting = np.minimum(np.where(is_zbv, rank + (chunk == 0), waiting), in_flight)
        # at the turn of the V a gradient takes a buffer's place
        is_turn = is_zbv & (index == f.pp)
        kept_received = (exists & ~is_first & in_parts & ~is_turn).sum(0)
        kept_messages = kept_received * f.accumulation - np.where(kept_received > 0, passes, 0.0)
        # passes beside the one whose backward is over; no chunk has more than the step still has
        others = np.minimum(passes, (f.accumulation - 1) * per_rank) - 1
        yield Chunks(
            layers=layers.sum(0),
            vocab_matrices=1.0 * is_first.any(0) + is_last.any(0),
            layer_passes=(layers * in_flight).sum(0),
            staying=np.maximum(others, 0.0) / passes,
            messages=passes + np.maximum(kept_messages, 0.0),
            has_embedding=is_first.any(0),
            has_head=is_last.any(0),
            logit_buffers=1.0,
            passes=passes,
            final_layer_passes=(layers * np.minimum(at_end, in_flight)).sum(0),
            waiting_layer_passes=(layers * waiting).sum(0),
            waiting_heads=(is_last * waiting).sum(0),
            received=(exists & ~is_first).sum(0) + 1.0 * (exists & ~is_last).sum(0),
            kept_received=kept_received,
            dense_layers=None if dense_layers is None else (dense_layers * exists).sum(0),
        )


def _layers_of_chunks(
    f: Features, dealt: Stages, count: Floats, index: Floats
) -> tuple[Floats, Floats | None]:
    """Layers of the chunks at `index` of `count`, and their dense layers, (chunks, n).

    Dense layers are None where no model has both layers with experts and layers without.
    """
    with_one_more = f.num_layers - dealt.last - dealt.first * (count - 1)  # just before the last
    layers = dealt.first + (index >= count - 1 - with_one_more)
    layers = np.where(index == count - 1, dealt.last, layers)
    mixed = (f.expert_share > 0) & (f.expert_share < 1)
    if not mixed.any():
        return layers, None
    ends = ends_of_two_kinds(f, count)
    row, place = np.arange(len(f)), np.minimum(index, count - 1).astype(int)
    before, until = ends[row, place], ends[row, place + 1]
    dense = np.clip((1 - f.expert_share) * f.num_layers - before, 0.0, until - before)
    layers = np.where(mixed, until - before, layers)
    return layers, np.where(mixed, dense, (1 - f.expert_share) * layers)


def passes_in_flight(f: Features, rank: Floats, chunk: Floats) -> Floats:
    """Most micro-batches whose activations `rank` holds of each of its chunks, (chunks, n).

    With p ranks and v chunks a rank:
    1F1B: p - rank.
    Interleaved: 2 (p - rank - 1) + (v - 1) p passes before the first backward, and the one that
    follows; rounds of p go to one chunk after the other.
    Zero bubble: p - rank - 1 of these passes, and as many more while its weights' gradients wait.
    ZBV: 2p - 1 - rank and rank + 1.
    DualPipeV: 2p - rank and rank + 1.
    """
    p, v, s = f.pp, f.virtual, f.schedule
    ahead = np.where(s == INTERLEAVED, 2 * (p - rank - 1) + (v - 1) * p + 1, v * p)
    first_chunk = np.where(ahead > v * p, ahead - (v - 1) * p, np.minimum(ahead, p))
    other_chunks = np.clip(ahead - chunk * p, 0.0, p)
    in_rounds = np.where(chunk == 0, first_chunk, other_chunks)
    in_v = np.where(chunk == 0, 2 * p - 1 - rank + (s == DUALPIPEV), rank + 1)
    most = np.where(s >= ZBV, in_v, np.where(s == ONE_F_ONE_B, p - rank, in_rounds))
    return np.asarray(np.minimum(most, f.accumulation))
