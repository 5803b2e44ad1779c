"""How layers are dealt to pipeline stages, and which weights each stage holds."""

from dataclasses import dataclass

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.layout.axes import ActivationCheckpointing
from scaling.layout.partition import layer_cost, split_by_cost
from scaling.predict.cost.experts import held_expert_params, routed_params
from scaling.predict.read.features import Features
from scaling.predict.read.stacks import Stack

_CHECKPOINTING: tuple[ActivationCheckpointing, ...] = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Stages:
    """Layers of the first, the fullest middle and the last stage, (n,); the whole model if pp = 1.

    In an encoder-decoder they are layers of average weight, which all formulas multiply.
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
    """Weights that one token is multiplied with in the average layer, its experts' too, (n,)."""
    return layer_params(f) + routed_params(f)


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
        return _encoder_decoders_by_cost(f, _slowest_least(f))
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
    return _encoder_decoders_by_cost(f, Stages(first, middle, last, piped))


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


def _encoder_decoders_by_cost(f: Features, stages: Stages) -> Stages:
    """Replace the stages of encoder-decoders: whatever the software, they are dealt by cost."""
    rows = np.flatnonzero(stages.piped & (f.attentions > 1))
    if not len(rows):
        return stages
    first, middle, last = stages.first.copy(), stages.middle.copy(), stages.last.copy()
    t5 = f.take(rows)
    ends = ends_of_two_kinds(t5, t5.pp)
    # With a attentions a layer on average, a - 1 of the layers are a decoder's, with two each.
    # Stages are counted in layers of average weight.
    attention, average = 2 * t5.hidden_size * (t5.query_width + t5.kv_width), layer_params(t5)
    encoder = (1 - (t5.attentions - 1) * attention / average)[:, None]
    decoder = (1 + (2 - t5.attentions) * attention / average)[:, None]
    encoders = ((2 - t5.attentions) * t5.num_layers)[:, None]
    weight = np.minimum(ends, encoders) * encoder + np.maximum(ends - encoders, 0.0) * decoder
    stage_weight, stage = np.diff(weight, axis=1), np.arange(ends.shape[1] - 1)
    last_stage = (t5.pp - 1).astype(int)
    first[rows] = stage_weight[:, 0]
    last[rows] = stage_weight[np.arange(len(rows)), last_stage]
    is_between = (stage > 0) & (stage < last_stage[:, None])
    fullest = np.where(is_between, stage_weight, 0.0).max(axis=1)
    middle[rows] = np.where(last_stage > 1, fullest, first[rows])
    return Stages(first, middle, last, stages.piped)


def ends_of_two_kinds(f: Features, stages: Floats) -> Floats:
    """Layers before each stage, (n, most stages + 1), of models with two kinds of layers.

    An encoder's come before its decoder's, dense ones before those with experts. They are dealt as
    the engine does it (scaling/layout/partition.py), which takes a loop: once for each distinct
    model and number of stages.
    """
    is_t5, attention = f.attentions > 1, 2 * f.hidden_size * (f.query_width + f.kv_width)
    matrices, scores = (f.mlp_inputs + 1) * f.hidden_size, 4 * f.query_width * f.seq_length
    expert_ffn = shared_ffn(f) + f.experts_per_token * f.expert_ffn
    expert_layer = attention + matrices * expert_ffn + f.hidden_size * f.num_experts
    facts = [
        np.where(is_t5, 2 - f.attentions, 1 - f.expert_share) * f.num_layers,
        f.num_layers,
        attention + matrices * np.where(is_t5, f.ffn_hidden_size, f.dense_ffn),
        scores,
        np.where(is_t5, 2 * attention + matrices * f.ffn_hidden_size, expert_layer),
        np.where(is_t5, 2.0, 1.0) * scores,
        6 * head_params(f),
        np.where(f.full, 2.0, np.where(f.selective, 1.0, 0.0)),
        stages,
    ]
    models, model_of = np.unique(np.round(np.stack(facts, axis=1)), axis=0, return_inverse=True)
    ends = np.zeros((len(models), int(stages.max()) + 1))
    for model, model_ends in zip(models.astype(int).tolist(), ends, strict=True):
        first_kind, layers, params, scores_of, other_params, other_scores, head, again, pp = model
        checkpointing = _CHECKPOINTING[again]
        costs = (layer_cost(params, scores_of, checkpointing),) * first_kind
        costs += (layer_cost(other_params, other_scores, checkpointing),) * (layers - first_kind)
        dealt = np.cumsum(split_by_cost((*costs, head), pp))
        model_ends[1 : pp + 1], model_ends[pp + 1 :] = dealt, dealt[-1]
    return np.asarray(ends[model_of.reshape(-1)])


def shared_ffn(f: Features) -> Floats:
    """Width of the shared experts, which every token of a layer with experts goes through, (n,)."""
    dense = (1 - f.expert_share) * f.dense_ffn
    width: Floats = np.maximum(f.ffn_hidden_size - dense, 0.0) / np.maximum(f.expert_share, 1e-9)
    return width


def dense_blocks(f: Features) -> Floats:
    """Attentions and feed-forwards of the average layer that every token goes through, (n,)."""
    return np.asarray(f.attentions + 1 - np.where(shared_ffn(f) > 0, 0.0, f.expert_share))


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
