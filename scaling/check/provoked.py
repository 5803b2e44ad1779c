"""Processes that make a point fail, as `python -m scaling.check.provoked HOW ...`.

silent POINT.json DIRECTORY      a rank; the last one hangs in its second forward pass, and the
                                 others wait for it in a collective
full_stage POINT.json DIRECTORY  a rank of a torch pipeline that runs out of memory in a stage
full_card POINT.json DIRECTORY   a rank that fills its GPU before the first collective, so that
                                 NCCL finds no room
hold BYTES                       not a rank: takes all of the first GPU except BYTES, prints how
                                 much it took, and ends when its standard input does
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
_BLOCKS = tuple(2**power for power in (30, 26, 21))  # bytes; the allocator takes at least 2 MiB


def main() -> None:
    """Fail as the first argument says."""
    how, *arguments = sys.argv[1:]
    if how == "hold":
        hold(int(arguments[0]))
        return
    sys.argv[1:] = arguments
    with {"silent": _silent, "full_card": _with_full_card, "full_stage": _in_full_stage}[how]():
        rank.main()


def fill(take: Callable[[int], Any], room: int | None = None) -> list[Any]:
    """Take blocks, large ones first, until nothing is left or `room` bytes are taken.

    `take` returns a block of a number of bytes, or raises torch.OutOfMemoryError.
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
    """Hold all of the first GPU except `left` bytes until standard input ends."""
    free, _ = torch.cuda.mem_get_info(0)
    blocks = fill(_take, max(0, free - left))
    sys.stdout.write(f"{sum(block.numel() for block in blocks)}\n")
    sys.stdout.flush()
    sys.stdin.read()


def _take(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def _silent() -> Any:
    forwards = iter(range(2))

    def wait(*_: Any) -> None:
        if dist.get_rank() == dist.get_world_size() - 1 and next(forwards):
            time.sleep(10 * 60)

    return _before_each_forward(wait, lambda module: [module])


def _in_full_stage() -> Any:
    def take_more_than_there_is(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory, as provoked in a stage")

    return _before_each_forward(take_more_than_there_is, list)


def _before_each_forward(call: Callable[..., None], modules: Callable[[Any], list[Any]]) -> Any:
    """Patch the ranks' program: modules of the engine's module call this before their forward."""
    build = trainer.build

    def build_with_hooks(*arguments: Any) -> Any:
        built = build(*arguments)
        for module in modules(built.engine.module):
            module.register_forward_pre_hook(call)
        return built

    return mock.patch.object(program, "build", build_with_hooks)


def _with_full_card() -> Any:
    def groups(*_: Any, **__: Any) -> NoReturn:
        number = torch.ones(1, device="cuda")
        blocks = fill(_take)
        dist.all_reduce(number)
        number.item()
        raise RuntimeError(f"{FOUND_ROOM} of {len(blocks)} blocks")

    return mock.patch.object(program, "Groups", groups)


if __name__ == "__main__":
    main()
