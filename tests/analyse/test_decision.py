"""The decision: fewest changes among layouts that lose little, then the least loss."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.analyse.decision import GIVE_UP, decide

NONE = float("nan")


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ([[0.0, 0.01], [0.03, 0.0]], [1, 1]),  # one layout is good enough at both
        ([[0.0, 0.03], [0.03, 0.0]], [0, 1]),
        ([[0.01, 0.0], [0.0, 0.01]], [0, 0]),  # equal: the first
        ([[0.05, 0.04]], [1]),  # none is below 2 %: the least loss
        ([[0.0, NONE], [NONE, 0.1], [0.0, NONE]], [0, 1, 0]),
        ([[NONE, NONE], [0.0, 0.01]], [None, 0]),  # nothing can be used
        ([[NONE, NONE]], [None]),
    ],
)
def test_layouts_are_chosen_by_hand(losses, chosen):
    assert decide(np.array(losses)) == chosen


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 0.01, 0.019, 0.03, 0.2]), min_size=3, max_size=3),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_no_other_choice_changes_less_or_loses_less_with_as_many_changes(rows):
    losses = np.array(rows)
    allowed = losses <= np.maximum(losses.min(axis=1, keepdims=True), GIVE_UP)

    def price(path):
        lost = sum(losses[size, layout] for size, layout in enumerate(path))
        return sum(a != b for a, b in itertools.pairwise(path)), round(float(lost), 9)

    every = [
        path
        for path in itertools.product(range(3), repeat=len(losses))
        if all(allowed[size, layout] for size, layout in enumerate(path))
    ]
    assert price(decide(losses)) == min(map(price, every))
