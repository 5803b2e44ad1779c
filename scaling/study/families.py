"""Names that the families of Hugging Face models give the sizes of a `ModelEntry`: a table each."""

from collections.abc import Callable, Mapping
from typing import Any

from scaling.layout.shapes import T5_BUCKETS
from scaling.study.problems import quoted

Config = Mapping[str, Any]
# A key, a key and its default (None: the field's own), or what computes the field from the keys.
Source = str | tuple[str, Any] | Callable[[Config], Any]


class WrongKey(Exception):
    """A key whose value cannot be read, and why."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key, self.problem = key, problem


def value_of(config: Config, source: Source) -> Any:
    """The value of a field, None if its key is missing and has no default."""
    if callable(source):
        return source(config)
    key, default = (source, None) if isinstance(source, str) else source
    value = config.get(key)
    if value is None and isinstance(source, str):
        raise WrongKey(key, "is missing")
    return default if value is None else value


def _count(config: Config, key: str, default: int | None = None, most: int = 10_000) -> int:
    value = value_of(config, key if default is None else (key, default))
    if type(value) is not int or not 0 <= value <= most:
        raise WrongKey(key, f"must be a whole number up to {most:,}")
    return value


def _numbers(config: Config, key: str) -> list[int] | None:
    value = config.get(key)
    if value is not None and not (isinstance(value, list) and all(type(n) is int for n in value)):
        raise WrongKey(key, "must be a list of whole numbers")
    return value


def _windowed(default: Callable[[Config, int], int], switch: str | None = None) -> Source:
    """Counts the layers that see a window: those of `layer_types`, else `default` of them."""

    def count(config: Config) -> int:
        layers, kinds = _count(config, "num_hidden_layers"), config.get("layer_types")
        if kinds is not None and not (isinstance(kinds, list) and len(kinds) == layers):
            raise WrongKey("layer_types", f"must be a list of {layers} kinds, one a layer")
        for kind in kinds or ():
            if kind not in ("full_attention", "sliding_attention"):
                raise WrongKey("layer_types", f"{quoted(kind)} cannot be counted here")
        if config.get("sliding_window") is None or (switch and not config.get(switch)):
            return 0
        return default(config, layers) if kinds is None else kinds.count("sliding_attention")

    return count


def _dense_of_qwen(config: Config) -> list[int]:
    every, named = _count(config, "decoder_sparse_step", 1), _numbers(config, "mlp_only_layers")
    layers = range(_count(config, "num_hidden_layers"))
    return [n for n in layers if n in (named or ()) or (n + 1) % max(every, 1)]


def _dense_of_llama4(config: Config) -> list[int]:
    every, mixed = _count(config, "interleave_moe_layer_step", 1), _numbers(config, "moe_layers")
    layers = range(_count(config, "num_hidden_layers"))
    return [n for n in layers if ((n + 1) % max(every, 1) if mixed is None else n not in mixed)]


def _unprojected(config: Config) -> int:
    width = _count(config, "hidden_size", most=10**6)
    if config.get("word_embed_proj_dim") not in (None, width):
        raise WrongKey("word_embed_proj_dim", f"only hidden_size={width} can be counted here")
    return width


# Which layers of a family have no experts, if these need not be the first.
DENSE: dict[str, Callable[[Config], list[int]]] = {
    "qwen3_moe": _dense_of_qwen,
    "qwen3_vl_moe_text": _dense_of_qwen,
    "llama4_text": _dense_of_llama4,
}

REFUSED_FAMILIES = {  # the beginning of model_type -> what it has
    "gemma": "four norms a layer",
    "qwen3_5|qwen3_next|kimi_linear|kimi_k3|minimax$|minimax_text": "linear attention",
    "nemotron_h|falcon_h1|mamba|falcon_mamba|jamba|bamba|zamba|granitemoehybrid|lfm2|rwkv": (
        "state-space layers among attention"
    ),
    "deepseek_v32|deepseek_v4|glm_moe_dsa|glm5": "sparse attention",
    "nemotron-nas|decilm": "blocks that differ from layer to layer",
}
REFUSED_KEYS = {
    "hybrid_override_pattern": "state-space layers",
    "mamba_num_heads": "state-space layers",
    "mamba_d_ssm": "state-space layers",
    "linear_attn_config": "linear attention",
    "full_attention_interval": "linear attention",
    "linear_num_value_heads": "linear attention",
    "index_topk": "sparse attention",
    "block_configs": "blocks that differ from layer to layer",
    "num_kv_shared_layers": "layers that share keys and values",
}

Table = dict[str, Source]


def _is(value: object) -> Source:
    return lambda config: value


_DECODER: Table = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": ("num_key_value_heads", None),
    "head_dim": ("head_dim", None),
    "ffn_hidden_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "tied_embeddings": ("tie_word_embeddings", False),
}
_HEADS_OF_128: Table = {"head_dim": ("head_dim", 128)}
_BIASES: Table = {"linear_biases": ("attention_bias", False)}  # of query, key, value and output
_WINDOW: Table = {"window": ("sliding_window", None)}
_ALL_WINDOWED = _WINDOW | {"windowed_layers": _windowed(lambda _, layers: layers)}
_LAST_WINDOWED = _WINDOW | {
    "windowed_layers": _windowed(
        lambda config, layers: max(layers - _count(config, "max_window_layers", layers), 0),
        switch="use_sliding_window",
    )
}
_EXPERTS: Table = {
    "num_experts": "num_local_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_ffn_hidden_size": "intermediate_size",
}
_SHARED: Table = {
    **_EXPERTS,
    "num_experts": "n_routed_experts",
    "expert_ffn_hidden_size": "moe_intermediate_size",
    "shared_experts": ("n_shared_experts", 0),
    "dense_layers": ("first_k_dense_replace", 0),
}
_SIGMOID: Table = {"router": ("scoring_func", "sigmoid"), "router_bias": _is(True)}
_QWEN2 = _DECODER | _LAST_WINDOWED | {"query_key_value_biases": _is(True)}
_QWEN3 = _DECODER | _HEADS_OF_128 | _BIASES | _LAST_WINDOWED | {"query_key_norm": _is(True)}
_QWEN3_MOE = {
    **_DECODER,
    **_LAST_WINDOWED,
    **_EXPERTS,
    "query_key_norm": _is(True),
    "num_experts": lambda config: value_of(
        config, "num_local_experts" if config.get("num_experts") is None else "num_experts"
    ),
    "expert_ffn_hidden_size": "moe_intermediate_size",
    "normalised_router": ("norm_topk_prob", False),
    "dense_layers": lambda config: len(_dense_of_qwen(config)),
}
_DEEPSEEK_V2 = {
    **_DECODER,
    **_SHARED,
    "num_kv_heads": _is(None),
    "head_dim": "qk_nope_head_dim",
    "rotary_head_dim": "qk_rope_head_dim",
    "value_head_dim": "v_head_dim",
    "query_rank": ("q_lora_rank", 0),
    "key_value_rank": "kv_lora_rank",
    "router": ("scoring_func", "softmax"),
    "router_bias": lambda config: config.get("topk_method") == "noaux_tc",
    "normalised_router": ("norm_topk_prob", False),
}
_DEEPSEEK_V3 = _DEEPSEEK_V2 | _SIGMOID | {"normalised_router": ("norm_topk_prob", True)}
_OPT: Table = {
    "family": _is("gpt"),
    "num_layers": "num_hidden_layers",
    "hidden_size": _unprojected,
    "num_heads": "num_attention_heads",
    "ffn_hidden_size": "ffn_dim",
    "vocab_size": "vocab_size",
    "tied_embeddings": ("tie_word_embeddings", True),
    # its look-up is shifted by two
    "max_positions": lambda config: _count(config, "max_position_embeddings", most=10**6) + 2,
}
_GPT2: Table = {
    "family": _is("gpt"),
    "num_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_heads": "n_head",
    "ffn_hidden_size": lambda config: _count(
        config, "n_inner", 4 * _count(config, "n_embd", most=10**6), most=10**7
    ),
    "vocab_size": "vocab_size",
    "tied_embeddings": ("tie_word_embeddings", True),
    "max_positions": "n_positions",
}
_T5: Table = {
    "family": _is("t5"),
    "num_layers": lambda config: value_of(config, ("num_decoder_layers", config.get("num_layers"))),
    "num_encoder_layers": "num_layers",
    "hidden_size": "d_model",
    "num_heads": "num_heads",
    "head_dim": "d_kv",
    "ffn_hidden_size": "d_ff",
    "gated_mlp": lambda config: str(config.get("feed_forward_proj")).startswith("gated-"),
    "vocab_size": "vocab_size",
    "tied_embeddings": ("tie_word_embeddings", True),
}
FAMILIES: dict[str, Table] = {  # by model_type
    "llama": _DECODER | _BIASES,
    "mistral": _DECODER | _ALL_WINDOWED,
    "mixtral": _DECODER | _ALL_WINDOWED | _EXPERTS,
    "qwen2": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "phi3": _DECODER | _ALL_WINDOWED,
    "gpt_oss": {
        **_DECODER,
        **_EXPERTS,
        **_WINDOW,
        "windowed_layers": _windowed(lambda _, layers: (layers + 1) // 2),
        "head_dim": ("head_dim", 64),
        "linear_biases": _is(True),
        "attention_sinks": _is(True),
    },
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe": {
        **_DECODER,
        **_HEADS_OF_128,
        **_SHARED,
        **_SIGMOID,
        "query_key_norm": ("use_qk_norm", False),
        "query_key_value_biases": ("attention_bias", False),
        "normalised_router": ("norm_topk_prob", True),
    },
    "minimax_m2": {
        **_DECODER,
        **_HEADS_OF_128,
        **_EXPERTS,
        **_SIGMOID,
        "whole_query_key_norm": _is(True),
        "router_bias": ("use_routing_bias", True),
    },
    "olmo2": _DECODER | _BIASES | {"whole_query_key_norm": _is(True)},
    "smollm3": {
        **_DECODER, **_BIASES, **_LAST_WINDOWED, "tied_embeddings": ("tie_word_embeddings", True),
    },
    "llama4_text": {
        **_DECODER,
        **_HEADS_OF_128,
        **_EXPERTS,
        "ffn_hidden_size": "intermediate_size_mlp",
        "dense_layers": lambda config: len(_dense_of_llama4(config)),
        "shared_experts": _is(1),
        "router": _is("sigmoid"),
        "normalised_router": _is(False),
    },
    "gpt2": _GPT2,
    "opt": _OPT,
    "t5": _T5,
    "mt5": _T5,
}  # fmt: skip
_PLAIN_LATENT = {"attention_bias": False, "moe_layer_freq": 1}
ONLY: dict[str, dict[str, Any]] = {  # keys of which one value can be counted
    "llama": {"mlp_bias": False},
    "smollm3": {"mlp_bias": False},
    "qwen3_moe": {"attention_bias": False},
    "qwen3_vl_moe_text": {"attention_bias": False},
    "gpt_oss": {"attention_bias": True},
    "deepseek_v2": _PLAIN_LATENT,
    "deepseek_v3": _PLAIN_LATENT,
    "kimi_k2": _PLAIN_LATENT,
    "minimax_m2": {
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "shared_intermediate_size": 0,
    },
    "llama4_text": {"attention_bias": False},
    "gpt2": {"add_cross_attention": False},
    "opt": {
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
    },
    "t5": {"relative_attention_num_buckets": T5_BUCKETS},
    "mt5": {"relative_attention_num_buckets": T5_BUCKETS},
}
