"""How layers are dealt to pipeline stages, and which weights each stage holds."""

from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.layout.axes import ActivationCheckpointing
from scaling.layout.partition import layer_cost, split_by_cost
from scaling.predict.cost.experts import held_params, routed_params
from scaling.predict.read.features import Features
from scaling.predict.read.stack_facts import Stack


@dataclass(frozen=True, slots=True)
class Stages:
    """Layers of the first, a middle and the last stage, (n,); the whole model where pp = 1.

    In an encoder-decoder they are layers of average weight, which all formulas multiply.
    """

    first: Floats
    middle: Floats
    last: Floats
    piped: Flags


def layer_params(f: Features) -> Floats:
    """Matmul weights of the average layer (shapes.py), routed experts apart (experts.py)."""
    attention = 2 * f.hidden_size * (f.query_width + f.kv_width) * f.attention_weights
    return f.attentions * attention + (f.mlp_inputs + 1) * f.hidden_size * f.ffn_hidden_size


def multiplied_params(f: Features) -> Floats:
    """Weights that a token is multiplied with in the average layer, those of its experts too."""
    return layer_params(f) + routed_params(f)


def head_params(f: Features) -> Floats:
    """Weights of one vocabulary matrix."""
    return f.vocab_size * f.hidden_size


def stages_of(f: Features, stack: Stack) -> Stages:
    """Deal the layers.

    even: ceil(L / pp) layers a stage, the last one takes what is left (Megatron, DeepSpeed with
    uneven counts). by_cost: the head counts as head_params / layer_params layers and a stage takes
    layers until its share of the cost is passed (nanotron). even_or_ends: even, but where layers do
    not divide and two more would, embedding and head count as a layer each (Megatron-Core's
    account_for_embedding_in_pipeline_split). slowest_least: as this project's engine deals them
    (scaling/layout/partition.py), and as encoder-decoders of any software are taken.
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
        if stack.split == "even_or_ends":
            ends = piped & (layers % pp > 0) & ((layers + 2) % pp == 0)
            middle = np.where(ends, (layers + 2) / pp, middle)
            first, last = np.where(ends, middle - 1, first), np.where(ends, middle - 1, last)
    return _of_two_stacks(f, Stages(first, middle, np.where(piped, last, layers), piped))


def _slowest_least(f: Features) -> Stages:
    """Layers of the engine's own stages, as scaling/layout/partition.py deals them.

    All stages but the last have the same number of layers or one more, so what remains to be found
    is how many the last one has beside the head: next to the number at which all cost the same.
    """
    layers, pp = f.num_layers, np.maximum(f.pp, 2.0)
    core = 4 * f.attentions * f.query_width * f.seq_length
    forward = 2 * multiplied_params(f) + core
    layer = 3 * forward + np.where(f.full, forward, np.where(f.selective, core, 0.0))
    head = 6 * head_params(f) / layer  # in layers
    alike = np.floor((layers + head) / pp - head)
    chosen = np.zeros_like(layers)
    least_most, least_squares = np.full_like(layers, np.inf), np.full_like(layers, np.inf)
    for nearby in (0.0, 1.0, -1.0):
        last = np.clip(alike + nearby, 0.0, layers - (pp - 1))
        fewest = np.floor((layers - last) / (pp - 1))
        fuller = layers - last - fewest * (pp - 1)  # stages with one more
        most = np.maximum(fewest + (fuller > 0), last + head)
        squares = fuller * (2 * fewest + 1) + (pp - 1) * fewest**2 + (last + head) ** 2
        better = (most < least_most) | ((most == least_most) & (squares < least_squares))
        chosen = np.where(better, last, chosen)
        least_most = np.where(better, most, least_most)
        least_squares = np.where(better, squares, least_squares)
    fewest = np.floor((layers - chosen) / (pp - 1))
    fuller = layers - chosen > fewest * (pp - 1)
    piped = f.pp > 1
    stages = Stages(
        np.where(piped, fewest, layers),
        # of those between the ends the fullest: it can be the one that all wait for
        np.where(piped, fewest + fuller, layers),
        np.where(piped, chosen, layers),
        piped,
    )
    return _of_two_stacks(f, stages)


def _of_two_stacks(f: Features, stages: Stages) -> Stages:
    """The same with the stages of encoder-decoders, in layers of their average weight."""
    rows = np.flatnonzero(stages.piped & (f.attentions > 1))
    if not len(rows):
        return stages
    first, middle, last = stages.first.copy(), stages.middle.copy(), stages.last.copy()
    own = f.take(rows)
    ends = ends_of_two_kinds(own, own.pp)
    # with a attentions a layer on average a - 1 of the layers are a decoder's, each of two
    attention, average = 2 * own.hidden_size * (own.query_width + own.kv_width), layer_params(own)
    encoder = (1 - (own.attentions - 1) * attention / average)[:, None]
    decoder = (1 + (2 - own.attentions) * attention / average)[:, None]
    encoders = ((2 - own.attentions) * own.num_layers)[:, None]
    weighed = np.minimum(ends, encoders) * encoder + np.maximum(ends - encoders, 0.0) * decoder
    of_stages, stage = np.diff(weighed, axis=1), np.arange(ends.shape[1] - 1)
    at_end = (own.pp - 1).astype(int)
    first[rows], last[rows] = of_stages[:, 0], of_stages[np.arange(len(rows)), at_end]
    between = np.where((stage > 0) & (stage < at_end[:, None]), of_stages, 0.0).max(axis=1)
    middle[rows] = np.where(at_end > 1, between, first[rows])
    return Stages(first, middle, last, stages.piped)


def ends_of_two_kinds(f: Features, stages: Floats) -> Floats:
    """Layers before each stage, (n, most stages + 1), where all of one kind come first.

    An encoder's before its decoder's, dense ones before those with experts; as the engine deals
    them (scaling/layout/partition.py), each different model once.
    """
    both, attention = f.attentions > 1, 2 * f.hidden_size * (f.query_width + f.kv_width)
    matrices, core = (f.mlp_inputs + 1) * f.hidden_size, 4 * f.query_width * f.seq_length
    chosen = shared_ffn(f) + f.experts_per_token * f.expert_ffn
    routed = attention + matrices * chosen + f.hidden_size * f.num_experts
    facts = [
        np.where(both, 2 - f.attentions, 1 - f.expert_share) * f.num_layers,
        f.num_layers,
        attention + matrices * np.where(both, f.ffn_hidden_size, f.dense_ffn),
        np.where(both, 2 * attention + matrices * f.ffn_hidden_size, routed),
        core,
        np.where(both, 2.0, 1.0) * core,
        6 * head_params(f),
        np.where(f.full, 2.0, np.where(f.selective, 1.0, 0.0)),
        stages,
    ]
    kinds, kind_of = np.unique(np.round(np.stack(facts, axis=1)), axis=0, return_inverse=True)
    ends = np.zeros((len(kinds), int(stages.max()) + 1))
    for values, of_kind in zip(kinds.astype(int).tolist(), ends, strict=True):
        first, layers, *sizes, head, recomputed, pp = values
        again: ActivationCheckpointing = ("none", "selective", "full")[recomputed]
        one, other = (layer_cost(sizes[kind], sizes[kind + 2], again) for kind in (0, 1))
        dealt = split_by_cost((one,) * first + (other,) * (layers - first) + (head,), pp)
        of_kind[1:] = np.cumsum((*dealt, *(0,) * (len(of_kind) - 1 - pp)))
    return np.asarray(ends[kind_of.reshape(-1)])


def shared_ffn(f: Features) -> Floats:
    """Width of what every token goes through in a layer of experts, the shared ones."""
    dense = (1 - f.expert_share) * f.dense_ffn
    width: Floats = np.maximum(f.ffn_hidden_size - dense, 0.0) / np.maximum(f.expert_share, 1e-9)
    return width


def weights_of_heaviest_stage(f: Features, stages: Stages) -> Floats:
    """Parameters of the stage that has most, per tp rank: it moves and updates most."""
    layer, head = layer_params(f), head_params(f)
    between = np.where(f.pp > 2, stages.middle * layer, 0.0)
    piped = np.maximum(np.maximum(stages.first, stages.last) * layer + head, between)
    return np.where(stages.piped, piped, f.num_layers * layer + f.embeddings * head) / f.tp


def experts_of_heaviest_stage(f: Features, stages: Stages) -> Floats:
    """Parameters of routed experts that a rank of the stage with most layers holds."""
    layers = np.maximum(np.maximum(stages.first, stages.last), np.where(f.pp > 2, stages.middle, 0))
    return np.asarray(np.where(stages.piped, layers, f.num_layers) * held_params(f))
