"""Patches for a rehearsal of DeepSpeed: fake tensors, no CUDA, no other ranks."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from deepspeed.accelerator import set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.utils import PartitionedTensor, partition_uniform
from deepspeed.runtime.zero import partition_parameters, partitioned_param_coordinator, stage3
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from scaling.study.point import Point
from scaling.train.engines.trainer import Note, Trainer
from scaling.train.kernels.attention import DTYPES
from scaling.train.model.blueprint import activation_shape
from scaling.train.parallel.groups import Groups


def wrap_optimizer(trainer: Trainer, wrap: Callable[[Any], Any]) -> None:
    """Wrap what runs once a step, after its micro-batches."""
    trainer.engine._take_model_step = wrap(trainer.engine._take_model_step)


class _Stream:
    """A stream or an event of a device on which nothing takes time."""

    def __init__(self, note: Note) -> None:
        self._note = note

    def synchronize(self) -> None:
        self._note("synchronize")

    def record(self, _: Any = None) -> None: ...

    wait_stream = wait_event = record

    def record_event(self, event: Any = None) -> Any:
        return event or _Stream(self._note)

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0


class _LikeCuda(CPU_Accelerator):  # type: ignore[misc] # DeepSpeed has no types
    """DeepSpeed's accelerator, answering as CUDA would: work is queued on streams."""

    def __init__(self, note: Note) -> None:
        super().__init__()
        self._communication_backend_name = "fake"
        self._note = note

    def is_synchronized_device(self) -> bool:
        return False

    def is_fp16_supported(self) -> bool:
        return True

    def synchronize(self, device_index: int | None = None) -> None:
        self._note("synchronize")

    @property
    def Stream(self) -> Any:
        return self._stream

    Event = Stream

    def _stream(self, *_: Any, **__: Any) -> _Stream:
        return _Stream(self._note)

    def current_stream(self, device_index: int | None = None) -> Any:
        return self._stream()

    default_stream = current_stream


def act_like_cuda(note: Note) -> None:
    """Make DeepSpeed take the paths it takes on CUDA, and count where it drains the device."""
    set_accelerator(_LikeCuda(note))


@contextlib.contextmanager
def patched(point: Point, groups: Groups, note: Note) -> Iterator[None]:
    """Answer what DeepSpeed would read from a tensor or receive from another rank."""
    message = _Message(point, groups)
    from_meta_of_tensor = PartitionedTensor.from_meta

    def from_meta(meta: Tensor, **partition: Any) -> PartitionedTensor:
        note("tolist")
        with unset_fake_temporarily():
            real_meta = torch.tensor(message.partition())
        return from_meta_of_tensor(meta=real_meta, **partition)

    with contextlib.ExitStack() as stack:

        def patch(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        for module in (partition_parameters, partitioned_param_coordinator, stage3):
            for name in ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"):
                if hasattr(module, name):
                    patch(module, name, lambda *_, **__: None)
        # a model is built where it trains, and torch would replace each fake weight by another
        patch(torch.nn.Module, "to", lambda self, *_, **__: self)
        patch(Tensor, "record_stream", lambda *_: None)
        patch(PartitionedTensor, "from_meta", from_meta)
        patch(PipelineEngine, "_recv_tensor_meta", lambda engine, _: message.buffers(engine))
        yield


class _Message:
    """The activations [b, s', h] that two stages exchange, whole or partitioned over tp."""

    def __init__(self, point: Point, groups: Groups) -> None:
        layout = point.layout
        self.shape = [*activation_shape(point.shape, layout)]
        self.dtype, self.tp = DTYPES[layout.model_precision], layout.tp
        self.tp_rank = groups.place.tp_rank

    def partition(self) -> list[int]:
        """DeepSpeed's description of a partitioned activation: shape, ranks, where parts begin."""
        parts = partition_uniform(math.prod(self.shape), self.tp)
        return [len(self.shape), *self.shape, self.tp, self.tp_rank, *parts]

    def buffers(self, engine: PipelineEngine) -> Any:
        """Receive buffers for what the previous stage sends."""
        if not engine.is_pipe_partitioned:
            return engine._allocate_or_extend_buffers(0, self.shape, self.dtype)
        meta = self.partition()
        part = meta[-self.tp + self.tp_rank] - meta[-self.tp - 1 + self.tp_rank]
        return (
            engine._allocate_or_extend_buffers(0, [len(meta)], torch.int64),
            engine._allocate_or_extend_buffers(1, [part], self.dtype),
        )
