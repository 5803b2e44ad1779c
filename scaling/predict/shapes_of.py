"""Model shapes from a table: from its columns, from a catalogue of models, or from a size alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scaling.errors import InputError, did_you_mean
from scaling.predict.columns import Columns, Floats, Words
from scaling.shapes import ModelShape

_SHAPE = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size", "vocab_size")
_GPT2_VOCABULARY = 50304.0  # padded to a multiple of 128
_LAYERS_TO_WIDTH = 128.0  # hidden_size / num_layers of GPT-3 175B (12288 / 96)


def shapes_of(
    columns: Columns, model: Words, models: Mapping[str, ModelShape] | None
) -> dict[str, Any]:
    """The shape of every row's model as arrays (n,), NaN where a cell is empty.

    Shape columns win. Without them the model's name is looked up in `models`; without that
    `total_params` implies a GPT shape of 128 hidden elements a layer, which is said.

    Raises:
        InputError: the table has neither, or a model is unknown.
    """
    known = "num_layers" in columns and "hidden_size" in columns
    if not known and models is not None and len(columns) and "model" in columns:
        return _derived(_from_catalogue(columns, model, models))
    if not known and "total_params" not in columns and len(columns):
        raise InputError(
            f"{columns.source}: columns num_layers and hidden_size are missing: give the model's "
            "shape, or total_params, or a model of config/models.yaml"
        )
    return _derived(_from_columns(columns, known))


def _from_catalogue(
    columns: Columns, model: Words, models: Mapping[str, ModelShape]
) -> dict[str, Floats]:
    for name in set(model.tolist()):
        if name not in models:
            raise InputError(
                f"{columns.source}: model={name!r} has no shape columns and is not in "
                f"config/models.yaml: {did_you_mean(name, models)}"
            )
    wanted = (*_SHAPE, "head_dim", "num_encoder_layers", "gated_mlp", "tied_embeddings")
    shapes = [models[name] for name in model.tolist()]
    return {
        name: np.array([float(getattr(shape, name)) for shape in shapes], dtype=np.float64)
        for name in wanted
    }


def _from_columns(columns: Columns, known: bool) -> dict[str, Floats]:
    hidden = columns.numbers("hidden_size", low=1)
    layers = columns.numbers("num_layers", low=1)
    if not known:
        # 12 L h^2 parameters with h = 128 L
        params = columns.numbers("total_params", low=1)
        implied = np.maximum(np.round(np.cbrt(params / (12 * _LAYERS_TO_WIDTH**2))), 1)
        layers = np.where(np.isnan(layers), implied, layers)
        hidden = np.where(np.isnan(hidden), _LAYERS_TO_WIDTH * layers, hidden)
        columns.assumptions.append(
            "num_layers and hidden_size are not given: total_params taken as a GPT of 128 hidden "
            "elements a layer"
        )
    heads = columns.numbers("num_heads", np.maximum(np.round(hidden / 128), 1), low=1)
    family = columns.words("family", "")
    gated = columns.flags("gated_mlp", np.isin(family, ["llama", "t5"]))
    ffn = columns.numbers("ffn_hidden_size", np.where(gated, 8 / 3, 4.0) * hidden, low=1)
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": columns.numbers("num_kv_heads", heads, low=1, plain=True),
        "head_dim": columns.numbers("head_dim", hidden / heads, low=1, plain=True),
        "ffn_hidden_size": ffn,
        "vocab_size": columns.numbers("vocab_size", _GPT2_VOCABULARY, low=1),
        "num_encoder_layers": columns.numbers("num_encoder_layers", 0.0, plain=True),
        "gated_mlp": gated.astype(np.float64),
        "tied_embeddings": columns.flags("tied_embeddings", False).astype(np.float64),
    }


def _derived(shape: dict[str, Floats]) -> dict[str, Any]:
    encoder, decoder = shape["num_encoder_layers"], shape["num_layers"]
    blocks = encoder + decoder
    # a decoder layer beside an encoder attends twice, to itself and to the encoder
    attentions = np.where(encoder > 0, encoder + 2 * decoder, decoder)
    # only a decoder's own attention is causal
    computed = np.where(encoder > 0, encoder + 1.5 * decoder, 0.5 * decoder)
    with np.errstate(invalid="ignore"):
        return {
            "num_layers": blocks,
            "hidden_size": shape["hidden_size"],
            "num_heads": shape["num_heads"],
            "query_width": shape["num_heads"] * shape["head_dim"],
            "kv_width": shape["num_kv_heads"] * shape["head_dim"],
            "ffn_hidden_size": shape["ffn_hidden_size"],
            "mlp_inputs": 1.0 + shape["gated_mlp"],
            "vocab_size": shape["vocab_size"],
            "embeddings": 2.0 - shape["tied_embeddings"],
            "attentions": attentions / blocks,
            "causal": computed / attentions,
            # a t5 sequence trains on an input and a target (shapes.py)
            "streams": np.where(encoder > 0, 2.0, 1.0),
        }
