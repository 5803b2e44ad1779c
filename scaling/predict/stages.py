"""How layers are dealt to pipeline stages, and which weights each stage holds."""

from dataclasses import dataclass

import numpy as np

from scaling.predict.columns import Flags, Floats
from scaling.predict.features import Features
from scaling.predict.stacks import Stack


@dataclass(frozen=True, slots=True)
class Stages:
    """Layers of the first, a middle and the last stage, (n,); the whole model where pp = 1.

    In an encoder-decoder they are layers of average weight, see `_weighed`.
    """

    first: Floats
    middle: Floats
    last: Floats
    piped: Flags


def layer_params(f: Features) -> Floats:
    """Matmul weights of one layer, averaged over encoder and decoder layers (shapes.py)."""
    attention = 2 * f.hidden_size * (f.query_width + f.kv_width)
    return f.attentions * attention + (f.mlp_inputs + 1) * f.hidden_size * f.ffn_hidden_size


def head_params(f: Features) -> Floats:
    """Weights of one vocabulary matrix."""
    return f.vocab_size * f.hidden_size


def stages_of(f: Features, stack: Stack) -> Stages:
    """Deal the layers.

    even: ceil(L / pp) layers a stage, the last one takes what is left (Megatron, DeepSpeed with
    uneven counts). by_cost: the head counts as head_params / layer_params layers and a stage takes
    layers until its share of the cost is passed (nanotron).
    """
    layers, pp = f.num_layers, f.pp
    piped = pp > 1
    if stack.split == "by_cost":
        share = (layers + head_params(f) / layer_params(f)) / pp
        first = np.minimum(layers, np.ceil(share))
        last = layers - np.minimum(layers, np.ceil((pp - 1) * share))
    else:
        first = np.ceil(layers / pp)
        last = np.maximum(layers - first * (pp - 1), 0)
    stages = Stages(first, first, np.where(piped, last, layers), piped)
    return _weighed(f, stages) if (piped & (f.attentions > 1)).any() else stages


def _weighed(f: Features, stages: Stages) -> Stages:
    """The stages of an encoder-decoder in layers of average weight, which all formulas multiply.

    The encoder's blocks come first. With a attention blocks a layer on average a - 1 of the blocks
    are decoder layers, each of two attentions (its own and the encoder's) and an mlp.
    """
    mixed = stages.piped & (f.attentions > 1)
    attention = 2 * f.hidden_size * (f.query_width + f.kv_width)
    average = layer_params(f)
    encoder = 1 - (f.attentions - 1) * attention / average
    decoder = 1 + (2 - f.attentions) * attention / average
    encoders = (2 - f.attentions) * f.num_layers
    decoders = f.num_layers - encoders
    in_first, in_last = np.minimum(stages.first, encoders), np.minimum(stages.last, decoders)
    first = in_first * encoder + (stages.first - in_first) * decoder
    last = in_last * decoder + (stages.last - in_last) * encoder
    # stages between hold what the ends leave: alike, for want of an order that all agree on
    middle = np.maximum(f.num_layers - first - last, 0.0) / np.maximum(f.pp - 2, 1.0)
    return Stages(
        np.where(mixed, first, stages.first),
        np.where(mixed & (f.pp > 2), middle, stages.middle),
        np.where(mixed, last, stages.last),
        stages.piped,
    )


def weights_of_heaviest_stage(f: Features, stages: Stages) -> Floats:
    """Parameters of the stage that has most, per tp rank: it moves and updates most."""
    layer, head = layer_params(f), head_params(f)
    piped = np.maximum(stages.first, stages.last) * layer + head
    return np.where(stages.piped, piped, f.num_layers * layer + f.embeddings * head) / f.tp
