"""Parameters against the released models, FLOPs against worked examples."""

import dataclasses

import pytest

from scaling.layout.shapes import (
    ModelShape,
    hardware_flops_per_token,
    matmul_flops_per_token,
    model_flops_per_token,
)
from tests.shipped import MODELS


@pytest.mark.parametrize(
    ("model", "billions"),
    [("gpt_2b", 1.7), ("gpt_8b", 7.5), ("gpt_18b", 18.4), ("gpt_39b", 39.1), ("gpt_76b", 76.1)],
)
def test_a_gpt_of_megatron_has_the_parameters_its_table_says(model, billions):
    assert round(MODELS[model].total_params / 1e9, 1) == billions


ONE = ModelShape(
    num_layers=1,
    hidden_size=4,
    num_heads=2,
    num_kv_heads=1,
    head_dim=2,
    ffn_hidden_size=6,
    vocab_size=10,
)


def test_the_flops_of_a_one_layer_model_worked_by_hand():
    # attention 2*4*4 + 2*4*2 = 48, mlp 3*4*6 = 72, two vocabularies 2*40 = 80: N = 200
    assert ONE.flop_params == 200
    # 6*200 + 12*1*4*8
    assert model_flops_per_token(ONE, seq_length=8) == 1200 + 384
    # no look-up: 6*160, causal half: 6*1*4*8
    assert matmul_flops_per_token(ONE, seq_length=8) == 960 + 192
    # full: the layer's 120 weights again, 2*120, and 4*1*4*8 for attention
    assert hardware_flops_per_token(ONE, 8, "full") == 1584 + 240 + 128
    assert hardware_flops_per_token(ONE, 8, "selective") == 1584 + 128
    assert hardware_flops_per_token(ONE, 8, "none") == 1584


def test_tied_embeddings_count_once():
    shared = dataclasses.replace(ONE, tied_embeddings=True)
    assert ONE.total_params - shared.total_params == 40
    assert matmul_flops_per_token(shared, 8) == matmul_flops_per_token(ONE, 8)


def test_an_encoder_decoder_counts_both_streams_and_the_cross_attention():
    t5 = ModelShape(
        family="t5",
        num_layers=1,
        num_encoder_layers=1,
        hidden_size=4,
        num_heads=2,
        num_kv_heads=2,
        head_dim=2,
        ffn_hidden_size=6,
        vocab_size=10,
    )
    # encoder layer 64 + 72, decoder layer 2*64 + 72, head 40; three attentions, 8 tokens each way
    per_sequence = 6 * (136 + 200 + 40) * 8 + 12 * 3 * 4 * 8 * 8
    assert t5.tokens_per_sequence(8) == 16
    assert model_flops_per_token(t5, 8) == per_sequence // 16
    strict = 6 * (136 + 200 + 40) * 8 + (12 + 6 + 12) * 4 * 8 * 8
    assert matmul_flops_per_token(t5, 8) == strict // 16
