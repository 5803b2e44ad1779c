"""Read which experts, latents and attention windows the models of a table have."""

import re
from collections.abc import Mapping

import numpy as np

from scaling.foreign.arrays import Floats, Strings
from scaling.foreign.columns import Columns
from scaling.layout.optional_parts import PART_SIZES

PLAIN_ATTENTION = ("", "mha", "mqa", "gqa")

# How `attention_kind` states windows: every second layer has one of this many tokens.
_ALTERNATING = re.compile(r"[gmq]+a, every other layer a window of (\d{1,6})")

# Assumed where `attention_kind` is `mla` and nothing else is known: DeepSeek-V3 (arXiv 2412.19437).
_LATENT = {"query_rank": 1536, "key_value_rank": 512, "rotary_head_dim": 64, "value_head_dim": 128}


def attention_kinds(columns: Columns) -> Strings:
    """`attention_kind` in lower case, (n,); empty where the table does not state it."""
    kinds = columns.strings("attention_kind", "")
    return np.array([kind.lower() for kind in kinds.tolist()], dtype=object)


def window_tokens(kinds: Strings) -> Floats:
    """Tokens of the window that an `attention_kind` states, (n,); 0 where it states none."""
    matches = {kind: _ALTERNATING.fullmatch(kind) for kind in set(kinds.tolist())}
    return np.array([float(m[1]) if (m := matches[kind]) else 0.0 for kind in kinds.tolist()])


def read_optional_parts(
    columns: Columns, num_layers: Floats, by_name: Mapping[str, Floats] | None = None
) -> dict[str, Floats]:
    """The sizes of `OptionalParts` by name, each (n,); 0 where a row's model lacks the part.

    `by_name` holds the sizes of known models, NaN for unknown ones. `attention_kind` fills in
    latents and windows that no column states. The columns of experts are ignored for dense models.

    Raises:
        InputError: a cell is not a count.
    """
    known = by_name or dict.fromkeys(PART_SIZES, np.zeros(len(columns)))
    parts = {
        name: columns.counts(name, np.nan_to_num(known[name]), low=0, silent=True)
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
    window = window_tokens(kind)
    windowed = (window > 0) & (parts["window"] == 0)
    parts["window"] = np.where(windowed, window, parts["window"])
    half = np.floor(num_layers / 2)
    parts["windowed_layers"] = np.where(windowed, half, parts["windowed_layers"])
    return parts
