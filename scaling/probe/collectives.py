"""Collectives of one group, in place where torch allows it, and a check of what arrived.

Rank r fills element i with (r mod 8 + 1)(i mod 7 + 1). These whole numbers are small, so sums over
300,000 ranks are exact in fp32. A part in the wrong place or from the wrong rank shows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from scaling.record.probe_row import Collective
from scaling.train.parallel.tensor import all_gather, reduce_scatter

ELEMENT_BYTES = 4
_PERIOD = 7
_PIECE = 2**24  # elements that are filled or checked together


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks of one group in order, and this rank's place among them."""

    ranks: Sequence[int]
    index: int
    group: dist.ProcessGroup | None
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One collective on its own buffers. `is_wrong` is for the first `send` after `fill`."""

    source: torch.Tensor  # what this rank sends
    start: int  # of the source within the whole, in elements
    factor: int  # of this rank's numbers
    zeroed: torch.Tensor | None  # the receive buffer, where the collective is not in place
    send: Callable[[], object]
    expected: Sequence[tuple[torch.Tensor, int, int]]  # received parts with factors and starts

    def fill(self) -> None:
        """Fill the buffers as they are before sending."""
        if self.zeroed is not None:
            self.zeroed.zero_()
        for piece, numbers in _pieces(self.source, self.start):
            piece.copy_(numbers).mul_(self.factor)

    def is_wrong(self) -> bool:
        """Whether anything other than the expected numbers has arrived."""
        return any(
            not torch.equal(piece, numbers.mul_(factor))
            for part, factor, start in self.expected
            for piece, numbers in _pieces(part, start)
        )


def message_elements(message_bytes: int, ranks: int) -> int:
    """Elements of a message, rounded down to a multiple of the ranks."""
    return max(1, message_bytes // ELEMENT_BYTES // ranks) * ranks


def exchange(kind: Collective, ring: RankGroup, elements: int) -> Exchange:
    """A collective whose whole tensor has this many elements, in place where torch allows it.

    Raises:
        torch.OutOfMemoryError: its buffers do not fit.
    """
    ranks, group = ring.ranks, ring.group
    factors = [rank % 8 + 1 for rank in ranks]
    whole = torch.empty(elements, device=ring.device)
    parts = whole.chunk(len(ranks))
    size = parts[0].numel()
    part, start, total = parts[ring.index], ring.index * size, sum(factors)
    make = partial(Exchange, source=whole, start=0, factor=factors[ring.index], zeroed=None)
    if kind == "all_reduce":
        send = partial(dist.all_reduce, whole, group=group)
        return make(send=send, expected=[(whole, total, 0)])
    if kind == "broadcast":
        send = partial(dist.broadcast, whole, src=ranks[0], group=group)
        return make(send=send, expected=[(whole, factors[0], 0)])
    if kind == "reduce_scatter":  # in place: this rank's part of the sum replaces its input
        send = partial(reduce_scatter, part, whole, group=group)
        return make(send=send, expected=[(part, total, start)])
    if kind == "all_gather":  # in place: each rank sends its part of the whole
        send = partial(all_gather, whole, part, group=group)
        places = range(0, elements, size)
        gathered = list(zip(parts, factors, places, strict=True))
        return make(source=part, start=start, zeroed=whole, send=send, expected=gathered)
    received = torch.empty_like(whole)
    if kind == "all_to_all":
        send = partial(dist.all_to_all_single, received, whole, group=group)
        of_ranks = zip(received.chunk(len(ranks)), factors, strict=True)
        expected = [(of_rank, factor, start) for of_rank, factor in of_ranks]
        return make(zeroed=received, send=send, expected=expected)
    # send_recv: every rank sends to the next and receives from the previous, as in nccl-tests
    before, after = ring.index - 1, (ring.index + 1) % len(ranks)

    def send_and_receive() -> None:
        operations = [
            dist.P2POp(dist.isend, whole, ranks[after], group),
            dist.P2POp(dist.irecv, received, ranks[before], group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    expected = [(received, factors[before], 0)]
    return make(zeroed=received, send=send_and_receive, expected=expected)


def _pieces(tensor: torch.Tensor, start: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pieces of a tensor, each with its numbers i mod 7 + 1 for i from `start` on.

    Piece by piece, so that no second buffer of the tensor's size is needed.
    """
    for piece in tensor.split(_PIECE):
        count, device = piece.numel(), piece.device
        period = (torch.arange(start, start + _PERIOD, device=device) % _PERIOD + 1).float()
        yield piece, period.repeat(-(-count // _PERIOD))[:count]
        start += count
