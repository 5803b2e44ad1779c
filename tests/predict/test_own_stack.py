"""What the predictor believes of this project's engine is what the engine asks DeepSpeed for."""

from scaling.layout import Layout
from scaling.predict.layout_columns import OWN_FRAMEWORK
from scaling.predict.parameters import defaults_for
from scaling.predict.stacks import stack_of
from scaling.train.config import deepspeed_config
from tests.predict.test_recommendations import LLAMA_7B


def asked(**layout):
    return deepspeed_config(LLAMA_7B, Layout(seq_length=4096, **layout))


def test_gradients_are_kept_in_the_precision_of_the_model():
    assert "data_types" not in asked(dp=8, zero_stage=1)
    assert stack_of(OWN_FRAMEWORK).gradient_bytes == 2


def test_gradient_traffic_does_not_overlap_below_stage_3():
    assert "overlap_comm" not in asked(dp=8, zero_stage=1)["zero_optimization"]
    assert defaults_for(stack_of(OWN_FRAMEWORK).defaults)["dp_exposed"] > 0.9


def test_two_buckets_of_16_bit_elements_are_the_buffers():
    zero = asked(dp=8, zero_stage=1)["zero_optimization"]
    elements = zero["reduce_bucket_size"] + zero["allgather_bucket_size"]
    assert defaults_for(stack_of(OWN_FRAMEWORK).defaults)["buffers_bytes"] == 2 * elements


def test_stages_exchange_parts_of_activations():
    assert asked(tp=2, pp=2)["pipeline"]["pipe_partitioned"]
    assert stack_of(OWN_FRAMEWORK).scattered_messages
