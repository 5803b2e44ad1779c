"""Every layout sees the same tokens."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from scaling.layout.layout import Layout
from scaling.train.data import micro_batches, sequence

CPU = torch.device("cpu")


def global_batch(layout: Layout, step: int, seed: int = 3) -> torch.Tensor:
    """The ids of all replicas, in their order."""
    shares = [
        micro_batches(layout, vocab_size=50, seed=seed, step=step, dp_rank=rank, device=CPU)
        for rank in range(layout.dp)
    ]
    return torch.cat([ids for share in shares for ids, _ in share])


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 20))
def test_every_layout_sees_the_same_sequences(dp: int, rounds: int, size: int, step: int) -> None:
    split = Layout(dp=dp, gradient_accumulation_steps=rounds, micro_batch_size=size, seq_length=6)
    whole = Layout(micro_batch_size=dp * rounds * size, seq_length=6)
    assert torch.equal(global_batch(split, step), global_batch(whole, step))


@given(st.integers(0, 99), st.integers(0, 99), st.integers(2, 300))
def test_a_label_is_the_next_token_and_a_word_of_the_vocabulary(
    step: int, index: int, vocab_size: int
) -> None:
    tokens = sequence(0, step, index, seq_length=9, vocab_size=vocab_size)
    assert tokens.shape == (10,)
    assert 0 <= tokens.min() <= tokens.max() < vocab_size
    layout = Layout(seq_length=9)
    ((ids, labels),) = micro_batches(
        layout, vocab_size=vocab_size, seed=0, step=step, dp_rank=index, device=CPU
    )
    assert torch.equal(ids[0], tokens[:-1])
    assert torch.equal(labels[0], tokens[1:])


def test_steps_and_seeds_differ() -> None:
    layout = Layout(micro_batch_size=4, seq_length=6)
    first = global_batch(layout, 0)
    assert not torch.equal(first, global_batch(layout, 1))
    assert not torch.equal(first, global_batch(layout, 0, seed=4))


@given(st.integers(1, 4), st.integers(1, 3))
def test_a_target_goes_on_where_its_input_ends_and_is_seen_one_token_late(
    dp: int, size: int
) -> None:
    layout = Layout(dp=dp, micro_batch_size=size, seq_length=6)
    for rank in range(dp):
        ((ids, labels),) = micro_batches(
            layout, vocab_size=50, seed=3, step=1, dp_rank=rank, device=CPU, pairs=True
        )
        assert ids.shape == (size, 2, 6)
        for index in range(size):
            tokens = sequence(3, 1, rank * size + index, seq_length=11, vocab_size=50)
            assert torch.equal(torch.cat((ids[index, 0], labels[index])), tokens)
            assert ids[index, 1].tolist() == [0, *labels[index, :-1].tolist()]


@given(st.sampled_from([1, 2, 3, 6]), st.integers(1, 3), st.booleans())
def test_ranks_that_share_a_sequence_hold_runs_of_it_and_every_label(
    cp: int, size: int, pairs: bool
) -> None:
    def held(cp_rank: int, degree: int) -> tuple[torch.Tensor, torch.Tensor]:
        layout = Layout(cp=degree, micro_batch_size=size, seq_length=6)
        ((ids, labels),) = micro_batches(
            layout,
            vocab_size=50,
            seed=3,
            step=1,
            dp_rank=0,
            cp_rank=cp_rank,
            device=CPU,
            pairs=pairs,
        )
        return ids, labels

    parts = [held(rank, cp) for rank in range(cp)]
    for joined, whole in zip(zip(*parts, strict=True), held(0, 1), strict=True):
        assert torch.equal(torch.cat(joined, -1), whole)
