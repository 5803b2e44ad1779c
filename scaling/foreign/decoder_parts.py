"""The columns of a table that say which experts, latents and windows a model has."""

import re
from collections.abc import Mapping

import numpy as np

from scaling.foreign.arrays import Floats, Strings
from scaling.foreign.columns import MAX_COUNT, Columns
from scaling.layout.optional_parts import PART_SIZES

PLAIN_ATTENTION = ("", "mha", "mqa", "gqa")

# What tables say of windows in words: every second layer has one, of so many tokens.
_ALTERNATING = re.compile(r"[gmq]+a, every other layer a window of (\d{1,6})")

# What a table that says no more than `mla` is taken to mean: DeepSeek-V3's (arXiv 2412.19437).
_LATENT = {"query_rank": 1536, "key_value_rank": 512, "rotary_head_dim": 64, "value_head_dim": 128}


def attention_kinds(columns: Columns) -> Strings:
    """`attention_kind` in small letters, (n,), empty where a table says nothing."""
    stated = columns.strings("attention_kind", "")
    return np.array([kind.lower() for kind in stated.tolist()], dtype=object)


def window_tokens(kind: Strings) -> Floats:
    """Tokens of the window that an `attention_kind` names, 0 where it names none, (n,)."""
    known = {text: _ALTERNATING.fullmatch(text) for text in set(kind.tolist())}
    return np.array([float(m[1]) if (m := known[text]) else 0.0 for text in kind.tolist()])


def read_optional_parts(
    columns: Columns, num_layers: Floats, by_name: Mapping[str, Floats] | None = None
) -> dict[str, Floats]:
    """The sizes of `OptionalParts`, (n,), 0 where a row's model has no such part.

    `by_name` is what the models' names say, NaN where they say nothing. `attention_kind` fills
    what the columns of its part leave open: mla, and windows in every other layer. A table may say
    of a dense model that all its layers are dense.

    Raises:
        InputError: a cell is no count.
    """
    parts = {
        name: columns.numbers(
            name,
            np.nan_to_num(by_name[name]) if by_name else 0.0,
            high=MAX_COUNT,
            whole=True,
            silent=True,
        )
        for name in PART_SIZES
    }
    dense = parts["num_experts"] <= 1
    for name in PART_SIZES[: PART_SIZES.index("query_rank")]:
        parts[name] = np.where(dense, 0.0, parts[name])
    kind = attention_kinds(columns)
    latent = (kind == "mla") & (parts["key_value_rank"] == 0)
    if latent.any():
        columns.assumptions.append(
            f"key_value_rank is not given in {int(latent.sum())} rows of attention_kind mla: its "
            "ranks and head sizes are taken as DeepSeek-V3's"
        )
    for name, size in _LATENT.items():
        parts[name] = np.where(latent, float(size), parts[name])
    windowed = (window_tokens(kind) > 0) & (parts["window"] == 0)
    parts["window"] = np.where(windowed, window_tokens(kind), parts["window"])
    half = np.floor(num_layers / 2)
    parts["windowed_layers"] = np.where(windowed, half, parts["windowed_layers"])
    return parts
