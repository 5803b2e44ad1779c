"""A rank that makes its point fail: `python -m scaling.check.provoked HOW POINT.json DIRECTORY`.

silent      the last rank hangs in its second forward pass, and the others wait in a collective
full_stage  a rank of a torch pipeline runs out of memory in a stage
"""

import sys
import time
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from scaling.train import __main__ as rank
from scaling.train import program
from scaling.train.engines import trainer


def main() -> None:
    """Fail as the first argument says."""
    how = sys.argv.pop(1)
    build, forwards = trainer.build, iter(range(2))

    def wait(*_: Any) -> None:
        if dist.get_rank() == dist.get_world_size() - 1 and next(forwards):
            time.sleep(10 * 60)

    def take_more_than_there_is(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory, as provoked in a stage")

    def build_with_hooks(*arguments: Any) -> Any:
        built = build(*arguments)
        module = built.engine.module
        for part in [module] if how == "silent" else module:
            part.register_forward_pre_hook(wait if how == "silent" else take_more_than_there_is)
        return built

    with mock.patch.object(program, "build", build_with_hooks):
        rank.main()


if __name__ == "__main__":
    main()
