"""Every layout sees the same tokens."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scaling.train import data
from scaling.train.data import Feed, draw, micro_batch, sequences
from scaling.train.parallel.groups import Place
from tests.points import TINY, TINY_T5, tiny_point
from tests.train.reference import CPU


@given(st.integers(0, 99), st.integers(0, 99), st.integers(2, 300))
def test_a_label_is_the_next_token_and_a_word_of_the_vocabulary(
    step: int, index: int, vocab_size: int
) -> None:
    draws = [draw(0, step, index, vocab_size)]
    (tokens,) = sequences(draws, seq_length=9, vocab_size=vocab_size, device=CPU)
    assert tokens.shape == (10,)
    assert 0 <= tokens.min() <= tokens.max() < vocab_size
    shape = dataclasses.replace(TINY, vocab_size=vocab_size)
    ids, labels = micro_batch(tiny_point(shape=shape, seq_length=9), draws, device=CPU)
    assert torch.equal(ids[0], tokens[:-1])
    assert torch.equal(labels[0], tokens[1:])


def test_nothing_is_drawn_once_the_first_step_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps whose energy is counted, a host that draws would leave its GPU idle."""
    drawn: list[tuple[int, ...]] = []
    monkeypatch.setattr(data, "draw", lambda *of: drawn.append(of) or draw(*of))
    point = tiny_point()
    feed = Feed(point, Place.of(0, point.layout), [1, 2, 3], first=4, device=CPU)
    before = len(drawn)
    assert [len(feed(step)) for step in (4, 5, 6)] == [1, 2, 3]
    assert len(drawn) == before == 6 * point.layout.micro_batch_size


@given(st.integers(1, 3))
def test_a_target_goes_on_where_its_input_ends_and_is_seen_one_token_late(size: int) -> None:
    point = tiny_point(shape=TINY_T5, seq_length=6)
    draws = [draw(3, 1, index, 256) for index in range(size)]
    tokens = sequences(draws, seq_length=11, vocab_size=256, device=CPU)
    ids, labels = micro_batch(point, draws, device=CPU)
    assert ids.shape == (size, 2, 6)
    assert torch.equal(torch.cat((ids[:, 0], labels), 1), tokens)
    assert ids[:, 1].tolist() == [[0, *late] for late in labels[:, :-1].tolist()]
