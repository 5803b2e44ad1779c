"""Which experts, latents and windows the columns of a table say that a model has."""

import numpy as np
import pyarrow as pa

from scaling.foreign.columns import Columns
from scaling.foreign.decoder_parts import read_optional_parts

LAYERS = np.array([36.0])


def of(**cells):
    columns = Columns(pa.table({name: [value] for name, value in cells.items()}), "rows.csv")
    parts = read_optional_parts(columns, LAYERS)
    return {name: values[0] for name, values in parts.items() if values[0]}, columns.assumptions


def test_a_dense_model_has_none_though_all_its_layers_are_called_dense():
    assert of(num_experts=0, dense_layers=126, attention_kind="gqa") == ({}, [])


def test_experts_are_read_as_they_stand():
    experts = {"num_experts": 256, "experts_per_token": 8, "expert_ffn_hidden_size": 2048}
    experts |= {"shared_experts": 1, "dense_layers": 3}
    assert of(**experts) == (experts, [])


def test_latent_attention_without_its_sizes_is_taken_as_deepseeks_and_says_so():
    parts, assumptions = of(attention_kind="mla")
    assert parts == {
        "query_rank": 1536, "key_value_rank": 512, "rotary_head_dim": 64, "value_head_dim": 128,
    }  # fmt: skip
    assert len(assumptions) == 1
    stated = {"key_value_rank": 4, "rotary_head_dim": 2, "value_head_dim": 8}
    assert of(attention_kind="mla", **stated) == (stated, [])


def test_a_window_in_every_other_layer_is_read_from_its_words():
    parts, assumptions = of(attention_kind="gqa, every other layer a window of 128")
    assert (parts, assumptions) == ({"window": 128, "windowed_layers": 18}, [])
