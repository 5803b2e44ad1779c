"""Synthetic batches: every layout sees the same sequences in the same step.

A decoder predicts the next token of seq_length tokens. An encoder-decoder has an input of
seq_length tokens and a target of as many that continues it: 2 * seq_length tokens a sequence.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

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


def micro_batch(
    point: Point, draws: Sequence[Draw], *, cp_rank: int = 0, device: torch.device
) -> MicroBatch:
    """Ids and labels of these sequences, both int64 [b, seq_length / cp].

    Labels are one token ahead. Ids of a t5 are [b, 2, seq_length / cp]: an input and a target that
    the decoder sees one step late. Rank `cp_rank` of a replica takes a part of the tokens.
    """
    layout, vocab_size = point.layout, point.shape.vocab_size
    pairs = point.shape.family == "t5"
    length = 2 * layout.seq_length - 1 if pairs else layout.seq_length
    tokens = sequences(draws, seq_length=length, vocab_size=vocab_size, device=device)
    ids, labels = tokens[:, :-1], tokens[:, 1:]
    if pairs:
        source, labels = tokens.chunk(2, dim=1)
        start = torch.full_like(labels[:, :1], _START)
        ids = torch.stack((source, torch.cat((start, labels[:, :-1]), dim=1)), dim=1)
    cp = ContextParallel(size=layout.cp, rank=cp_rank, ring=layout.cp_style == "ring")
    return cp.shard(ids, dim=-1).contiguous(), cp.shard(labels, dim=-1).contiguous()


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
        self._micro_batch = partial(micro_batch, point, cp_rank=place.cp_rank, device=device)
        self._draws: dict[int, list[list[Draw]]] = {}  # by step, of each micro-batch
        size, vocab_size = point.layout.micro_batch_size, point.shape.vocab_size
        for step, count in enumerate(counts, start=first):
            begins = range(place.dp_rank * size * count, (place.dp_rank + 1) * size * count, size)
            self._draws[step] = [
                [draw(point.seed, step, index, vocab_size) for index in range(begin, begin + size)]
                for begin in begins
            ]

    def __call__(self, step: int) -> list[MicroBatch]:
        """The batches of this step."""
        return [self._micro_batch(draws) for draws in self._draws[step]]
