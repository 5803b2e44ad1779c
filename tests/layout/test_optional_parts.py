"""Experts, latent attention and windows: counted by hand, and as the released models have them."""

import dataclasses

import pytest

from scaling.errors import InputError
from scaling.layout.engines import engine_refusals
from scaling.layout.layout import Layout
from scaling.layout.partition import layer_and_head_costs, layers_of_stages
from scaling.layout.shapes import (
    hardware_flops_per_token,
    matmul_flops_per_token,
    model_flops_per_token,
)
from scaling.study.load import load_models
from tests.layout.test_shapes import ONE
from tests.shipped import MODELS


@pytest.mark.parametrize(
    ("model", "total", "active"),
    [
        ("mixtral_8x7b", 46.7, 12.9),  # arXiv 2401.04088: 47B and 13B
        ("mixtral_8x22b", 140.6, 39.2),  # as released: 141B and 39B
        ("qwen3_30b_a3b", 30.5, 3.4),  # arXiv 2505.09388: 30.5B and 3.3B
        ("qwen3_235b_a22b", 235.1, 22.2),  # 235B and 22B
        ("deepseek_v2_lite", 15.7, 2.7),  # arXiv 2405.04434: 15.7B and 2.4B
        ("deepseek_v2", 235.7, 21.4),  # 236B and 21B
        ("deepseek_v3", 671.0, 37.6),  # arXiv 2412.19437: 671B and 37B
        ("kimi_k2", 1026.4, 32.9),  # arXiv 2507.20534: 1.04T and 32.6B
        ("gpt_oss_20b", 20.9, 4.2),  # arXiv 2508.10925: 20.9B and, without the look-up, 3.6B
        ("gpt_oss_120b", 116.8, 5.7),  # 116.8B and, without the look-up, 5.1B
    ],
)
def test_a_mixture_has_the_size_its_authors_say(model, total, active):
    shape = MODELS[model]
    assert round(shape.total_params / 1e9, 1) == total
    assert round(shape.active_params / 1e9, 1) == active


MIXED = dataclasses.replace(
    ONE,
    num_layers=3,
    num_experts=4,
    experts_per_token=2,
    expert_ffn_hidden_size=3,
    shared_experts=1,
    dense_layers=1,
)


def test_flops_of_three_layers_two_with_experts_worked_by_hand():
    # attention 48 a layer; dense mlp 3*4*6 = 72; an expert 3*4*3 = 36; a router 4*4 = 16
    assert MIXED.expert_params == 36
    assert MIXED.expert_layer_params == 48 + 3 * 36 + 16
    # one dense layer, two with two chosen and one shared expert, a head of 40
    assert MIXED.matmul_params == 120 + 2 * 172 + 40
    assert MIXED.flop_params == 504 + 40
    # seven norms of 4, and per layer of experts two that a token does not meet
    assert MIXED.active_params == 544 + 28
    assert MIXED.total_params == 572 + 2 * 2 * 36
    assert model_flops_per_token(MIXED, 8) == 6 * 544 + 12 * 3 * 4 * 8
    assert matmul_flops_per_token(MIXED, 8) == 6 * 504 + 6 * 3 * 4 * 8
    assert hardware_flops_per_token(MIXED, 8, "full") == (
        model_flops_per_token(MIXED, 8) + 2 * (120 + 2 * 172) + 4 * 3 * 4 * 8
    )


def test_latent_attention_worked_by_hand():
    latent = dataclasses.replace(
        ONE, num_kv_heads=2, query_rank=3, key_value_rank=2, rotary_head_dim=2, value_head_dim=1
    )
    # query 4 -> 3 -> 2 heads of 2 + 2; key and value 4 -> 2 + 2, 2 -> 2 heads of 2 + 1; out 2 -> 4
    assert latent.attention_params == 3 * (4 + 8) + 4 * 4 + 2 * 2 * 3 + 2 * 4
    # scores multiply 2 heads of 4, values 2 heads of 1: 5 a half
    assert latent.attention_width == 5
    assert matmul_flops_per_token(latent, 8) == 6 * (72 + 72 + 40) + 6 * 5 * 8
    assert latent.norm_params == 3 * 4 + 3 + 2
    whole = dataclasses.replace(latent, query_rank=0)
    assert whole.attention_params - latent.attention_params == 4 * 8 - 36


def test_a_window_leaves_the_pairs_that_can_be_counted():
    windowed = dataclasses.replace(ONE, num_layers=2, window=3, windowed_layers=1)
    # a sequence of 8: pairs 8^2 / 2 = 32 and 8 * 3 - 3^2 / 2 = 19.5, twice the mean: 8 and 39 // 8
    assert windowed.attended_keys(8) == 8 + 4
    assert windowed.attended_keys(2) == 4, "no sequence is shorter than what it sees"
    plain = dataclasses.replace(ONE, num_layers=2)
    assert model_flops_per_token(plain, 8) - model_flops_per_token(windowed, 8) == 12 * 4 * 4


def test_stages_are_dealt_by_what_the_experts_of_a_token_cost():
    costs = layer_and_head_costs(MIXED, 8, "none")
    core = 4 * 4 * 8
    assert costs == (3 * (2 * 120 + core), *[3 * (2 * 172 + core)] * 2, 6 * 40)
    heavy = dataclasses.replace(MIXED, expert_ffn_hidden_size=300)
    assert layers_of_stages(heavy, pp=2, seq_length=8) == (2, 1)


ENTRY = """
mixed:
  num_layers: 4
  hidden_size: 64
  num_heads: 4
  ffn_hidden_size: 128
  vocab_size: 512
  source: a test
"""
EXPERTS = "  num_experts: 8\n  experts_per_token: 2\n  expert_ffn_hidden_size: 32\n"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("  num_experts: 8\n", "num_experts=8: experts_per_token is missing"),
        (EXPERTS + "  dense_layers: 4\n", "dense_layers=4 leaves none of num_layers=4"),
        (EXPERTS.replace(": 2", ": 9"), "experts_per_token=9 is more than num_experts=8"),
        ("  shared_experts: 1\n", "shared_experts=1: num_experts is missing"),
        ("  key_value_rank: 8\n", "key_value_rank=8: rotary_head_dim is missing"),
        ("  value_head_dim: 8\n", "value_head_dim=8: key_value_rank is missing"),
        ("  window: 8\n", "window=8 and windowed_layers=0: give both or neither"),
        ("  window: 8\n  windowed_layers: 5\n", "windowed_layers=5 is more than num_layers=4"),
        ("  family: gpt\n  max_positions: 9\n" + EXPERTS, "is a part of family llama only"),
        ("  linear_biases: true\n  query_key_value_biases: true\n", "give one of them"),
        ("  router: best\n", "router='best'"),
        ("  num_experts: -1\n", "num_experts=-1"),
    ],
)
def test_parts_that_do_not_fit_together_are_named(tmp_path, lines, sentence):
    (tmp_path / "models.yaml").write_text(ENTRY + lines)
    with pytest.raises(InputError, match=sentence):
        load_models(tmp_path / "models.yaml")


def test_the_engines_experts_have_a_gate():
    plain = dataclasses.replace(MODELS["tiny_experts"], gated_mlp=False)
    (said,) = engine_refusals(plain, Layout(seq_length=64, precision="fp32"))
    assert said.startswith("gated_mlp=false: the experts that an engine trains have a gate")
