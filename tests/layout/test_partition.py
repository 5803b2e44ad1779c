"""Layers dealt to stages: against every way there is, and against cases worked by hand."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.layout.partition import layer_and_head_costs, layers_of_stages
from tests.layout.test_shapes import ONE
from tests.points import TINY, TINY_T5
from tests.shipped import MODELS


def slowest(costs: tuple[int, ...], layers: tuple[int, ...]) -> int:
    """The cost of the dearest stage; the head, which is the last part, is the last stage's."""
    ends = [*itertools.accumulate(layers[:-1]), len(costs)]
    return max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *ends]))


shapes = st.builds(
    dataclasses.replace,
    st.sampled_from([TINY, TINY_T5]),
    num_layers=st.integers(2, 5),
    vocab_size=st.sampled_from([16, 256, 2048, 65536]),
)


@given(shapes, st.integers(1, 4), st.sampled_from(["none", "selective", "full"]))
def test_no_other_deal_has_a_faster_slowest_stage(shape, pp, checkpointing):
    count = shape.num_layers + shape.num_encoder_layers
    pp = min(pp, count)
    found = layers_of_stages(shape, pp=pp, seq_length=32, activation_checkpointing=checkpointing)
    assert len(found) == pp
    assert sum(found) == count
    assert all(found[:-1])
    costs = layer_and_head_costs(shape, 32, checkpointing)
    for cuts in itertools.combinations(range(1, count + 1), pp - 1):
        other = tuple(b - a for a, b in itertools.pairwise([0, *cuts, count]))
        assert slowest(costs, found) <= slowest(costs, other)


@pytest.mark.parametrize(
    ("model", "pp", "expected"),
    [
        ("llama2_7b", 2, (16, 16)),  # the head costs 0.6 of a layer
        ("llama2_7b", 4, (8, 8, 8, 8)),
        ("llama_13b_v128k", 4, (10, 11, 11, 8)),  # two layers
        ("tiny", 2, (2, 2)),
        ("mt5_base", 2, (22, 2)),  # a quarter of a million words: as much as 17 decoder layers
    ],
)
def test_a_large_vocabulary_takes_layers_from_the_last_stage(
    model: str, pp: int, expected: tuple[int, ...]
) -> None:
    assert layers_of_stages(MODELS[model], pp=pp, seq_length=512) == expected


def test_the_cost_of_a_layer_and_of_the_head_worked_by_hand():
    # weights 48 + 72, scores and values 4 * 4 * 8; head 40
    forward = 2 * 120 + 128
    assert layer_and_head_costs(ONE, 8, "none") == (3 * forward, 6 * 40)
    assert layer_and_head_costs(ONE, 8, "selective") == (3 * forward + 128, 240)
    assert layer_and_head_costs(ONE, 8, "full") == (4 * forward, 240)
