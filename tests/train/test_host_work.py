"""Python calls and hooks of a layer and micro-batch: what the host does while the GPU waits."""

import dataclasses
from typing import Any

import pytest

from tests.points import TINY, tiny_point
from tests.train.conftest import Ask

pytestmark = pytest.mark.ranks

# Python functions called per layer and micro-batch, forward and backward (DeepSpeed 0.19.8), and
# the modules of a layer that have hooks.
WORK: list[tuple[dict[str, Any], int, list[str]]] = [
    ({"zero_stage": 1}, 250, []),
    ({"zero_stage": 3}, 3000, ["Layer"]),
    ({"zero_stage": 3, "engine": "torch"}, 2200, ["FSDPLayer"]),
]
FEW, MANY = 2, 4  # layers
MICRO_BATCHES = 2


@pytest.mark.parametrize(("layout", "most", "hooked"), WORK, ids=str)
def test_a_layer_calls_no_more_python_than_is_known(
    ask: Ask, layout: dict[str, Any], most: int, hooked: list[str]
) -> None:
    found = []
    for layers in (FEW, MANY):
        shape = dataclasses.replace(TINY, num_layers=layers)
        more = {"gradient_accumulation_steps": MICRO_BATCHES, "precision": "bf16"}
        point = tiny_point(shape=shape, **more, **layout)
        (((rank,),),) = (ask(points=[point.to_json()], act="call"),)
        found.append(rank)
    calls = (found[1]["calls"] - found[0]["calls"]) / (MANY - FEW) / MICRO_BATCHES
    assert 0.5 * most < calls < most
    assert found[0]["hooked"] == hooked
