"""Synthetic batches: every layout sees the same sequences in the same step.

A decoder predicts the next token of seq_length tokens. An encoder-decoder has an input of
seq_length tokens and a target of as many that continues it: 2 * seq_length tokens a sequence.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from scaling.layout.layout import Layout
from scaling.study.point import Point
from scaling.train.parallel.context import ContextParallel
from scaling.train.parallel.groups import Place

MicroBatch = tuple[Tensor, Tensor]

_LARGEST_STRIDE = 8
_START = 0  # a T5 target begins with the padding token, which is 0


def sequence(seed: int, step: int, index: int, *, seq_length: int, vocab_size: int) -> Tensor:
    """Sequence `index` of the global batch of `step`: int64 [seq_length + 1].

    Tokens rise by a constant stride from a random start, so a model can learn them and losses fall.
    """
    random = np.random.default_rng([seed, step, index])
    start = int(random.integers(vocab_size))
    stride = int(random.integers(1, _LARGEST_STRIDE + 1))
    return (start + stride * torch.arange(seq_length + 1)) % vocab_size


def rank_batches(point: Point, place: Place, step: int, count: int) -> list[MicroBatch]:
    """The `count` micro-batches of a step for the rank at this place, on the host."""
    return micro_batches(
        point.layout,
        vocab_size=point.shape.vocab_size,
        seed=point.seed,
        step=step,
        dp_rank=place.dp_rank,
        cp_rank=place.cp_rank,
        device=torch.device("cpu"),
        pairs=point.shape.family == "t5",
        count=count,
    )


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
    """This rank's micro-batches of a step, as (ids, labels).

    Both int64 [micro_batch_size, seq_length / cp], labels one token ahead. With `pairs` ids are
    [micro_batch_size, 2, seq_length / cp]: an input and a target. Replica `dp_rank` takes
    consecutive sequences of the global batch, and rank `cp_rank` in it a part of their tokens.
    `count` is the step's micro-batches, by default the layout's gradient_accumulation_steps.
    """
    sequences = layout.micro_batch_size * (count or layout.gradient_accumulation_steps)
    length = 2 * layout.seq_length - 1 if pairs else layout.seq_length
    tokens = torch.stack(
        [
            sequence(seed, step, index, seq_length=length, vocab_size=vocab_size)
            for index in range(dp_rank * sequences, (dp_rank + 1) * sequences)
        ]
    ).to(device)
    ids, labels = _pairs(tokens) if pairs else (tokens[:, :-1], tokens[:, 1:])
    cp = ContextParallel(size=layout.cp, rank=cp_rank, ring=layout.cp_style == "ring")
    ids, labels = (cp.shard(tokens, dim=-1).contiguous() for tokens in (ids, labels))
    size = layout.micro_batch_size
    return list(zip(ids.split(size), labels.split(size), strict=True))


def _pairs(tokens: Tensor) -> MicroBatch:
    """[b, 2 s] -> ids [b, 2, s] and labels [b, s]; the decoder sees the labels one step late."""
    source, labels = tokens.chunk(2, dim=1)
    start = torch.full_like(labels[:, :1], _START)
    return torch.stack((source, torch.cat((start, labels[:, :-1]), dim=1)), dim=1), labels


class Feed:
    """Hands out the batches of each step, those of measured steps drawn before the first step.

    A GPU idles while the host draws: between two measured steps its energy would be counted, and
    after the warm-up it would cool, and begin what is measured at a higher clock. Drawn batches
    wait on the host, so they add nothing to the layout's memory.

    Args:
        draw: the micro-batches of a step, on the host.
        counted: the steps whose batches are drawn at once, before any other; none by default.
        device: where the batches are handed out.
    """

    def __init__(
        self,
        draw: Callable[[int], list[MicroBatch]],
        *,
        counted: range = range(0),
        device: torch.device,
    ) -> None:
        self._draw, self._device = draw, device
        self._ready = {step: draw(step) for step in counted}

    def __call__(self, step: int) -> list[MicroBatch]:
        """The batches of this step, which are handed out once."""
        batches = self._ready.pop(step) if step in self._ready else self._draw(step)
        return [(ids.to(self._device), labels.to(self._device)) for ids, labels in batches]
