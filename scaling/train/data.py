"""Synthetic batches: every layout sees the same sequences in the same step.

A decoder predicts the next token of seq_length tokens. An encoder-decoder has an input of
seq_length tokens and a target of as many that continues it: 2 * seq_length tokens a sequence.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from scaling.layout.layout import Layout
from scaling.study.point import Point
from scaling.train.parallel.context import ContextParallel
from scaling.train.parallel.groups import Place

MicroBatch = tuple[Tensor, Tensor]
Draw = tuple[int, int]  # the first token of a sequence, and by how much its tokens rise

_LARGEST_STRIDE = 8
_START = 0  # a T5 target begins with the padding token, which is 0


def draw(seed: int, step: int, index: int, vocab_size: int) -> Draw:
    """The random numbers of sequence `index` of the global batch of `step`."""
    random = np.random.default_rng([seed, step, index])
    start = int(random.integers(vocab_size))
    return start, int(random.integers(1, _LARGEST_STRIDE + 1))


def sequences(
    draws: Sequence[Draw], *, seq_length: int, vocab_size: int, device: torch.device
) -> Tensor:
    """These sequences: int64 [n, seq_length + 1].

    Tokens rise by a constant stride from a random start, so a model can learn them and losses fall.
    """
    starts, strides = torch.tensor(draws, device=device).T.unsqueeze(-1)
    tokens: Tensor = (starts + strides * torch.arange(seq_length + 1, device=device)) % vocab_size
    return tokens


def micro_batches(
    layout: Layout,
    draws: Sequence[Draw],
    *,
    vocab_size: int,
    cp_rank: int = 0,
    device: torch.device,
    pairs: bool = False,
) -> list[MicroBatch]:
    """The micro-batches of these sequences, as (ids, labels).

    Both int64 [micro_batch_size, seq_length / cp], labels one token ahead. With `pairs` ids are
    [micro_batch_size, 2, seq_length / cp]: an input and a target. Rank `cp_rank` of a replica takes
    a part of the tokens.
    """
    length = 2 * layout.seq_length - 1 if pairs else layout.seq_length
    cp = ContextParallel(size=layout.cp, rank=cp_rank, ring=layout.cp_style == "ring")
    batches = []
    for first in range(0, len(draws), layout.micro_batch_size):
        tokens = sequences(
            draws[first : first + layout.micro_batch_size],
            seq_length=length, vocab_size=vocab_size, device=device,
        )  # fmt: skip
        ids, labels = _pairs(tokens) if pairs else (tokens[:, :-1], tokens[:, 1:])
        ids, labels = (cp.shard(part, dim=-1).contiguous() for part in (ids, labels))
        batches.append((ids, labels))
    return batches


def _pairs(tokens: Tensor) -> MicroBatch:
    """[b, 2 s] -> ids [b, 2, s] and labels [b, s]; the decoder sees the labels one step late."""
    source, labels = tokens.chunk(2, dim=1)
    start = torch.full_like(labels[:, :1], _START)
    return torch.stack((source, torch.cat((start, labels[:, :-1]), dim=1)), dim=1), labels


class Feed:
    """Hands out a rank's batches of each step; what is random in them is drawn before the first.

    A GPU idles while the host draws: between two measured steps its energy would be counted, and
    after the warm-up it would cool, and begin what is measured at a higher clock. Tokens are made
    of the draws on the device, where that takes next to no time.

    Args:
        point: what is trained.
        place: the rank's; a replica takes consecutive sequences of the global batch.
        counts: micro-batches of each step.
        first: the number of the first of these steps.
        device: where the batches are handed out.
    """

    def __init__(
        self, point: Point, place: Place, counts: Sequence[int], *, first: int, device: torch.device
    ) -> None:
        self._point, self._cp_rank, self._device = point, place.cp_rank, device
        self._draws = {}
        for step, count in enumerate(counts, start=first):
            size = point.layout.micro_batch_size * count
            indices = range(place.dp_rank * size, (place.dp_rank + 1) * size)
            vocab_size = point.shape.vocab_size
            self._draws[step] = [draw(point.seed, step, index, vocab_size) for index in indices]

    def __call__(self, step: int) -> list[MicroBatch]:
        """The batches of this step."""
        return micro_batches(
            self._point.layout,
            self._draws[step],
            vocab_size=self._point.shape.vocab_size,
            cp_rank=self._cp_rank,
            device=self._device,
            pairs=self._point.shape.family == "t5",
        )
