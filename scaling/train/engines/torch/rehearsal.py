"""Patches for a rehearsal of this engine: fake tensors, no CUDA, no other ranks."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining import _utils as pipelining

from scaling.study.point import Point
from scaling.train.engines.torch import fsdp as sharding
from scaling.train.engines.trainer import Note, Trainer
from scaling.train.parallel.groups import Groups


def wrap_optimizer(trainer: Trainer, wrap: Callable[[Any], Any]) -> None:
    """Wrap what runs once a step, after its micro-batches."""
    trainer.engine.optimizer_step = wrap(trainer.engine.optimizer_step)


def act_like_cuda(note: Note) -> None:
    """Nothing to do: FSDP2 queues the same work on every device and waits for none itself."""


@contextlib.contextmanager
def patched(point: Point, groups: Groups, note: Note) -> Iterator[None]:
    """Answer what FSDP2 and the stages would read from a tensor or receive from another rank."""
    finalize_backward = FSDPParamGroup.finalize_backward

    def with_real_tensors(make_mesh: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any) -> Any:
            with unset_fake_temporarily():  # a mesh looks for this rank among its numbers
                return make_mesh(*args)

        return make

    def warm_up(_: Any, stages: list[PipelineStage], *__: Any) -> None:
        for stage in stages:  # the engine has told each stage the shapes it receives
            stage._inference_mode = pipelining.InferenceMode.STATIC

    def finalize(group: FSDPParamGroup) -> None:
        for weight in group.fsdp_params:
            if weight.offload_to_cpu:  # its gradient is copied to the host
                note("synchronize")
        finalize_backward(group)  # type: ignore[no-untyped-call]

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (sharding, "data_mesh", with_real_tensors(sharding.data_mesh)),
            (sharding, "expert_mesh", with_real_tensors(sharding.expert_mesh)),
            (FSDPParamGroup, "finalize_backward", finalize),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        if hasattr(pipelining, "InferenceMode"):  # torch 2.12 and older ask no other rank
            stack.enter_context(
                mock.patch.object(schedules._PipelineSchedule, "_warmup_p2p", warm_up)
            )
        yield
