"""The synthetic batch: every layout sees the same sequences in the same step.

A decoder learns the next token of seq_length tokens. An encoder-decoder has an input of seq_length
and a target of as many, which goes on where the input ends: 2 * seq_length tokens a sequence.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from scaling.layout.layout import Layout
from scaling.train.parallel.context import ContextParallel

MicroBatch = tuple[Tensor, Tensor]

_LARGEST_STRIDE = 8
_START = 0  # T5 begins every target with its padding token, which is 0


def sequence(seed: int, step: int, index: int, *, seq_length: int, vocab_size: int) -> Tensor:
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
    pairs: bool = False,
    count: int | None = None,
) -> list[MicroBatch]:
    """This replica's share of the global batch, one (ids, labels) a micro-batch.

    With `count` it is that of a step of so many micro-batches and not of the layout's.

    Both int64 [micro_batch_size, seq_length / cp], labels one token ahead; with `pairs` ids are
    [micro_batch_size, 2, seq_length / cp], an input and a target each. The replica `dp_rank` takes
    consecutive sequences, the rank `cp_rank` in it its share of their tokens.
    """
    share = layout.micro_batch_size * (count or layout.gradient_accumulation_steps)
    drawn = 2 * layout.seq_length - 1 if pairs else layout.seq_length
    tokens = torch.stack(
        [
            sequence(seed, step, index, seq_length=drawn, vocab_size=vocab_size)
            for index in range(dp_rank * share, (dp_rank + 1) * share)
        ]
    ).to(device)
    ids, labels = _pairs(tokens) if pairs else (tokens[:, :-1], tokens[:, 1:])
    cp = ContextParallel(size=layout.cp, rank=cp_rank, ring=layout.cp_style == "ring")
    ids, labels = (cp.shard(each, dim=-1).contiguous() for each in (ids, labels))
    size = layout.micro_batch_size
    return list(zip(ids.split(size), labels.split(size), strict=True))


def _pairs(tokens: Tensor) -> MicroBatch:
    """[b, 2 s] -> ids [b, 2, s] and labels [b, s]; the decoder sees the labels one step late."""
    source, labels = tokens.chunk(2, dim=1)
    start = torch.full_like(labels[:, :1], _START)
    return torch.stack((source, torch.cat((start, labels[:, :-1]), dim=1)), dim=1), labels


class Feed:
    """Draws the batches of the warm-up when they are asked for, and those that count beforehand.

    Drawing is the host's work, milliseconds in which a GPU would idle between two measured steps
    while its energy is counted. What was drawn waits on the host: it is no part of the memory that
    the layout needs.

    Args:
        draw: the micro-batches of a step, on the host.
        counted: the steps whose batches are drawn together, before the first of them.
        device: where they are handed out.
    """

    def __init__(
        self,
        draw: Callable[[int], list[MicroBatch]],
        *,
        counted: range,
        device: torch.device,
    ) -> None:
        self._draw, self._counted, self._device = draw, counted, device
        self._ready: dict[int, list[MicroBatch]] = {}

    def __call__(self, step: int) -> list[MicroBatch]:
        """The batches of this step, which are handed out once."""
        if self._counted and step == self._counted[0]:
            self._ready = {each: self._draw(each) for each in self._counted}
        drawn = self._ready.pop(step) if step in self._ready else self._draw(step)
        return [(ids.to(self._device), labels.to(self._device)) for ids, labels in drawn]
