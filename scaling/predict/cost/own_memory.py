"""Peak memory of this project's engines: what is alive at which moment of a step.

The formulas follow a rank's bytes through a step: what lives all the time, what a layer keeps for
backward, and what the fullest moment of each phase adds. Every term stands for tensors that the
engine holds (`scaling memory` names them by file and line). `python benchmarks/counted_memory.py`
compares the two. The memory that a rehearsal cannot see is calibrated, as `buffers_bytes` and
`fragmentation`: kernels' workspaces, NCCL, blocks that a side stream still reads.

1F1B is counted. The other schedules (interleaved, zero_bubble, zbv, dualpipev) get a bound that is
seldom too low. In a V the first rank holds both vocabulary matrices. If gradients of weights wait,
every rank has as many micro-batches in flight as the first one. Rehearsals count them exactly.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.arrays import Flags, Floats, Strings
from scaling.predict.cost.experts import has_experts, held_expert_params
from scaling.predict.cost.own_layer import layer_memory, loss_memory, position_bias_bytes
from scaling.predict.cost.sharding import expert_sharding_of, sharding_of
from scaling.predict.cost.stages import head_params, layer_params, shared_ffn, stages_of
from scaling.predict.read.features import SCHEDULES, Features, Group

ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, ZBV, DUALPIPEV = range(len(SCHEDULES))

PHASES = ("build", "forward", "backward", "optimizer")
BUILD, FORWARD, BACKWARD, OPTIMIZER = range(len(PHASES))


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes held at one moment, by what they are; (n,), or one number for all layouts."""

    weights: Floats | float
    gradients: Floats | float
    optimizer: Floats | float
    activations: Floats | float = 0.0
    logits: Floats | float = 0.0
    buffers: Floats | float = 0.0

    def with_(self, **parts: Floats | float) -> "Held":
        """The same with these parts replaced."""
        return dataclasses.replace(self, **parts)

    def plus(self, activations: Floats | float, logits: Floats | float = 0.0) -> "Held":
        """The same with these bytes added."""
        return self.with_(activations=self.activations + activations, logits=self.logits + logits)

    @property
    def total(self) -> Floats:
        """Sum of all parts, (n,)."""
        parts = (self.weights, self.gradients, self.optimizer, self.activations, self.logits)
        # parts that are numbers are 0, and no moment has fewer than two arrays
        arrays = [part for part in (*parts, self.buffers) if isinstance(part, np.ndarray)]
        total: Floats = arrays[0] + arrays[1]
        for part in arrays[2:]:
            total += part
        return total


TERMS = tuple(Held.__dataclass_fields__)
Moment = tuple[int, Held]  # index into PHASES
# By name: one number for all layouts, or in a fit (n,), a value for each.
Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes allocated at the peak, float64 (n,): `terms` of the fullest stage add up to `total`.

    The phases of other software are not counted, and it has no `phase`.
    """

    total: Floats
    terms: dict[str, Floats]
    phase: Strings | None = None


def peak_of(moments: list[Moment], uncounted: Floats | float) -> Memory:
    """The fullest of the moments; `uncounted` bytes, which no rehearsal sees, are added to all."""
    total = moments[0][1].total
    fullest = np.zeros(len(total), dtype=np.int64)
    for index, (_, held) in enumerate(moments[1:], start=1):
        moment_total = held.total
        fullest[moment_total > total] = index
        np.maximum(total, moment_total, out=total)
    terms: dict[str, Floats] = {f"{name}_bytes": np.empty(len(total)) for name in TERMS}
    for index in np.flatnonzero(np.bincount(fullest)).tolist():
        rows, held = np.flatnonzero(fullest == index), moments[index][1]
        for name, values in zip(TERMS, terms.values(), strict=True):
            part = getattr(held, name)
            values[rows] = part[rows] if isinstance(part, np.ndarray) else part
    terms["buffers_bytes"] += uncounted
    phases = np.array([PHASES[phase] for phase, _ in moments], dtype=object)[fullest]
    return Memory(total + uncounted, terms, phases)


def split_rows(
    mask: Flags,
    f: Features,
    p: Parameters,
    where_true: Callable[[Features, Parameters], Memory],
    where_false: Callable[[Features, Parameters], Memory],
) -> Memory:
    """Memory of the rows under `mask` by one function, of the others by another.

    Parameters with a value a row are split with the rows.
    """
    if mask.all():
        return where_true(f, p)
    if not mask.any():
        return where_false(f, p)
    rows = [np.flatnonzero(mask), np.flatnonzero(~mask)]
    parts = [
        where(f.take(index), {name: v[index] if np.ndim(v) else v for name, v in p.items()})
        for where, index in zip((where_true, where_false), rows, strict=True)
    ]
    order = np.argsort(np.concatenate(rows))

    def joined(values: list[Any]) -> Any:
        return np.concatenate(values)[order]

    return Memory(
        joined([part.total for part in parts]),
        {name: joined([part.terms[name] for part in parts]) for name in parts[0].terms},
        joined([np.full(len(p.total), None) if p.phase is None else p.phase for p in parts]),
    )


class Sizes:
    """The common part of all stages of a layout, (n,); parameters are those of a tp rank.

    See `layer_memory` for `whole_gradients`.
    """

    def __init__(
        self, group: Group, f: Features, *, piped: bool, whole_gradients: Flags | None
    ) -> None:
        self.group, self.f, self.piped, self.whole_gradients = group, f, piped, whole_gradients
        # elements of a micro-batch's hidden states that a rank holds
        self.hidden = f.tokens * f.hidden_size / np.where(f.sequence_parallel, f.tp, 1.0)
        self.layer = layer_memory(f, whole_gradients)
        self.expert_params = held_expert_params(f)  # of the average layer
        self.layer_params = layer_params(f) / f.tp + self.expert_params
        self.vocab_params = head_params(f) / f.tp  # of one vocabulary matrix
        self.ffn_params = f.hidden_size * f.ffn_hidden_size / f.tp  # of one matrix
        self.sharding = sharding_of(group, f)
        self.expert_sharding = expert_sharding_of(group, f) if has_experts(f) else self.sharding
        self.replicas = f.dp * f.cp


@dataclass(kw_only=True)
class Stage:
    """A rank's part of a model, (n,) or one value for all layouts."""

    sizes: Sizes
    layers: Floats
    vocab_matrices: Floats | float
    layer_passes: Floats  # layers x micro-batches held at once, at most.
    staying: Floats | float  # share of these left when the first layer ends its backward.
    messages: Floats | float  # hidden states of a micro-batch that are kept or on their way
    has_embedding: Flags | bool
    has_head: Flags | bool
    warm_up: Floats | float = 1.0  # micro-batches that begin before each weight has a gradient
    logit_buffers: Floats | float = 0.0
    position_biases: Floats | float = 0.0  # of an encoder-decoder, which recomputing reads
    received: Floats | float = 0.0  # messages of a micro-batch, both ways

    def __post_init__(self) -> None:
        s, f, e = self.sizes, self.sizes.f, self.sizes.f.element_bytes
        params = self.layers * s.layer_params + self.vocab_matrices * s.vocab_params
        self.params = params + self.has_embedding * f.positions * f.hidden_size
        # Bytes of activations and messages when the last layer is done. Recomputing keeps position
        # biases, which every layer reads: for each micro-batch in flight those of the stage's.
        self.in_flight = self.layer_passes * s.layer.kept
        biases = (f.full | f.selective) * self.position_biases * position_bias_bytes(f)
        self.in_flight = self.in_flight + biases
        if s.piped:
            self.in_flight = self.in_flight + self.messages * e * s.hidden
        norm = e * s.hidden + e * f.tokens * f.hidden_size
        self.final_norm = self.has_head * norm  # bytes
        self.logits = self.has_head * f.tokens * f.vocab_size / f.tp  # elements
        self.loss_forward, self.loss_backward = loss_memory(
            f, self.logits, s.vocab_params, self.logit_buffers
        )


def whole_model(s: Sizes) -> Stage:
    """All layers on every rank."""
    layers = s.f.num_layers
    return Stage(
        sizes=s, layers=layers, vocab_matrices=s.f.embeddings, layer_passes=layers, staying=0.0,
        messages=0.0, has_embedding=True, has_head=True, position_biases=2.0,
    )  # fmt: skip


def in_flight(f: Features, rank: Floats | float) -> Floats:
    """Micro-batches whose activations a rank of the pipeline holds at once, (n,).

    1F1B: pp - rank. Interleaved with v chunks a rank (arXiv 2104.04473, section 2.2;
    Megatron-Core's warm-up of 2 (pp - rank - 1) + (v - 1) pp chunks, and the one that runs): pp +
    (pp - 1 - 2 rank) / v of a whole stage. If weights' gradients wait, or in a V, all ranks have as
    many: pp, of DualPipeV's two half stages 2 pp + 1. Never more than there are.
    """
    ahead = np.where(f.virtual > 1, f.pp + (f.pp - 1 - 2 * rank) / f.virtual, f.pp - rank)
    even = f.pp + 0.5 * (f.schedule == DUALPIPEV)
    return np.minimum(f.accumulation, np.where(f.schedule >= ZERO_BUBBLE, even, ahead))


def deepspeed_stages(s: Sizes) -> Iterator[Stage]:
    """The first and the last rank's."""
    f, stages = s.f, stages_of(s.f, s.group.stack)
    is_v = f.schedule >= ZBV
    # tp ranks each keep a part of the message that came in, where all of them have the same
    kept = np.where(f.attentions > 1, 2.0, np.where(f.sequence_parallel, 1.0, 1 / f.tp))
    passes = in_flight(f, 0.0)
    yield Stage(
        sizes=s, layers=stages.first, vocab_matrices=1.0 + is_v, layer_passes=passes * stages.first,
        staying=1 - 1 / passes, messages=passes * np.where(is_v, 2.0, kept) + 1.5,
        has_embedding=True, has_head=is_v, warm_up=passes, position_biases=passes,
        logit_buffers=1.0 * is_v,
    )  # fmt: skip
    passes = in_flight(f, f.pp - 1)
    yield Stage(
        sizes=s, layers=stages.last, vocab_matrices=1.0 - is_v, layer_passes=passes * stages.last,
        staying=1.0 * is_v,
        messages=np.where(is_v, 2 * passes, kept) + 1.5, has_embedding=False, has_head=~is_v,
        position_biases=1.0, logit_buffers=np.minimum(f.accumulation, 2.0) * ~is_v,
    )  # fmt: skip


def torch_stages(s: Sizes) -> Iterator[Stage]:
    """The first, the second and the last rank's, as far as any layout has them.

    Later ranks have none of the first layers, which may have no experts.
    """
    f, stages = s.f, stages_of(s.f, s.group.stack)
    is_v, later = f.schedule >= ZBV, s
    if has_experts(f):
        share = np.ceil(f.expert_share)
        ffn = np.where(share > 0, shared_ffn(f), f.ffn_hidden_size)
        of_later = f.but(expert_share=share, ffn_hidden_size=ffn)
        later = Sizes(s.group, of_later, piped=s.piped, whole_gradients=s.whole_gradients)
    chunks = np.where(is_v, 2.0, f.virtual)
    # stages with one layer more than the first are those before the last
    fuller = f.num_layers - stages.last - stages.first * (f.pp - 1) >= f.pp - 2
    last = f.pp - 1
    for rank in (np.zeros(len(f)), np.minimum(1.0, last), last)[: int(f.pp.max(initial=1))]:
        is_first, is_last = rank == 0, rank == last
        layers = np.where(is_last, stages.last, stages.first + (fuller & ~is_first))
        passes, has_head = in_flight(f, rank), np.where(is_v, is_first, is_last)
        yield Stage(
            sizes=s if is_first.all() else later,
            layers=layers,
            vocab_matrices=1.0 * is_first + has_head,
            layer_passes=passes * layers,
            staying=np.maximum(np.minimum(passes, f.accumulation - 1) - 1, 0.0) / passes,
            messages=passes * chunks,
            has_embedding=is_first,
            has_head=has_head,
            logit_buffers=np.where(f.schedule == ZERO_BUBBLE, passes, 1.0),
            received=2 * chunks - is_first - has_head,
        )


def model_moments(
    t: Stage, *, loss: Held, in_layer: Held, earlier_layer: Held | None = None
) -> list[Moment]:
    """Moments from the loss back through the layers.

    The model itself keeps the same under both engines. The arguments are what an engine holds
    beside it: in the loss, in the backward of the last layer, and of earlier ones where it differs.
    """
    f, layer, kept = t.sizes.f, t.sizes.layer, t.in_flight + t.final_norm
    activations = t.in_flight + layer.recomputed + f.element_bytes * t.sizes.hidden
    activations = activations + layer.in_backward
    moments = [
        (FORWARD, loss.plus(kept, t.loss_forward)),
        (BACKWARD, in_layer.plus(activations)),
    ]
    if np.any(t.has_head):
        moments.append((BACKWARD, loss.plus(kept, t.loss_backward)))
    if earlier_layer is not None or (f.attentions > 1).any():
        # an earlier layer's backward begins when the last one's activations are gone
        activations = activations - layer.kept + position_bias_bytes(f)
        moments.append((BACKWARD, (earlier_layer or in_layer).plus(activations)))
    return moments
