"""The sizes in the config.json of released models, and small ones of each family."""


def decoder(kind, layers, hidden, heads, kv, ffn, vocab, **more):
    return {
        "model_type": kind, "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": ffn,
        "vocab_size": vocab, "tie_word_embeddings": False, **more,
    }  # fmt: skip


def t5(kind, layers, hidden, heads, ffn, vocab, *, tied=False, gated=True, head_dim=64):
    return {
        "model_type": kind, "d_model": hidden, "d_kv": head_dim, "d_ff": ffn, "num_layers": layers,
        "num_decoder_layers": layers, "num_heads": heads, "vocab_size": vocab,
        "feed_forward_proj": "gated-gelu" if gated else "relu", "tie_word_embeddings": tied,
        "relative_attention_num_buckets": 32, "is_encoder_decoder": True,
    }  # fmt: skip


def experts(number, chosen, width=None, **more):
    keys = {"num_local_experts": number, "num_experts_per_tok": chosen}
    return keys | ({"moe_intermediate_size": width} if width else {}) | more


def latent(query, dense, number, chosen, width, shared, **more):
    return {
        "q_lora_rank": query, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "first_k_dense_replace": dense, "n_routed_experts": number,
        "num_experts_per_tok": chosen, "moe_intermediate_size": width, "n_shared_experts": shared,
        "moe_layer_freq": 1, "attention_bias": False, **more,
    }  # fmt: skip


SIGMOID = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True}
SOFTMAX = {"scoring_func": "softmax", "topk_method": "greedy", "norm_topk_prob": False}
QWEN2 = {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28}
QWEN3 = {"head_dim": 128, "attention_bias": False, "use_sliding_window": False}
OSS = {"head_dim": 64, "attention_bias": True, "sliding_window": 128}
PLAIN = {"attention_bias": False, "mlp_bias": False}
VOCAB3 = 128256


def llama4(number, every):
    text = decoder(
        "llama4_text", 48, 5120, 40, 8, 8192, 202048, intermediate_size_mlp=16384, head_dim=128,
        attention_chunk_size=8192, interleave_moe_layer_step=every, use_qk_norm=number == 16,
        **experts(number, 1),
    )  # fmt: skip
    return {"model_type": "llama4", "text_config": text, "vision_config": {"hidden_size": 1408}}


# The differences among the sizes of a family; the number of parameters as the hub says it, if the
# issue of this reader names it; the entry of config/models.yaml.
RELEASED = {
    "tinyllama": (decoder("llama", 22, 2048, 32, 4, 5632, 32000), None, "tinyllama_1b"),
    "llama-2-7b": (decoder("llama", 32, 4096, 32, 32, 11008, 32000), None, "llama2_7b"),
    "llama-2-70b": (decoder("llama", 80, 8192, 64, 8, 28672, 32000), None, "llama2_70b"),
    "llama-3.2-1b": (
        decoder("llama", 16, 2048, 32, 8, 8192, VOCAB3) | {"tie_word_embeddings": True},
        None, "llama3_1b",
    ),
    "llama-3.1-8b": (
        decoder("llama", 32, 4096, 32, 8, 14336, VOCAB3, **PLAIN), 8_030_261_248, "llama3_8b",
    ),
    "llama-3.1-70b": (
        decoder("llama", 80, 8192, 64, 8, 28672, VOCAB3, **PLAIN), 70_553_706_496, "llama3_70b",
    ),
    "llama-3.1-405b": (
        decoder("llama", 126, 16384, 128, 8, 53248, VOCAB3, **PLAIN),
        405_853_388_800, "llama3_405b",
    ),
    "qwen3-0.6b": (
        decoder("qwen3", 28, 1024, 16, 8, 3072, 151936, **QWEN3) | {"tie_word_embeddings": True},
        596_049_920, None,
    ),
    "qwen3-8b": (
        decoder("qwen3", 36, 4096, 32, 8, 12288, 151936, **QWEN3), 8_190_735_360, "qwen3_8b",
    ),
    "qwen3-32b": (
        decoder("qwen3", 64, 5120, 64, 8, 25600, 151936, **QWEN3), 32_762_123_264, "qwen3_32b",
    ),
    "qwen3-30b-a3b": (
        decoder("qwen3_moe", 48, 2048, 32, 4, 6144, 151936, norm_topk_prob=True, **QWEN3,
                **experts(128, 8, 768)),
        30_532_122_624, "qwen3_30b_a3b",
    ),
    "qwen3-235b-a22b": (
        decoder("qwen3_moe", 94, 4096, 64, 4, 12288, 151936, norm_topk_prob=True, **QWEN3,
                **experts(128, 8, 1536)),
        235_093_634_560, "qwen3_235b_a22b",
    ),
    "qwen2.5-0.5b": (
        decoder("qwen2", 24, 896, 14, 2, 4864, 151936, **QWEN2) | {"tie_word_embeddings": True},
        None, "qwen2_0_5b",
    ),
    "qwen2.5-7b": (decoder("qwen2", 28, 3584, 28, 4, 18944, 152064, **QWEN2), None, "qwen2_7b"),
    "mistral-7b": (
        decoder("mistral", 32, 4096, 32, 8, 14336, 32000, sliding_window=4096), None, "mistral_7b",
    ),
    "mistral-small-24b": (
        decoder("mistral", 40, 5120, 32, 8, 32768, 131072, head_dim=128, sliding_window=None),
        23_572_403_200, None,
    ),
    "mixtral-8x7b": (
        decoder("mixtral", 32, 4096, 32, 8, 14336, 32000, **experts(8, 2)),
        46_702_792_704, "mixtral_8x7b",
    ),
    "mixtral-8x22b": (
        decoder("mixtral", 56, 6144, 48, 8, 16384, 32000, **experts(8, 2)), 140_620_634_112, None,
    ),
    "phi-4": (
        decoder("phi3", 40, 5120, 40, 10, 17920, 100352, sliding_window=None), 14_659_507_200, None,
    ),
    "gpt-oss-20b": (
        decoder("gpt_oss", 24, 2880, 64, 8, 2880, 201088, **OSS, **experts(32, 4)),
        20_914_757_184, "gpt_oss_20b",
    ),
    "gpt-oss-120b": (
        decoder("gpt_oss", 36, 2880, 64, 8, 2880, 201088, **OSS, **experts(128, 4)),
        116_829_156_672, "gpt_oss_120b",
    ),
    "deepseek-v2": (
        decoder("deepseek_v2", 60, 5120, 128, 128, 12288, 102400, **SOFTMAX,
                **latent(1536, 1, 160, 6, 1536, 2)),
        None, "deepseek_v2",
    ),
    "deepseek-v3": (
        decoder("deepseek_v3", 61, 7168, 128, 128, 18432, 129280, num_nextn_predict_layers=1,
                **SIGMOID, **latent(1536, 3, 256, 8, 2048, 1)),
        671_026_419_200, "deepseek_v3",
    ),
    "kimi-k2": (
        decoder("kimi_k2", 61, 7168, 64, 64, 18432, 163840, **SIGMOID,
                **latent(1536, 1, 384, 8, 2048, 1)),
        None, "kimi_k2",
    ),
    "moonlight": (
        decoder("deepseek_v3", 27, 2048, 16, 16, 11264, 163840, **SIGMOID,
                **latent(None, 1, 64, 6, 1408, 2)),
        None, "moonlight_16b_a3b",
    ),
    "glm-4.5-air": (
        decoder("glm4_moe", 46, 4096, 96, 8, 10944, 151552, head_dim=128, attention_bias=True,
                use_qk_norm=False, norm_topk_prob=True, n_routed_experts=128, n_shared_experts=1,
                num_experts_per_tok=8, moe_intermediate_size=1408, first_k_dense_replace=1),
        None, "glm4_air",
    ),
    "minimax-m2": (
        decoder("minimax_m2", 62, 3072, 48, 8, 1536, 200064, head_dim=128, use_qk_norm=True,
                qk_norm_type="per_layer", use_routing_bias=True, scoring_func="sigmoid",
                attn_type_list=[1] * 62, shared_intermediate_size=0, use_mtp=True,
                num_mtp_modules=3, **experts(256, 8)),
        None, None,
    ),
    "llama-4-scout": (llama4(16, 1), None, "llama4_scout"),
    "llama-4-maverick": (llama4(128, 2), None, "llama4_maverick"),
    "olmo-2-13b": (
        decoder("olmo2", 40, 5120, 40, 40, 13824, 100352, attention_bias=False),
        13_716_198_400, None,
    ),
    "smollm3": (
        decoder("smollm3", 36, 2048, 16, 4, 11008, VOCAB3, **PLAIN) | {"tie_word_embeddings": True},
        None, None,
    ),
    "gpt2": (
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257,
         "n_positions": 1024},
        None, "gpt2",
    ),
    "opt-6.7b": (
        {"model_type": "opt", "num_hidden_layers": 32, "hidden_size": 4096, "ffn_dim": 16384,
         "num_attention_heads": 32, "vocab_size": 50272, "max_position_embeddings": 2048,
         "word_embed_proj_dim": 4096, "do_layer_norm_before": True},
        None, None,
    ),
    "t5-base": (t5("t5", 12, 768, 12, 3072, 32128, tied=True, gated=False), None, None),
    "flan-t5-xxl": (t5("t5", 24, 4096, 64, 10240, 32128), 11_135_332_352, None),
    "mt5-base": (t5("mt5", 12, 768, 12, 2048, 250112), None, "mt5_base"),
    "mt5-xxl": (t5("mt5", 24, 4096, 64, 10240, 250112), 12_921_057_280, "mt5_xxl"),
}  # fmt: skip


def small_decoder(chosen, states_head_dim=True, **more):
    kv, group, head_dim = chosen.choice([1, 2, 3]), chosen.choice([1, 2]), chosen.choice([8, 16])
    heads = kv * group
    config = decoder(
        "", chosen.choice([2, 3, 4]), heads * head_dim, heads, kv, chosen.choice([24, 40]),
        chosen.choice([96, 130]), )  # fmt: skip
    config |= {"head_dim": head_dim} if states_head_dim else {}
    return config | {"tie_word_embeddings": chosen.random() < 0.5} | more


def small_experts(chosen, **more):
    return small_decoder(chosen, **experts(chosen.choice([3, 4]), 2), **more)


def small_latent(chosen, **more):
    sizes = {"q_lora_rank": chosen.choice([None, 12]), "kv_lora_rank": 8, "qk_nope_head_dim": 6}
    sizes |= {"qk_rope_head_dim": 4, "v_head_dim": 10}
    return small_decoder(
        chosen, first_k_dense_replace=chosen.choice([0, 1]), n_routed_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=12, n_shared_experts=chosen.choice([1, 2]),
        n_group=1, topk_group=1, states_head_dim=False, **sizes, **more,
    )  # fmt: skip


def small_t5(chosen):
    config = t5(
        "", chosen.choice([1, 2]), 24, chosen.choice([2, 3]), 40, 96, tied=chosen.random() < 0.5,
        gated=chosen.random() < 0.5, head_dim=chosen.choice([8, 12]),
    )  # fmt: skip
    return config | {"num_decoder_layers": chosen.choice([1, 3])}


def small_gpt2(chosen):
    return {
        "n_layer": chosen.choice([1, 3]), "n_embd": 24, "n_head": 2, "vocab_size": 96,
        "n_positions": 32, "n_inner": chosen.choice([None, 40]),
        "tie_word_embeddings": chosen.random() < 0.5,
    }  # fmt: skip


def small_opt(chosen):
    return {
        "num_hidden_layers": chosen.choice([1, 3]), "hidden_size": 24, "num_attention_heads": 2,
        "ffn_dim": 40, "vocab_size": 96, "max_position_embeddings": 32, "word_embed_proj_dim": 24,
        "tie_word_embeddings": chosen.random() < 0.5,
    }  # fmt: skip


SMALL = {  # by model_type: a config with sizes chosen at random
    "llama": lambda chosen: small_decoder(chosen, attention_bias=chosen.random() < 0.5),
    "mistral": small_decoder,
    "mixtral": small_experts,
    "qwen2": lambda chosen: small_decoder(chosen, states_head_dim=False),
    "qwen3": lambda chosen: small_decoder(chosen, attention_bias=chosen.random() < 0.5),
    "qwen3_moe": lambda chosen: small_experts(
        chosen, moe_intermediate_size=12, mlp_only_layers=chosen.choice([[], [0], [1]]),
        decoder_sparse_step=chosen.choice([1, 2]),
    ),
    "phi3": lambda chosen: small_decoder(chosen, states_head_dim=False, pad_token_id=0),
    "gpt_oss": lambda chosen: small_experts(chosen, attention_bias=True, sliding_window=16),
    "deepseek_v2": lambda chosen: small_latent(chosen, **SOFTMAX),
    "deepseek_v3": lambda chosen: small_latent(chosen, **SIGMOID),
    "kimi_k2": lambda chosen: small_latent(chosen, **SIGMOID),
    "glm4_moe": lambda chosen: small_decoder(
        chosen, attention_bias=chosen.random() < 0.5, use_qk_norm=chosen.random() < 0.5,
        n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=12,
        first_k_dense_replace=1, n_group=1, topk_group=1,
    ),
    "minimax_m2": small_experts,
    "olmo2": lambda chosen: small_decoder(
        chosen, states_head_dim=False, attention_bias=chosen.random() < 0.5
    ),
    "smollm3": lambda chosen: small_decoder(chosen, states_head_dim=False, pad_token_id=0),
    "llama4_text": lambda chosen: small_experts(
        chosen, intermediate_size_mlp=56, interleave_moe_layer_step=chosen.choice([1, 2]),
        pad_token_id=0,
    ),
    "gpt2": small_gpt2,
    "opt": small_opt,
    "t5": small_t5,
    "mt5": small_t5,
}  # fmt: skip
