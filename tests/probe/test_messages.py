"""Messages of probes, and how they tell that what arrived is not what was sent."""

import pytest
import torch

from scaling.probe import collectives
from scaling.probe.collectives import Exchange, message_elements


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Pieces that end within the period of seven numbers."""
    monkeypatch.setattr(collectives, "_PIECE", 10)


def held(tensor, factor, start):
    """An exchange in place, which gives and is to receive the same."""
    expected = [(tensor, factor, start)]
    return Exchange(
        source=tensor, start=start, factor=factor, zeroed=None, send=int, expected=expected
    )


@pytest.mark.parametrize("start", [0, 3, 14])
def test_each_element_says_where_it_is_and_whose_it_is(start):
    filled = torch.empty(25)
    held(filled, 3, start).fill()
    assert filled.tolist() == [3.0 * ((start + place) % 7 + 1) for place in range(25)]


def test_what_arrived_elsewhere_of_another_or_in_part_differs():
    right = torch.empty(25)
    held(right, 3, 5).fill()
    assert not held(right, 3, 5).is_wrong()
    assert held(right, 3, 6).is_wrong()
    assert held(right, 2, 5).is_wrong()
    for place in (0, 9, 10, 24):
        wrong = right.clone()
        wrong[place] += 1
        assert held(wrong, 3, 5).is_wrong(), place


def test_a_message_has_an_equal_part_for_every_rank():
    assert message_elements(1024, 4) == 256
    assert message_elements(1024, 3) == 255
    assert message_elements(1, 3) == 3
