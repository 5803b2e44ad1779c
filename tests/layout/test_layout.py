"""Batch arithmetic and what a layout refuses."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.layout.layout import Layout, refusals
from scaling.study.point import stored_fields
from tests.points import TINY
from tests.samples import layouts


@given(layouts, st.integers(1, 64))
def test_a_label_does_not_depend_on_the_number_of_gpus(layout, dp):
    assert dataclasses.replace(layout, dp=dp, gradient_accumulation_steps=1).label == layout.label


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        ({"tp": 16}, "num_heads=8 is not divisible by tp=16"),
        ({"tp": 8}, "num_kv_heads=4 is not divisible by tp=8"),
        ({"tp": 5}, "ffn_hidden_size=96 is not divisible by tp=5"),
        ({"tp": 3}, "vocab_size=256 is not divisible by tp=3"),
        ({"pp": 5}, "pp=5 stages cannot share num_layers=4 layers"),
        ({"sequence_parallel": True}, "sequence_parallel shards inside the tp group"),
        ({"sequence_parallel": True, "tp": 2, "seq_length": 33}, "seq_length=33 divisible by tp=2"),
        (
            {"sequence_parallel": True, "tp": 2, "cp": 2, "seq_length": 34},
            "seq_length=34 divisible by tp=2 x cp=2",
        ),
        ({"cp": 2, "seq_length": 33}, "seq_length=33 is not divisible by cp=2"),
        ({"cp": 4, "tp": 2}, "is not divisible by cp=4: a rank would have no head to attend over"),
        (
            {"cp": 3, "seq_length": 33},
            "num_kv_heads=4 over tp=1 is not divisible by cp=3: ranks would attend over unequal "
            "numbers of heads",
        ),
        ({"zero_shard_size": 2, "dp": 4}, "zero_shard_size=2 shards nothing at zero_stage=0"),
        (
            {"zero_shard_size": 3, "dp": 4, "zero_stage": 3},
            "dp=4 is not divisible by zero_shard_size=3",
        ),
        ({"optimizer_offload": "cpu"}, "needs zero_stage of at least 1"),
        ({"pipeline_schedule": "dualpipev"}, "pipeline_schedule=dualpipev needs pp > 1"),
        (
            {"pipeline_schedule": "dualpipev", "pp": 3, "gradient_accumulation_steps": 6},
            "2 x pp=6 stages, which cannot share num_layers=4 layers",
        ),
        (
            {"pipeline_schedule": "dualpipev", "pp": 2, "gradient_accumulation_steps": 3},
            "at least 2 x pp=4 micro-batches, not gradient_accumulation_steps=3",
        ),
    ],
)
def test_an_impossible_layout_is_refused_with_a_sentence(layout, sentence):
    said = list(refusals(TINY, Layout(**{"seq_length": 32, **layout})))
    assert any(sentence in reason for reason in said), said


def test_learned_positions_end():
    learned = dataclasses.replace(TINY, family="gpt", max_positions=16)
    assert list(refusals(learned, Layout(seq_length=16))) == []
    (said,) = refusals(learned, Layout(seq_length=17))
    assert "max_positions=16" in said


def test_a_kernel_for_what_a_model_does_not_have_is_refused():
    plain = dataclasses.replace(TINY, family="gpt", max_positions=64, gated_mlp=False)
    layout = Layout(seq_length=32, fused_rope=True, fused_mlp=True)
    rope, mlp = refusals(plain, layout)
    assert "a gpt has no rotary positions" in rope
    assert "this feed-forward has no gate" in mlp


def test_an_axis_that_came_later_is_named_only_where_it_is_chosen():
    """Ids and files of points that were measured before it existed stay what they were."""
    plain = Layout(seq_length=32)
    assert not {"compile", "zero_shard_size"} & set(stored_fields(plain))
    chosen = dataclasses.replace(plain, compile=True)
    assert stored_fields(chosen) == {**stored_fields(plain), "compile": True}
