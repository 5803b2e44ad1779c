"""What probes send, and how they tell that what arrived is not what was sent."""

import pytest
import torch

from scaling.probe import collectives
from scaling.probe.collectives import _differs, _fill, elements_of


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Pieces that end within the period of seven numbers."""
    monkeypatch.setattr(collectives, "_PIECE", 10)


@pytest.mark.parametrize("start", [0, 3, 14])
def test_each_element_says_where_it_is_and_whose_it_is(start):
    expected = [3.0 * ((start + place) % 7 + 1) for place in range(25)]
    assert _fill(torch.empty(25), 3.0, start).tolist() == expected


def test_what_arrived_elsewhere_of_another_or_in_part_differs():
    right = _fill(torch.empty(25), 3.0, 5)
    assert not _differs(right, 3.0, 5)
    assert _differs(right, 3.0, 6)
    assert _differs(right, 2.0, 5)
    for place in (0, 9, 10, 24):
        wrong = right.clone()
        wrong[place] += 1
        assert _differs(wrong, 3.0, 5), place


def test_a_message_has_an_equal_part_for_every_rank():
    assert elements_of(1024, 4) == 256
    assert elements_of(1024, 3) == 255
    assert elements_of(1, 3) == 3
