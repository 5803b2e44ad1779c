"""The list of refusals is what DeepSpeed refuses: each is run all the same to hear it say so."""

import dataclasses

import pytest

from scaling.layout import Layout, engine_refusals, refusals
from tests.points import TINY, TINY_GPT, tiny_point
from tests.train.conftest import Attempt
from tests.train.covering import product

AXES = {
    "tp": (1, 2),
    "pp": (1, 2),
    "cp": (1, 2),
    "dp": (1, 2),
    "zero_stage": (0, 1, 2, 3),
    "sequence_parallel": (False, True),
    "activation_checkpointing": ("none", "selective", "full"),
    "attention": ("math", "flash2"),
    "precision": ("fp32", "bf16"),
}


def test_the_engine_refuses_sharded_pipelines_and_nothing_else_of_a_decoder() -> None:
    """That what is not refused runs is what test_parity trains."""
    for axes in product(AXES):
        layout = Layout(seq_length=32, **axes)
        if not list(refusals(TINY, layout)):
            refused = layout.pp > 1 and layout.zero_stage > 1
            assert bool(list(engine_refusals(TINY, layout))) == refused, layout


@pytest.mark.ranks
@pytest.mark.parametrize("zero_stage", [2, 3])
def test_deepspeed_refuses_sharded_pipelines_in_the_words_we_quote(
    attempt: Attempt, zero_stage: int
) -> None:
    point = tiny_point(pp=2, zero_stage=zero_stage, gradient_accumulation_steps=2)
    (ours,) = engine_refusals(point.shape, point.layout)
    quoted = ours.split(": ", 1)[1].removesuffix(" (DeepSpeed)")
    failures = attempt(point)
    assert len(failures) == 2
    for failure in failures.values():
        assert failure.outcome == "error"
        assert quoted in failure.message


def test_a_kernel_of_rms_norm_is_no_layer_norm() -> None:
    (said,) = engine_refusals(TINY_GPT, Layout(seq_length=32, fused_norm=True))
    assert said.startswith("fused_norm is a kernel of RMSNorm")


def test_an_encoder_decoder_is_predicted_only() -> None:
    shape = dataclasses.replace(TINY, family="t5", num_encoder_layers=4, num_kv_heads=8)
    (said,) = engine_refusals(shape, Layout(seq_length=32))
    assert said == "family=t5 can be predicted but not yet measured"
