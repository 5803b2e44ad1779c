"""The model shapes of foreign rows: as stated, as a known model has them, or as is usual."""

from collections.abc import Mapping

import numpy as np

from scaling.errors import InputError, did_you_mean, shortened
from scaling.foreign.arrays import Flags, Floats, Strings
from scaling.foreign.columns import MAX_COUNT, MAX_EXACT_INT, Columns
from scaling.foreign.decoder_parts import read_optional_parts
from scaling.foreign.spellings import find_model
from scaling.layout.shapes import ModelShape
from scaling.predict.read.inputs import SHAPE

_GPT2_VOCABULARY = 50304.0  # padded to a multiple of 128
_WIDTH_PER_LAYER = 128.0  # hidden_size / num_layers of GPT-3 175B (12288 / 96)


def shapes_of_rows(
    columns: Columns, model: Strings, models: Mapping[str, ModelShape], note: Strings
) -> dict[str, Floats]:
    """The shape of each row's model by the names of SHAPE, (n,) each, NaN where unknown.

    In order of preference: shape columns; the model of `models` that the name means, unless stated
    layers or width contradict it; the shape of a GPT of 128 hidden elements a layer that has
    `total_params`, which is told as an assumption.

    Raises:
        InputError: the table has none of these, or no row's model is known.
    """
    has_shape = "num_layers" in columns and "hidden_size" in columns
    hidden, layers = columns.counts("hidden_size"), columns.counts("num_layers")
    meant = {name: find_model(name, models) for name in dict.fromkeys(model.tolist())}
    by_model = {name: np.full(len(columns), np.nan) for name in SHAPE}
    for name, catalogue_name in meant.items():
        if catalogue_name is not None:
            shape = models[catalogue_name]
            rows = (model == name) & (np.isnan(layers) | (layers == shape.num_layers))
            rows &= np.isnan(hidden) | (hidden == shape.hidden_size)
            for part in SHAPE:
                by_model[part][rows] = float(getattr(shape, part))
            if not has_shape and catalogue_name != name:
                columns.assume_meaning("model", name, catalogue_name)
    if not has_shape and "total_params" not in columns and len(columns):
        unknown = np.array([meant[name] is None for name in model.tolist()])
        if "model" not in columns:
            raise InputError(
                f"{columns.source}: columns num_layers and hidden_size are missing: give the "
                "model's shape, or total_params, or a model of config/models.yaml"
            )
        if unknown.all():
            hint = did_you_mean(model[0][:60], models)
            raise columns.cell_error(
                "model", 0, f"has no shape columns and is not in config/models.yaml: {hint}"
            )
        for row in np.flatnonzero(unknown):
            note[row] = f"model={shortened(model[row])} has no shape columns and is not known"
    return _completed_shape(columns, layers, hidden, by_model)


def _completed_shape(
    columns: Columns, layers: Floats, hidden: Floats, by_model: Mapping[str, Floats]
) -> dict[str, Floats]:
    """Shape columns, completed from the catalogue's model (`by_model`) and from usual ratios."""
    layers = np.where(np.isnan(layers), by_model["num_layers"], layers)
    hidden = np.where(np.isnan(hidden), by_model["hidden_size"], hidden)
    implied = np.isnan(layers) | np.isnan(hidden)
    if "total_params" in columns and implied.any():
        # 12 L h^2 parameters with h = 128 L
        params = columns.numbers("total_params", low=1, high=MAX_EXACT_INT)
        depth = np.maximum(np.round(np.cbrt(params / (12 * _WIDTH_PER_LAYER**2))), 1)
        layers = np.where(np.isnan(layers), depth, layers)
        hidden = np.where(np.isnan(hidden), _WIDTH_PER_LAYER * layers, hidden)
        columns.assumptions.append(
            f"num_layers and hidden_size are not given in {int(implied.sum())} rows: total_params "
            "taken as a GPT of 128 hidden elements a layer"
        )

    def usual(name: str, default: Floats | Flags | float) -> Floats:
        return np.where(np.isnan(by_model[name]), default, by_model[name])

    def size(name: str, default: Floats | float, *, low: float = 1, silent: bool = False) -> Floats:
        default = usual(name, default)
        return columns.numbers(name, default, low=low, high=MAX_COUNT, whole=True, silent=silent)

    def flag(name: str, default: Flags | bool) -> Floats:
        return columns.flags(name, usual(name, default) > 0).astype(np.float64)

    heads = size("num_heads", np.maximum(np.round(hidden / 128), 1))
    ungrouped = np.isnan(by_model["num_kv_heads"]) & np.isnan(columns.counts("num_kv_heads"))
    if ungrouped.any():
        columns.assume(
            f"num_kv_heads is not given in {int(ungrouped.sum())} rows: taken as num_heads"
        )
    width = columns.numbers("ffn_hidden_size", low=1, high=MAX_COUNT, silent=True)
    # an mlp whose width is not four times the model's is taken as gated
    unusual = ~np.isnan(width) & (width != 4 * hidden)
    gated = flag("gated_mlp", np.isin(columns.strings("family", ""), ["llama", "t5"]) | unusual)
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": size("num_kv_heads", heads, silent=True),
        "head_dim": size("head_dim", hidden / heads, silent=True),
        "ffn_hidden_size": size("ffn_hidden_size", np.where(gated > 0, 8 / 3, 4.0) * hidden),
        "vocab_size": size("vocab_size", _GPT2_VOCABULARY),
        "num_encoder_layers": size("num_encoder_layers", 0.0, low=0, silent=True),
        "gated_mlp": gated,
        "tied_embeddings": flag("tied_embeddings", False),
        "query_key_norm": flag("query_key_norm", False),
        "max_positions": size("max_positions", 0.0, low=0, silent=True),
        **read_optional_parts(columns, layers, by_model),
    }
