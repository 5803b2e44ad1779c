"""Which stage of a pipeline holds which layers: runs of them, so that the slowest is fastest.

A stage's cost is the FLOPs of its layers; the last stage has the output head too, which for a large
vocabulary costs as much as several layers, and the first one the look-up, which costs none. Layers
of an encoder, without a second attention, cost less than those of its decoder, and layers of
experts cost what the experts that a token takes cost.
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
    """Layers of each stage, first to last, those of an encoder before those of the decoder.

    The dearest stage is as cheap as can be, and the others are alike. The last stage can have the
    head alone; every other has a layer, so pp is at most the number of layers.
    """
    return split_by_cost(layer_and_head_costs(shape, seq_length, activation_checkpointing), pp)


@functools.lru_cache(maxsize=4096)
def split_by_cost(costs: tuple[int, ...], pp: int) -> tuple[int, ...]:
    """The same from what each layer and, last, the head costs."""
    dealt = _dealt(costs, pp)
    return (*dealt[:-1], dealt[-1] - 1)  # the last part is the head


def layer_and_head_costs(
    shape: ModelShape, seq_length: int, activation_checkpointing: ActivationCheckpointing
) -> tuple[int, ...]:
    """FLOPs a token costs in each layer and, last, in the head: forward, backward, recomputation.

    2 per weight and 4 * width * s per attention forward, twice that backward (shapes.py).
    """
    # windows, which alternate, are dealt to layers alike
    core = 4 * shape.attention_width * shape.attended_keys(seq_length) // shape.num_layers
    crossing = 2 if shape.family == "t5" else 1
    again = activation_checkpointing
    encoder = layer_cost(shape.encoder_layer_params, core, again)
    decoder = layer_cost(shape.decoder_layer_params, crossing * core, again)
    experts = layer_cost(shape.expert_layer_params, core, again)
    layers = (encoder,) * shape.num_encoder_layers
    layers += (decoder,) * (shape.num_layers - shape.expert_layers)
    layers += (experts,) * shape.expert_layers
    return (*layers, 6 * shape.embedding_params)


def layer_cost(
    weights: int, attention: int, activation_checkpointing: ActivationCheckpointing
) -> int:
    """FLOPs a token costs in a layer of so many weights and FLOPs of attention forward."""
    forward = 2 * weights + attention
    again = {"none": 0, "selective": attention, "full": forward}
    return 3 * forward + again[activation_checkpointing]


def _dealt(costs: tuple[int, ...], stages: int) -> tuple[int, ...]:
    """How many parts each of `stages` runs has, none of them empty.

    Of all ways the one with the smallest largest run, of these the one with the smallest squares,
    of these the one with the smallest first runs (dynamic programming over where runs end).
    """
    until = (0, *itertools.accumulate(costs))
    parts = len(costs)
    largest: dict[int, int] = {0: 0}  # by where the runs so far end
    for stage in range(1, stages + 1):
        largest = {
            end: min(max(most, until[end] - until[begin]) for begin, most in largest.items()
                     if begin < end)
            for end in range(stage, parts - stages + stage + 1)
        }  # fmt: skip
    limit = largest[parts]
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(1, stages + 1):
        ways = {
            end: [
                (squares + run * run, (*sizes, end - begin))
                for begin, (squares, sizes) in best.items()
                if begin < end and (run := until[end] - until[begin]) <= limit
            ]
            for end in range(stage, parts - stages + stage + 1)
        }
        best = {end: min(costs) for end, costs in ways.items() if costs}
    return best[parts][1]
