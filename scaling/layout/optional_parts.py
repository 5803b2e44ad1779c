"""What a decoder may have beside dense layers of plain attention: experts, latents, windows.

Every field is at a default that means the part is absent: a shape from before the part existed, and
the ids of points measured with it, stay what they were.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Router = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalParts:
    """The numbers that fix those parts; 0 and false where a model has none of one.

    Experts (arXiv 1701.06538): in each layer but the first `dense_layers` a router scores
    `num_experts` feed-forwards of `expert_ffn_hidden_size`, a token takes the `experts_per_token`
    best of them, weighted by `router`'s scores, which sum to one where `normalised_router`; every
    token also takes `shared_experts` more of that size.

    Latent attention (arXiv 2405.04434, section 2.1): keys and values are made from
    `key_value_rank` numbers a token, queries from `query_rank` (0: from the hidden state); a head's
    query and key have `head_dim` numbers and `rotary_head_dim` more that are rotated (one such key
    for all heads), its value has `value_head_dim`.

    Windows: a token of `windowed_layers` layers sees the last `window` tokens only.
    `query_key_norm`: each head's query and key are normalised. `attention_sinks`: a learned score a
    head that attends to nothing. `linear_biases`: of attention, router and experts.
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


PART_DEFAULTS = {each.name: each.default for each in dataclasses.fields(OptionalParts)}
# Those that are sizes, which a formula over arrays takes as numbers.
PART_SIZES = tuple(each.name for each in dataclasses.fields(OptionalParts) if each.type is int)

PART_NAMES = tuple(PART_DEFAULTS)
_OF_EXPERTS = PART_NAMES[: PART_NAMES.index("query_rank")]


def stated_parts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a row states, by name; a row without experts states nothing of experts."""
    stated = {name: facts[name] for name in PART_NAMES if facts.get(name) is not None}
    if not stated.get("num_experts"):
        stated = {name: value for name, value in stated.items() if name not in _OF_EXPERTS}
    return stated


def part_errors(parts: Any) -> list[str]:
    """What does not fit together among the fields of `OptionalParts` and num_layers, num_heads.

    One sentence each, without the place; none if all is well.
    """
    wrong = []
    sizes = ("experts_per_token", "expert_ffn_hidden_size")
    latent = ("rotary_head_dim", "value_head_dim")
    for whole, needed, allowed in (
        ("num_experts", sizes, (*sizes, "shared_experts", "dense_layers")),
        ("key_value_rank", latent, ("query_rank", *latent)),
    ):
        present = getattr(parts, whole)
        if present:
            missing = [name for name in needed if not getattr(parts, name)]
            wrong += [f"{whole}={present}: {name} is missing" for name in missing[:1]]
        else:
            beside = [name for name in allowed if getattr(parts, name)]
            wrong += [f"{name}={getattr(parts, name)}: {whole} is missing" for name in beside[:1]]
    if parts.num_experts and parts.experts_per_token > parts.num_experts:
        wrong.append(
            f"experts_per_token={parts.experts_per_token} is more than "
            f"num_experts={parts.num_experts}"
        )
    if parts.num_experts and parts.dense_layers >= parts.num_layers:
        wrong.append(
            f"dense_layers={parts.dense_layers} leaves none of num_layers={parts.num_layers} "
            "for the experts"
        )
    if (parts.window > 0) != (parts.windowed_layers > 0):
        wrong.append(
            f"window={parts.window} and windowed_layers={parts.windowed_layers}: "
            "both or none of them"
        )
    if parts.windowed_layers > parts.num_layers:
        wrong.append(
            f"windowed_layers={parts.windowed_layers} is more than num_layers={parts.num_layers}"
        )
    return wrong
