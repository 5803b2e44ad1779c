"""Faults in a rank's process that make a layout train something else."""

from collections.abc import Callable
from typing import Any

import torch
from deepspeed.runtime.engine import DeepSpeedEngine

from scaling.train.engines.torch.fsdp import Sharding
from scaling.train.engines.torch.optimizer_step import OptimizerStep
from scaling.train.model import blueprint


def double_gradients_of_torch() -> None:
    update = OptimizerStep.__call__

    def doubled(self: OptimizerStep) -> None:
        for weight in self._weights:
            assert weight.grad is not None
            weight.grad *= 2
        update(self)

    OptimizerStep.__call__ = doubled


def double_gradients_of_deepspeed() -> None:
    backward = DeepSpeedEngine.backward

    def doubled(self: Any, loss: torch.Tensor, *words: Any, **options: Any) -> Any:
        return backward(self, 2 * loss, *words, **options)

    DeepSpeedEngine.backward = doubled


def skip_all_reduce() -> None:
    Sharding._begin_all_reduce = lambda *_: None


def skip_all_reduce_of_deepspeed() -> None:
    DeepSpeedEngine.allreduce_gradients = lambda *_, **__: None


def hold_the_first_shard() -> None:
    shard = blueprint.shard
    blueprint.shard = lambda weight, *, dim, rank, size: shard(weight, dim=dim, rank=0, size=size)


FAULTS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        double_gradients_of_torch, double_gradients_of_deepspeed, skip_all_reduce,
        skip_all_reduce_of_deepspeed, hold_the_first_shard,
    )
}  # fmt: skip
