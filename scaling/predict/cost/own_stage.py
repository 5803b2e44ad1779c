"""What a stage of this project's engine on DeepSpeed holds, whatever it does just then."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.experts import held_params
from scaling.predict.cost.own_parts import WIDE, Layer, layer_of, weights_of_layer
from scaling.predict.cost.sharding import Sharding, sharding_of
from scaling.predict.cost.stages import head_params
from scaling.predict.read.features import Features, Group

BUCKET = 5e8  # elements of DeepSpeed's reduce_bucket_size (scaling/train/engines/deepspeed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What all stages of a layout share; elements of a micro-batch and bytes, (n,)."""

    f: Features
    piped: bool
    unseen: float  # bytes of what no rehearsal counts
    tokens: Floats
    own: Floats  # hidden states of a rank's own tokens
    layer: Layer
    layer_weights: Floats  # elements of a rank's average layer, experts too
    table: Floats  # elements of a vocabulary matrix
    matrix: Floats  # of a feed-forward's matrix
    sharding: Sharding
    replicas: Floats
    zero: Flags  # at zero_stage 0
    parts: Flags  # at 1 and 2
    gathers: Flags  # at 3
    dealt: Flags  # at 0: bf16 pipelines deal the state to all replicas, though no ZeRO does


def step_of(group: Group, f: Features, p: Mapping[str, float], *, piped: bool) -> Step:
    """What all stages of these layouts share."""
    z, tokens = f.zero_stage, f.micro_batch_size * f.seq_length / f.cp
    return Step(
        f=f,
        piped=piped,
        unseen=p["buffers_bytes"],
        tokens=tokens,
        own=tokens * f.hidden_size / np.where(f.sequence_parallel, f.tp, 1.0),
        layer=layer_of(f, tokens),
        layer_weights=weights_of_layer(f) + held_params(f),
        table=head_params(f) / f.tp,
        matrix=f.hidden_size * f.ffn_hidden_size / f.tp,
        sharding=sharding_of(group, f),
        replicas=f.dp * f.cp,
        zero=z == 0,
        parts=(z == 1) | (z == 2),
        gathers=z >= 3,
        dealt=(z == 0) & f.bf16 & piped,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a stage holds; bytes unless said otherwise, (n,)."""

    step: Step
    layers: Floats
    last: bool
    has_head: bool
    flying: Floats | float  # micro-batches whose activations wait
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


def stage_of(s: Step, layers: Floats, *, last: bool) -> Stage:
    """What a stage of so many layers holds, the first or the last one."""
    f, e, sharding = s.f, s.f.element_bytes, s.sharding
    flying = np.minimum(f.accumulation, f.pp) if s.piped and not last else 1.0
    matrices = 1.0 if s.piped else f.embeddings
    weights = layers * s.layer_weights + matrices * s.table
    if not last:
        weights = weights + f.positions * f.hidden_size
    part = weights / np.where(s.dealt, s.replicas, sharding.state)
    wide = (e < WIDE) | ~s.zero
    state_bytes = np.where(f.short_states, 6.0, np.where(wide, 12.0, 8.0)) * ~f.offload
    gradients = e * weights
    accumulated = s.gathers * e * part + s.dealt * gradients
    single = s.parts & (s.replicas == 1) & ~f.offload
    bucket = ~single * e * np.minimum(BUCKET, weights)
    overlapped = s.parts & (s.replicas > 1) & (not s.piped)
    buckets = ~s.zero * (1.0 + overlapped) * bucket
    first_table = 0.0 if last else s.table
    touched = np.where(part <= first_table, first_table, part + s.matrix / 2)
    touched = np.where(sharding.state > 1, np.minimum(touched, weights), weights)
    touched = s.parts * e * touched
    going_on = f.accumulation > flying
    whole_kept = (f.zero_stage <= 1) & going_on
    return Stage(
        step=s,
        layers=layers,
        last=last,
        has_head=last or not s.piped,
        flying=flying,
        weights=weights,
        part=part,
        held=e * weights * sharding.weights_share(f.zero_stage),
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
