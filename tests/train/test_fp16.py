"""fp16 without a GPU: DeepSpeed trains in it on a CPU that answers as CUDA does."""

import pytest

from scaling.layout.engines import engine_refusals
from tests.points import tiny_point
from tests.train.conftest import Ask
from tests.train.reference import reference_curve


@pytest.mark.ranks
def test_it_trains_what_fp32_does_and_counts_the_steps_that_it_skips(
    ask: Ask,
) -> None:
    point = tiny_point(precision="fp16", zero_stage=1, measured_steps=4)
    ((found,),) = ask(points=[point.to_json()], act="overflow")
    exact = reference_curve(tiny_point(measured_steps=4)).losses
    assert found["losses"][:4] == pytest.approx(exact, abs=2e-4)
    assert found["skipped"] == [0, 0, 0, 0, 1]


def test_fp16_without_zero_has_vanishing_gradients() -> None:
    (refused,) = engine_refusals(tiny_point().shape, tiny_point(precision="fp16").layout)
    assert refused.startswith("precision=fp16 at zero_stage=0: DeepSpeed divides gradients by a")
