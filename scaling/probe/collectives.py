"""Collectives of one group: in place where torch allows it, and whether what arrived is right.

Rank r fills element i with (r mod 8 + 1)(i mod 7 + 1): small whole numbers, so that sums over
300,000 ranks are exact in fp32 and a part in the wrong place or from the wrong rank is seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from scaling.record.probe_row import Collective

# torch 2.13 renamed both and warns about the old names; 2.11 has only those
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

ELEMENT_BYTES = 4
_PERIOD = 7
_PIECE = 2**24  # elements that are filled or looked at together


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The ranks of one group in order, and this rank's place among them."""

    ranks: Sequence[int]
    index: int
    group: dist.ProcessGroup | None
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One collective on buffers of its own. `send` may run again and again; `wrong` is for once."""

    fill: Callable[[], object]
    send: Callable[[], object]
    wrong: Callable[[], bool]


def elements_of(message_bytes: int, ranks: int) -> int:
    """Elements of a message: a multiple of the ranks, so that every rank has an equal part."""
    return max(1, message_bytes // ELEMENT_BYTES // ranks) * ranks


def exchange(kind: Collective, ring: Ring, elements: int) -> Exchange:
    """A collective whose whole tensor has so many elements; in place where torch allows it.

    Raises:
        torch.OutOfMemoryError: its buffers do not fit.
    """
    ranks, group = ring.ranks, ring.group
    factors = [_factor(rank) for rank in ranks]
    own, total = factors[ring.index], sum(factors)
    whole = torch.empty(elements, device=ring.device)
    parts = whole.chunk(len(ranks))
    size = parts[0].numel()
    part, start = parts[ring.index], ring.index * size
    if kind == "all_reduce":
        return Exchange(
            fill=lambda: _fill(whole, own),
            send=lambda: dist.all_reduce(whole, group=group),
            wrong=lambda: _differs(whole, total),
        )
    if kind == "broadcast":
        return Exchange(
            fill=lambda: _fill(whole, own),
            send=lambda: dist.broadcast(whole, src=ranks[0], group=group),
            wrong=lambda: _differs(whole, factors[0]),
        )
    if kind == "reduce_scatter":  # the sum's part comes to where that part of the input was
        return Exchange(
            fill=lambda: _fill(whole, own),
            send=lambda: _reduce_scatter(part, whole, group=group),
            wrong=lambda: _differs(part, total, start),
        )
    if kind == "all_gather":  # a rank's part is where it belongs in the whole
        return Exchange(
            fill=lambda: (whole.zero_(), _fill(part, own, start)),
            send=lambda: _all_gather(whole, part, group=group),
            wrong=lambda: any(
                _differs(of_rank, factor, index * size)
                for index, (factor, of_rank) in enumerate(zip(factors, parts, strict=True))
            ),
        )
    received = torch.empty_like(whole)
    if kind == "all_to_all":
        return Exchange(
            fill=lambda: (_fill(whole, own), received.zero_()),
            send=lambda: dist.all_to_all_single(received, whole, group=group),
            wrong=lambda: any(
                _differs(of_rank, factor, start)
                for factor, of_rank in zip(factors, received.chunk(len(ranks)), strict=True)
            ),
        )
    # every rank sends to the next and receives from the one before, as nccl-tests' sendrecv
    before, after = ring.index - 1, (ring.index + 1) % len(ranks)

    def send() -> None:
        operations = [
            dist.P2POp(dist.isend, whole, ranks[after], group),
            dist.P2POp(dist.irecv, received, ranks[before], group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return Exchange(
        fill=lambda: (_fill(whole, own), received.zero_()),
        send=send,
        wrong=lambda: _differs(received, factors[before]),
    )


def _factor(rank: int) -> int:
    return rank % 8 + 1


def _ramp(start: int, count: int, device: torch.device) -> torch.Tensor:
    """The numbers i mod 7 + 1 for i from `start`, fp32 (count,)."""
    period = (torch.arange(start, start + _PERIOD, device=device) % _PERIOD + 1).float()
    return period.repeat(-(-count // _PERIOD))[:count]


def _fill(target: torch.Tensor, factor: float, start: int = 0) -> torch.Tensor:
    """Element i of `target` is what i + `start` should be. By pieces: it takes no second buffer."""
    for piece in target.split(_PIECE):
        piece.copy_(_ramp(start, piece.numel(), target.device)).mul_(factor)
        start += piece.numel()
    return target


def _differs(received: torch.Tensor, factor: float, start: int = 0) -> bool:
    for piece in received.split(_PIECE):
        if not torch.equal(piece, _ramp(start, piece.numel(), received.device).mul_(factor)):
            return True
        start += piece.numel()
    return False
