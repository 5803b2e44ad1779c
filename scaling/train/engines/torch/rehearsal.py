"""What this engine must be told where a rank is rehearsed: no CUDA, no numbers, no neighbours."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining import _utils as pipelining

from scaling.study.point import Point
from scaling.train.engines.torch import sharding
from scaling.train.engines.trainer import Trainer
from scaling.train.parallel.groups import Groups

Note = Callable[[str], None]  # counts one wait for the device, by its kind


def wrap_optimizer(trainer: Trainer, wrap: Callable[[Any], Any]) -> None:
    """Let `wrap` stand around what is done once after a step's micro-batches."""
    trainer.engine.update = wrap(trainer.engine.update)


def act_like_cuda(note: Note) -> None:
    """Nothing: FSDP2 queues the same work on every device and waits for none of it itself."""


@contextlib.contextmanager
def patched(point: Point, groups: Groups, note: Note) -> Iterator[None]:
    """Tell FSDP2 and the stages what they would read from a tensor or hear from a neighbour."""
    finalized = FSDPParamGroup.finalize_backward

    def with_numbers(data_mesh: Callable[..., Any]) -> Callable[..., Any]:
        def made(*place: Any) -> Any:
            with unset_fake_temporarily():  # a mesh looks for this rank among its numbers
                return data_mesh(*place)

        return made

    def warm_up(_: Any, stages: list[PipelineStage], *__: Any) -> None:
        for stage in stages:  # each was told what it is sent
            stage._inference_mode = pipelining.InferenceMode.STATIC

    def finalize(group: FSDPParamGroup) -> None:
        for weight in group.fsdp_params:
            if weight.offload_to_cpu:  # its gradient comes to the host
                note("synchronize")
        finalized(group)  # type: ignore[no-untyped-call]

    with contextlib.ExitStack() as stack:
        for place, name, value in (
            (sharding, "data_mesh", with_numbers(sharding.data_mesh)),
            (sharding, "expert_mesh", with_numbers(sharding.expert_mesh)),
            (FSDPParamGroup, "finalize_backward", finalize),
        ):
            stack.enter_context(mock.patch.object(place, name, value))
        if hasattr(pipelining, "InferenceMode"):  # torch 2.12 and older ask no neighbour
            stack.enter_context(
                mock.patch.object(schedules._PipelineSchedule, "_warmup_p2p", warm_up)
            )
        yield
