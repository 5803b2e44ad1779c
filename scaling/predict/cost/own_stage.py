"""What a stage of this project's engine on DeepSpeed holds, whatever it does just then."""

from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.experts import held_params
from scaling.predict.cost.own_parts import WIDE, Layer, layer_of, weights_of_layer
from scaling.predict.cost.sharding import Sharding, sharding_of
from scaling.predict.cost.stages import head_params, stages_of
from scaling.predict.read.features import Features, Group

BUCKET = 5e8  # elements of DeepSpeed's reduce_bucket_size (scaling/train/engines/deepspeed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What all stages of a layout share; elements of a micro-batch and bytes, (n,)."""

    f: Features
    piped: bool
    tokens: Floats
    own: Floats  # hidden states of a rank's own tokens
    logits: Floats
    layer: Layer
    layer_weights: Floats  # elements of a rank's average layer, experts too
    table: Floats  # elements of a vocabulary matrix
    matrix: Floats  # of a feed-forward's matrix
    sharding: Sharding
    share: Floats  # of the weights that a rank holds at all times
    replicas: Floats
    zero: Flags  # at zero_stage 0
    parts: Flags  # at 1 and 2
    gathers: Flags  # at 3
    dealt: Flags  # at 0: bf16 pipelines deal the state to all replicas, though no ZeRO does


def step_of(group: Group, f: Features, *, piped: bool) -> Step:
    """What all stages of these layouts share."""
    z, tokens = f.zero_stage, f.micro_batch_size * f.seq_length / f.cp
    sharding = sharding_of(group, f)
    return Step(
        f=f,
        piped=piped,
        tokens=tokens,
        own=tokens * f.hidden_size / np.where(f.sequence_parallel, f.tp, 1.0),
        logits=tokens * f.vocab_size / f.tp,
        layer=layer_of(f, tokens),
        layer_weights=weights_of_layer(f) + held_params(f),
        table=head_params(f) / f.tp,
        matrix=f.hidden_size * f.ffn_hidden_size / f.tp,
        sharding=sharding,
        share=sharding.weights_share(z),
        replicas=f.dp * f.cp,
        zero=z == 0,
        parts=(z == 1) | (z == 2),
        gathers=z >= 3,
        dealt=(z == 0) & f.bf16 & piped,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLayers:
    """The layers of a rank, one stage or two, and what of them waits for its backward; (n,)."""

    layers: Floats
    flying: Floats  # sums over stages layers times the micro-batches whose activations wait
    returning: Floats  # of `flying`, what belongs to the micro-batch that comes back next
    messages: Floats | float  # hidden states of a micro-batch that are kept or on their way
    rounds: Floats | float  # micro-batches that begin before each weight has a gradient
    outputs: Floats | float  # buffers of logits
    positions: Floats | float  # position tables of an encoder-decoder that recomputing reads
    looks_up: bool
    has_head: bool


def whole_model(f: Features) -> HeldLayers:
    """All layers on every rank."""
    layers = f.num_layers
    return HeldLayers(
        layers=layers, flying=layers, returning=layers, messages=0.0, rounds=1.0, outputs=0.0,
        positions=2.0, looks_up=True, has_head=True,
    )  # fmt: skip


def ends_of_1f1b(group: Group, f: Features) -> tuple[HeldLayers, HeldLayers]:
    """The first and the last stage: min(accumulation, pp) micro-batches on their way, and one."""
    stages, rounds = stages_of(f, group.stack), np.minimum(f.accumulation, f.pp)
    # tp ranks keep a part each of what came in, where all of them have the same
    kept = np.where(f.attentions > 1, 2.0, np.where(f.sequence_parallel, 1.0, 1 / f.tp))
    first = HeldLayers(
        layers=stages.first, flying=rounds * stages.first, returning=stages.first,
        messages=rounds * kept + 1.5, rounds=rounds, outputs=0.0, positions=rounds,
        looks_up=True, has_head=False,
    )  # fmt: skip
    last = HeldLayers(
        layers=stages.last, flying=stages.last, returning=stages.last, messages=kept + 1.5,
        rounds=1.0, outputs=np.minimum(f.accumulation, 2.0), positions=1.0,
        looks_up=False, has_head=True,
    )  # fmt: skip
    return first, last


def ends_of_v(f: Features) -> tuple[HeldLayers, HeldLayers]:
    """The first and the last rank of DualPipeV, each with a stage on the way out and one back.

    DeepSpeed deals layers evenly to 2 pp stages, and first the ones left over. Rank r holds
    2 pp - r micro-batches on their way out and r + 1 on their way back
    (deepspeed/runtime/pipe/schedule.py, DualPipeVSchedule.steps, from step 4 on), of each what its
    stages took and what they gave.
    """
    stages = 2 * f.pp
    fewest, fuller = np.divmod(f.num_layers, stages)

    def of(rank: Floats | float, looks_up: bool) -> HeldLayers:
        out, back = fewest + (rank < fuller), fewest + (stages - 1 - rank < fuller)
        going, coming = np.minimum(stages - rank, f.accumulation - 1), rank + 1.0
        return HeldLayers(
            layers=out + back,
            flying=going * out + coming * back,
            returning=back,
            messages=(going + coming) * (1.0 if looks_up else 2.0),
            rounds=0.0,
            outputs=1.0 * looks_up,
            positions=0.0,
            looks_up=looks_up,
            has_head=looks_up,
        )

    return of(0.0, True), of(f.pp - 1, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a stage holds; bytes unless said otherwise, (n,)."""

    step: Step
    held_layers: HeldLayers
    weights: Floats  # elements of a tp rank
    part: Floats  # elements whose state a rank keeps
    held: Floats  # what lives all the time: weights
    state: Floats  # and the optimizer's
    gradients: Floats
    accumulated: Floats  # in a buffer of their own
    touched: Floats  # of every weight that rank 0's part of ZeRO's flat buffer touches
    single: Flags  # a replica alone under ZeRO-1 or 2 leaves its gradients where they are
    bucket: Floats
    buckets: Floats
    waiting: Floats  # gradients from the first micro-batch on that finds some there
    waiting_buckets: Floats


def stage_of(s: Step, h: HeldLayers) -> Stage:
    """What a stage of these layers holds."""
    f, e, sharding = s.f, s.f.element_bytes, s.sharding
    both = h.looks_up and h.has_head
    weights = h.layers * s.layer_weights
    weights = weights + (f.embeddings if both else 1.0 * (h.looks_up or h.has_head)) * s.table
    if h.looks_up:
        weights = weights + f.positions * f.hidden_size
    over = np.where(s.dealt, s.replicas, sharding.state)
    routed = h.layers * held_params(f)  # over the ranks that hold the same experts
    part = (weights - routed) / over + routed / np.maximum(over / f.ep, 1.0)
    wide = (e < WIDE) | ~s.zero
    state_bytes = np.where(f.short_states, 6.0, np.where(wide, 12.0, 8.0)) * ~f.offload
    gradients = e * weights
    accumulated = s.gathers * e * part + s.dealt * gradients
    single = s.parts & (s.replicas == 1) & ~f.offload
    bucket = ~single * e * np.minimum(BUCKET, weights)
    overlapped = s.parts & (s.replicas > 1) & (not s.piped)
    buckets = ~s.zero * (1.0 + overlapped) * bucket
    first_table = s.table if h.looks_up else 0.0
    touched = np.where(part <= first_table, first_table, part + s.matrix / 2)
    touched = np.where(sharding.state > 1, np.minimum(touched, weights), weights)
    touched = s.parts * e * touched
    going_on = f.accumulation > h.rounds
    whole_kept = (f.zero_stage <= 1) & going_on
    return Stage(
        step=s,
        held_layers=h,
        weights=weights,
        part=part,
        held=np.where(s.gathers & (f.ep > 1), e * part, gradients * s.share),
        state=state_bytes * part,
        gradients=gradients,
        accumulated=accumulated,
        touched=touched,
        single=single,
        bucket=bucket,
        buckets=buckets,
        waiting=accumulated + whole_kept * gradients + ((f.zero_stage == 2) & going_on) * touched,
        waiting_buckets=(s.gathers | ((f.zero_stage == 1) & going_on)) * buckets,
    )
