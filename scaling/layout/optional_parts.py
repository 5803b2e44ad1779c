"""Optional parts of a decoder: experts, latent attention, windows and variants of attention.

Every default means that the part is absent. Shapes from before a part existed, and the ids of
points measured with them, therefore stay valid.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Router = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalParts:
    """The sizes and switches of the optional parts; 0 and false where a model lacks the part.

    Experts (arXiv 1701.06538): every layer after the first `dense_layers` has `num_experts`
    feed-forwards of width `expert_ffn_hidden_size`. The router sends each token to the
    `experts_per_token` with the highest scores and weights them by score; the weights sum to one if
    `normalised_router`. Every token also passes through `shared_experts` of the same width.

    Latent attention (arXiv 2405.04434, section 2.1): keys and values are projected up from
    `key_value_rank` numbers per token, queries from `query_rank` (0: from the hidden state). Per
    head, query and key have `head_dim` numbers plus `rotary_head_dim` rotated ones (all heads share
    that part of the key), and the value has `value_head_dim`.

    Windows: in `windowed_layers` layers a token attends to the last `window` tokens only.
    `query_key_norm`: query and key of each head are normalised; `whole_query_key_norm`: over all
    heads at once. `attention_sinks`: one learned score per head that attends to nothing.
    `linear_biases`: in attention, router and experts; `query_key_value_biases`: those three only.
    `router_bias`: one number per expert that balances the choice (arXiv 2408.15664).
    """

    num_experts: int = 0
    experts_per_token: int = 0
    expert_ffn_hidden_size: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    router: Router = "softmax"
    normalised_router: bool = True
    query_rank: int = 0
    key_value_rank: int = 0
    rotary_head_dim: int = 0
    value_head_dim: int = 0
    window: int = 0
    windowed_layers: int = 0
    query_key_norm: bool = False
    attention_sinks: bool = False
    linear_biases: bool = False
    whole_query_key_norm: bool = False
    query_key_value_biases: bool = False
    router_bias: bool = False


PART_DEFAULTS = {each.name: each.default for each in dataclasses.fields(OptionalParts)}
# The fields that are numbers.
PART_SIZES = tuple(each.name for each in dataclasses.fields(OptionalParts) if each.type is int)

PART_NAMES = tuple(PART_DEFAULTS)
_OF_EXPERTS = PART_NAMES[: PART_NAMES.index("query_rank")]


def stated_parts(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a row states, by name; those of experts only if it has experts."""
    stated = {name: row[name] for name in PART_NAMES if row.get(name) is not None}
    if not stated.get("num_experts"):
        stated = {name: value for name, value in stated.items() if name not in _OF_EXPERTS}
    return stated


# How published tables state windows: every second layer has one of this many tokens.
_ALTERNATING = re.compile(r"[gmq]+a, every other layer a window of (\d{1,6})")
# Sizes of `mla` if nothing else is known: DeepSeek-V3 (arXiv 2412.19437).
_LATENT = {"query_rank": 1536, "key_value_rank": 512, "rotary_head_dim": 64, "value_head_dim": 128}


def parts_of_kind(attention_kind: str, num_layers: int) -> dict[str, int]:
    """The sizes that a published table's `attention_kind` stands for; none of plain attention."""
    if attention_kind == "mla":
        return dict(_LATENT)
    if found := _ALTERNATING.fullmatch(attention_kind):
        return {"window": int(found[1]), "windowed_layers": num_layers // 2}
    return {}
