"""The synthetic batch: every layout sees the same sequences in the same step."""

import numpy as np
import torch

from scaling.layout import Layout

MicroBatch = tuple[torch.Tensor, torch.Tensor]

_LARGEST_STRIDE = 8


def sequence(seed: int, step: int, index: int, *, seq_length: int, vocab_size: int) -> torch.Tensor:
    """Sequence `index` of the global batch of `step`: int64 [seq_length + 1].

    Tokens climb by a stride from a random start, so there is something to learn and losses fall.
    """
    random = np.random.default_rng([seed, step, index])
    start = int(random.integers(vocab_size))
    stride = int(random.integers(1, _LARGEST_STRIDE + 1))
    return (start + stride * torch.arange(seq_length + 1)) % vocab_size


def micro_batches(
    layout: Layout,
    *,
    vocab_size: int,
    seed: int,
    step: int,
    dp_rank: int,
    cp_rank: int = 0,
    device: torch.device,
) -> list[MicroBatch]:
    """This replica's share of the global batch, one (ids, labels) a micro-batch.

    Both int64 [micro_batch_size, seq_length / cp], labels one token ahead. The replica `dp_rank`
    takes consecutive sequences, the rank `cp_rank` in it a run of their tokens.
    """
    share = layout.micro_batch_size * layout.gradient_accumulation_steps
    tokens = torch.stack(
        [
            sequence(seed, step, index, seq_length=layout.seq_length, vocab_size=vocab_size)
            for index in range(dp_rank * share, (dp_rank + 1) * share)
        ]
    ).to(device)
    held = layout.seq_length // layout.cp
    first = cp_rank * held
    ids = tokens[:, first : first + held].contiguous()
    labels = tokens[:, first + 1 : first + held + 1].contiguous()
    size = layout.micro_batch_size
    return list(zip(ids.split(size), labels.split(size), strict=True))
