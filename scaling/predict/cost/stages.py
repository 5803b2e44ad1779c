"""How layers are dealt to pipeline stages, and which weights each stage holds."""

from dataclasses import dataclass

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.predict.read.features import SCHEDULES, Features
from scaling.predict.read.stacks import Stack

ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, ZBV, DUALPIPEV = range(len(SCHEDULES))


@dataclass(frozen=True, slots=True)
class Stages:
    """Layers of the first, the fullest middle and the last stage, (n,); the whole model if pp = 1.

    In an encoder-decoder they are layers of average weight.
    """

    first: Floats
    middle: Floats
    last: Floats
    piped: Flags


def layer_params(f: Features) -> Floats:
    """Weights in the matrices of the average layer, without routed experts (shapes.py), (n,)."""
    attention = 2 * f.hidden_size * (f.query_width + f.kv_width) * f.attention_weights
    return f.attentions * attention + (f.mlp_inputs + 1) * f.hidden_size * f.ffn_hidden_size


def multiplied_params(f: Features) -> Floats:
    """Weights that one token is multiplied with in the average layer, (n,).

    Its k experts and the router count too.
    """
    per_token = f.experts_per_token * expert_params(f) + f.num_experts * f.hidden_size
    return layer_params(f) + f.expert_share * per_token


def has_experts(f: Features) -> bool:
    """Whether any of the layouts has experts."""
    return bool((f.expert_share > 0).any())


def expert_params(f: Features) -> Floats:
    """Weights of one routed expert, (n,)."""
    return (f.mlp_inputs + 1) * f.hidden_size * f.expert_ffn


def held_expert_params(f: Features) -> Floats:
    """Weights of routed experts that a rank holds of the average layer, (n,)."""
    return np.asarray(f.expert_share * f.num_experts * expert_params(f) / (f.ep * f.etp))


def head_params(f: Features) -> Floats:
    """Weights of one vocabulary matrix, (n,)."""
    return f.vocab_size * f.hidden_size


def stages_of(f: Features, stack: Stack) -> Stages:
    """Deal the layers by the stack's rule.

    even: ceil(L / pp) layers a stage; the last one takes what is left (Megatron, DeepSpeed with
    uneven counts).
    by_cost: the head counts as head_params / multiplied_params layers, and a stage takes layers
    until its share of the cost is passed (nanotron).
    slowest_least: as this project's engines do.
    """
    if stack.split == "slowest_least":
        return _slowest_least(f)
    layers, pp = f.num_layers, f.pp
    piped = pp > 1
    if stack.split == "by_cost":
        share = (layers + head_params(f) / multiplied_params(f)) / pp
        middle = first = np.minimum(layers, np.ceil(share))
        last = layers - np.minimum(layers, np.ceil((pp - 1) * share))
    else:
        middle = first = np.ceil(layers / pp)
        last = np.maximum(layers - first * (pp - 1), 0)
    last = np.where(piped, last, layers)
    return Stages(first, middle, last, piped)


def _slowest_least(f: Features) -> Stages:
    """Deal layers so that the slowest stage is fastest, as scaling/layout/partition.py does.

    All stages but the last have the same number of layers or one more. So only the last one's
    layers beside the head are to be found: next to the number at which all stages cost the same.
    """
    layers, pp = f.num_layers, np.maximum(f.pp, 2.0)
    attention = 4 * f.attentions * f.query_width * f.seq_length
    forward = 2 * multiplied_params(f) + attention
    recomputed = np.where(f.full, forward, np.where(f.selective, attention, 0.0))
    head = 6 * head_params(f) / (3 * forward + recomputed)  # in layers
    equal = np.floor((layers + head) / pp - head)
    chosen = np.zeros_like(layers)
    least_cost, least_squares = np.full_like(layers, np.inf), np.full_like(layers, np.inf)
    for offset in (0.0, 1.0, -1.0):
        last = np.clip(equal + offset, 0.0, layers - (pp - 1))
        fewest, with_one_more = _equal_shares(layers - last, pp - 1)
        cost = np.maximum(fewest + (with_one_more > 0), last + head)
        squares = with_one_more * (2 * fewest + 1) + (pp - 1) * fewest**2 + (last + head) ** 2
        better = (cost < least_cost) | ((cost == least_cost) & (squares < least_squares))
        chosen = np.where(better, last, chosen)
        least_cost = np.where(better, cost, least_cost)
        least_squares = np.where(better, squares, least_squares)
    fewest, with_one_more = _equal_shares(layers - chosen, pp - 1)
    piped = f.pp > 1
    return Stages(
        np.where(piped, fewest, layers),
        np.where(piped, fewest + (with_one_more > 0), layers),
        np.where(piped, chosen, layers),
        piped,
    )


def _equal_shares(layers: Floats, stages: Floats) -> tuple[Floats, Floats]:
    """The fewest layers of a stage, and how many stages have one more."""
    fewest = np.floor(layers / stages)
    return fewest, layers - fewest * stages


def busiest_load(f: Features) -> Floats:
    """Tokens of the busiest rank over the mean, (n,). All ranks wait for it.

    One of E experts gets x = `imbalance` times the mean number of tokens, the others
    (E - x) / (E - 1) times. The busiest rank holds that one and E / ep - 1 others.
    """
    experts = np.maximum(f.num_experts, 2.0)
    experts_of_rank = np.maximum(experts / f.ep, 1.0)
    fullest = np.minimum(f.imbalance, experts)
    other = (experts - fullest) / (experts - 1)
    return np.asarray((fullest + (experts_of_rank - 1) * other) / experts_of_rank)


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


def shared_ffn(f: Features) -> Floats:
    """Width of the shared experts, which every token of a layer with experts goes through, (n,)."""
    dense = (1 - f.expert_share) * f.dense_ffn
    width: Floats = np.maximum(f.ffn_hidden_size - dense, 0.0) / np.maximum(f.expert_share, 1e-9)
    return width


def weights_of_heaviest_stage(f: Features, stages: Stages) -> Floats:
    """Parameters per tp rank of the stage with most: the one that moves and updates most, (n,)."""
    layer, head = layer_params(f), head_params(f)
    middle = np.where(f.pp > 2, stages.middle * layer, 0.0)
    piped = np.maximum(np.maximum(stages.first, stages.last) * layer + head, middle)
    return np.where(stages.piped, piped, f.num_layers * layer + f.embeddings * head) / f.tp


def experts_of_heaviest_stage(f: Features, stages: Stages) -> Floats:
    """Parameters of routed experts that a rank of the stage with most layers holds, (n,)."""
    layers = np.maximum(np.maximum(stages.first, stages.last), np.where(f.pp > 2, stages.middle, 0))
    return np.asarray(np.where(stages.piped, layers, f.num_layers) * held_expert_params(f))
