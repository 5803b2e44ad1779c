"""How layers are dealt to pipeline stages, and which weights each stage holds."""

from dataclasses import dataclass

import numpy as np

from scaling.predict.columns import Flags, Floats
from scaling.predict.features import Features
from scaling.predict.stacks import Stack


@dataclass(frozen=True, slots=True)
class Stages:
    """Layers of the first, a middle and the last stage, (n,); the whole model where pp = 1."""

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
    return Stages(first, first, np.where(piped, last, layers), piped)


def weights_of_heaviest_stage(f: Features, stages: Stages) -> Floats:
    """Parameters of the stage that has most, per tp rank: it moves and updates most."""
    layer, head = layer_params(f), head_params(f)
    piped = np.maximum(stages.first, stages.last) * layer + head
    return np.where(stages.piped, piped, f.num_layers * layer + f.embeddings * head) / f.tp
