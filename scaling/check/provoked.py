"""Processes that make a point fail, as `python -m scaling.check.provoked HOW ...`.

silent POINT.json DIRECTORY      a rank; the last one never ends its second forward pass, and
the others wait for it in a collective
full_card POINT.json DIRECTORY   a rank that fills its GPU before the first collective, so that
NCCL finds no room
hold BYTES                       no rank: takes all of the first GPU but BYTES, says so, and
ends with its standard input
"""

import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn
from unittest import mock

import torch
import torch.distributed as dist

from scaling.train import __main__ as rank
from scaling.train import program
from scaling.train.engines import trainer

FOUND_ROOM = "NCCL found room in a full card"
_BLOCKS = tuple(2**power for power in (30, 26, 21))  # bytes; the allocator asks for 2 MiB at least


def main() -> None:
    """Do what the first argument says."""
    how, *arguments = sys.argv[1:]
    if how == "hold":
        hold(int(arguments[0]))
        return
    sys.argv[1:] = arguments
    with {"silent": _silent, "full_card": _with_full_card}[how]():
        rank.main()


def fill(take: Callable[[int], Any], room: int | None = None) -> list[Any]:
    """Take block after block, large ones first, until nothing is left, or `room` bytes are taken.

    `take` gives a block of so many bytes, or raises torch.OutOfMemoryError.
    """
    blocks = []
    for size in _BLOCKS:
        while room is None or room >= size:
            try:
                blocks.append(take(size))
            except torch.OutOfMemoryError:
                break
            room = None if room is None else room - size
    return blocks


def hold(left: int) -> None:
    """Keep all of the first GPU but `left` bytes until standard input ends."""
    free, _ = torch.cuda.mem_get_info(0)
    blocks = fill(_taken, max(0, free - left))
    sys.stdout.write(f"{sum(block.numel() for block in blocks)}\n")
    sys.stdout.flush()
    sys.stdin.read()


def _taken(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def _silent() -> Any:
    build = trainer.build

    def build_silent(*arguments: Any) -> Any:
        built, forwards = build(*arguments), iter(range(2))

        def wait(*_: Any) -> None:
            if dist.get_rank() == dist.get_world_size() - 1 and next(forwards):
                time.sleep(10 * 60)

        built.engine.module.register_forward_pre_hook(wait)
        return built

    return mock.patch.object(program, "build", build_silent)


def _with_full_card() -> Any:
    def groups(*_: Any, **__: Any) -> NoReturn:
        number = torch.ones(1, device="cuda")
        blocks = fill(_taken)
        dist.all_reduce(number)
        number.item()
        raise RuntimeError(f"{FOUND_ROOM} of {len(blocks)} blocks")

    return mock.patch.object(program, "Groups", groups)


if __name__ == "__main__":
    main()
