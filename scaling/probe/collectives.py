"""Collectives of one group: in place where torch allows it, and whether what arrived is right.

Rank r fills element i with (r mod 8 + 1)(i mod 7 + 1): small whole numbers, so that sums over
300,000 ranks are exact in fp32 and a part in the wrong place or from the wrong rank is seen.
"""

from collections.abc import Callable, Mapping, Sequence
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
    """A collective whose whole tensor has so many elements.

    Raises:
        torch.OutOfMemoryError: its buffers do not fit.
    """
    return _MAKERS[kind](ring, elements)


def _factor(rank: int) -> int:
    return rank % 8 + 1


def _ramp(start: int, count: int, device: torch.device) -> torch.Tensor:
    """The numbers i mod 7 + 1 for i from `start`, fp32 (count,)."""
    period = (torch.arange(start, start + _PERIOD, device=device) % _PERIOD + 1).float()
    return period.repeat(-(-count // _PERIOD))[:count]


def _fill(target: torch.Tensor, factor: float, start: int = 0) -> None:
    """Element i of `target` is what i + `start` should be. By pieces: it takes no second buffer."""
    for piece in target.split(_PIECE):
        piece.copy_(_ramp(start, piece.numel(), target.device)).mul_(factor)
        start += piece.numel()


def _differs(received: torch.Tensor, factor: float, start: int = 0) -> bool:
    for piece in received.split(_PIECE):
        if not torch.equal(piece, _ramp(start, piece.numel(), received.device).mul_(factor)):
            return True
        start += piece.numel()
    return False


def _all_reduce_of(ring: Ring, elements: int) -> Exchange:
    own = _factor(ring.ranks[ring.index])
    whole = torch.empty(elements, device=ring.device)
    total = sum(_factor(rank) for rank in ring.ranks)
    return Exchange(
        fill=lambda: _fill(whole, own),
        send=lambda: dist.all_reduce(whole, group=ring.group),
        wrong=lambda: _differs(whole, total),
    )


def _broadcast_of(ring: Ring, elements: int) -> Exchange:
    own = _factor(ring.ranks[ring.index])
    whole = torch.empty(elements, device=ring.device)
    return Exchange(
        fill=lambda: _fill(whole, own),
        send=lambda: dist.broadcast(whole, src=ring.ranks[0], group=ring.group),
        wrong=lambda: _differs(whole, _factor(ring.ranks[0])),
    )


def _all_gather_of(ring: Ring, elements: int) -> Exchange:
    """In place: a rank's part is where it belongs in the whole."""
    size = elements // len(ring.ranks)
    whole = torch.empty(elements, device=ring.device)
    parts = whole.chunk(len(ring.ranks))

    def fill() -> None:
        whole.zero_()
        _fill(parts[ring.index], _factor(ring.ranks[ring.index]), ring.index * size)

    return Exchange(
        fill=fill,
        send=lambda: _all_gather(whole, parts[ring.index], group=ring.group),
        wrong=lambda: any(
            _differs(part, _factor(rank), index * size)
            for index, (rank, part) in enumerate(zip(ring.ranks, parts, strict=True))
        ),
    )


def _reduce_scatter_of(ring: Ring, elements: int) -> Exchange:
    """In place: the sum's part comes to where that part of the input was."""
    own = _factor(ring.ranks[ring.index])
    whole = torch.empty(elements, device=ring.device)
    part = whole.chunk(len(ring.ranks))[ring.index]
    total = sum(_factor(rank) for rank in ring.ranks)
    return Exchange(
        fill=lambda: _fill(whole, own),
        send=lambda: _reduce_scatter(part, whole, group=ring.group),
        wrong=lambda: _differs(part, total, ring.index * part.numel()),
    )


def _all_to_all_of(ring: Ring, elements: int) -> Exchange:
    own = _factor(ring.ranks[ring.index])
    sent = torch.empty(elements, device=ring.device)
    received = torch.empty_like(sent)
    size = elements // len(ring.ranks)

    def fill() -> None:
        _fill(sent, own)
        received.zero_()

    return Exchange(
        fill=fill,
        send=lambda: dist.all_to_all_single(received, sent, group=ring.group),
        wrong=lambda: any(
            _differs(part, _factor(rank), ring.index * size)
            for rank, part in zip(ring.ranks, received.chunk(len(ring.ranks)), strict=True)
        ),
    )


def _send_recv_of(ring: Ring, elements: int) -> Exchange:
    """Every rank sends to the next and receives from the one before, as nccl-tests' sendrecv."""
    count = len(ring.ranks)
    after, before = ring.ranks[(ring.index + 1) % count], ring.ranks[(ring.index - 1) % count]
    sent = torch.empty(elements, device=ring.device)
    received = torch.empty_like(sent)

    def fill() -> None:
        _fill(sent, _factor(ring.ranks[ring.index]))
        received.zero_()

    def send() -> None:
        operations = [
            dist.P2POp(dist.isend, sent, after, ring.group),
            dist.P2POp(dist.irecv, received, before, ring.group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return Exchange(fill=fill, send=send, wrong=lambda: _differs(received, _factor(before)))


_MAKERS: Mapping[Collective, Callable[[Ring, int], Exchange]] = {
    "all_reduce": _all_reduce_of,
    "all_gather": _all_gather_of,
    "reduce_scatter": _reduce_scatter_of,
    "all_to_all": _all_to_all_of,
    "broadcast": _broadcast_of,
    "send_recv": _send_recv_of,
}
