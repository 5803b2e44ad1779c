"""Split a model's layers into pipeline stages so that the most expensive stage is cheapest.

A stage costs the FLOPs of its layers. The last stage also has the output head, which for a large
vocabulary costs as much as several layers; the look-up on the first stage costs nothing. Encoder
layers lack cross-attention and cost less than decoder layers. A layer of experts costs what the
experts chosen for a token cost.
"""

import functools
import itertools

from scaling.layout.axes import ActivationCheckpointing
from scaling.layout.shapes import ModelShape


def layers_of_stages(
    shape: ModelShape,
    *,
    pp: int,
    seq_length: int,
    activation_checkpointing: ActivationCheckpointing = "none",
) -> tuple[int, ...]:
    """Number of layers of each stage, first to last; an encoder's layers precede the decoder's.

    The last stage may hold the head alone. Every other stage has a layer, so pp is at most the
    number of layers.
    """
    return split_by_cost(layer_and_head_costs(shape, seq_length, activation_checkpointing), pp)


@functools.lru_cache(maxsize=4096)
def split_by_cost(costs: tuple[int, ...], pp: int) -> tuple[int, ...]:
    """Number of layers of each stage, from the costs of each layer and, last, of the head."""
    sizes = _split(costs, pp)
    return (*sizes[:-1], sizes[-1] - 1)  # the head is no layer


def layer_and_head_costs(
    shape: ModelShape, seq_length: int, activation_checkpointing: ActivationCheckpointing
) -> tuple[int, ...]:
    """FLOPs per token of each layer and, last, of the head: forward, backward, recomputation.

    The forward costs 2 per weight and 4 * width * s per attention, the backward twice that
    (shapes.py).
    """
    # layers with and without a window alternate, so each is charged the mean
    core = 4 * shape.attention_width * shape.attended_keys(seq_length) // shape.num_layers
    attentions = 2 if shape.family == "t5" else 1
    encoder = layer_cost(shape.encoder_layer_params, core, activation_checkpointing)
    decoder = layer_cost(shape.decoder_layer_params, attentions * core, activation_checkpointing)
    experts = layer_cost(shape.expert_layer_params, core, activation_checkpointing)
    layers = (encoder,) * shape.num_encoder_layers
    layers += (decoder,) * (shape.num_layers - shape.expert_layers)
    layers += (experts,) * shape.expert_layers
    return (*layers, 6 * shape.embedding_params)


def layer_cost(
    weights: int, attention: int, activation_checkpointing: ActivationCheckpointing
) -> int:
    """FLOPs per token of a layer, from its weights and the FLOPs of its attention's forward."""
    forward = 2 * weights + attention
    recomputed = {"none": 0, "selective": attention, "full": forward}
    return 3 * forward + recomputed[activation_checkpointing]


def _split(costs: tuple[int, ...], stages: int) -> tuple[int, ...]:
    """How many consecutive parts each stage gets, at least one each.

    It minimises the largest cost of a stage; among equal splits the sum of squared costs, then the
    sizes of the first stages (dynamic programming over the end of the last stage so far).
    """
    total = (0, *itertools.accumulate(costs))  # cost of all parts before an index
    parts = len(costs)
    largest: dict[int, int] = {0: 0}  # end of the stages so far -> least largest cost
    for stage in range(1, stages + 1):
        largest = {
            end: min(max(cost, total[end] - total[begin]) for begin, cost in largest.items()
                     if begin < end)
            for end in range(stage, parts - stages + stage + 1)
        }  # fmt: skip
    limit = largest[parts]
    # end of the stages so far -> sum of squares, sizes
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(1, stages + 1):
        candidates = {
            end: [
                (squares + cost * cost, (*sizes, end - begin))
                for begin, (squares, sizes) in best.items()
                if begin < end and (cost := total[end] - total[begin]) <= limit
            ]
            for end in range(stage, parts - stages + stage + 1)
        }
        best = {end: min(splits) for end, splits in candidates.items() if splits}
    return best[parts][1]
