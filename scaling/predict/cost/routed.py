"""Bytes of the routed experts of this project's own layers (scaling/train/model/experts.py)."""

from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.experts import busiest, held_params, present
from scaling.predict.read.features import Features


@dataclass(frozen=True, slots=True)
class Routed:
    """Bytes of the average layer and micro-batch, (n,).

    `kept` for backward, `above` what backward needs beyond what lived when it came to the experts,
    `weights` those of a rank's experts in the precision that trains, and of their gradients, `read`
    what only these gradients are made from.
    """

    kept: Floats
    above: Floats
    weights: Floats
    read: Floats


def routed_of(f: Features, tokens: Floats, gradients_stay: Flags) -> Routed:
    """Experts of a layer for `tokens` of a rank.

    A rank's experts get k copies of each token of its ep group, `busiest` of them where a router is
    uneven. Kept are what enters the experts, what leaves them (the copy back reads it again), where
    tokens travel what has come back, the copies in the tokens' order, and the parts of a
    feed-forward; of the router the scores in fp32 and whole numbers: of each copy its expert, its
    place, the token it is of and, where tokens travel, its place among those that arrived.
    """
    if not present(f):
        nothing = np.zeros(len(f))
        return Routed(nothing, nothing, nothing, nothing)
    e, share, travels = f.element_bytes, f.expert_share, f.ep > 1
    sent = tokens * f.experts_per_token  # copies of this rank's tokens
    received = sent * np.where(travels, busiest(f), 1.0)
    outside, inside = e * sent * f.hidden_size, e * received * f.hidden_size
    inner = e * received * f.expert_ffn / f.tp
    of_inner = np.where(f.fused_mlp, 3.0, 4.0) * inner
    places = 8.0 * (3 * sent + np.where(travels, received, 0.0)) + 4 * tokens * f.num_experts
    kept = 2 * inside + np.where(travels, 2.0, 1.0) * outside + of_inner + places
    weights = e * held_params(f)
    one = weights / np.maximum(share, 1e-9) / (f.mlp_inputs + 1)  # the gradient of one matrix
    # of the weighted sum two gradients beside each other; then those of what goes into the last
    # matrix, into the others, into the experts
    waits = np.where(gradients_stay, one, 0.0)
    freed = np.where(travels, 2.0, 1.0) * outside
    at_last = inside + inner + one - freed
    at_others = f.mlp_inputs * inner + waits - freed - inside
    at_first = inside - freed - of_inner + f.mlp_inputs * (inner + waits) + one
    above = np.max([2 * outside, at_last, at_others, at_first], axis=0)
    return Routed(share * kept, share * above, weights, share * (inside + inner))
