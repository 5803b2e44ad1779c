"""What DeepSpeed must be told where a rank is rehearsed: no CUDA, no numbers, no neighbours."""

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

from scaling.layout.shapes import T5_BUCKETS
from scaling.study.point import Point
from scaling.train.engines.trainer import Trainer
from scaling.train.kernels.attention import DTYPES
from scaling.train.parallel.groups import Groups

Note = Callable[[str], None]  # counts one wait for the device, by its kind


def around_optimizer(trainer: Trainer, wrap: Callable[[Any], Any]) -> None:
    """Let `wrap` stand around what is done once after a step's micro-batches."""
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
    """What DeepSpeed asks about its device, answered as CUDA would: work is queued on streams."""

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


def answer_as_cuda(note: Note) -> None:
    """Let DeepSpeed take the paths that it takes on CUDA, and count where it drains the device."""
    set_accelerator(_LikeCuda(note))


@contextlib.contextmanager
def answered(point: Point, groups: Groups, note: Note) -> Iterator[None]:
    """Tell DeepSpeed what it would read from a tensor or hear from a neighbour."""
    message = _Message(point, groups)
    rebuilt = PartitionedTensor.from_meta

    def from_meta(meta: Tensor, **partition: Any) -> PartitionedTensor:
        note("tolist")
        with unset_fake_temporarily():
            known = torch.tensor(message.partition())
        return rebuilt(meta=known, **partition)

    with contextlib.ExitStack() as stack:

        def put(place: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(place, name, value))

        for module in (partition_parameters, partitioned_param_coordinator, stage3):
            for name in ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"):
                if hasattr(module, name):
                    put(module, name, lambda *_, **__: None)
        # a model is built where it trains; torch would swap each fake weight for another
        put(torch.nn.Module, "to", lambda self, *_, **__: self)
        put(Tensor, "record_stream", lambda *_: None)
        put(PartitionedTensor, "from_meta", from_meta)
        put(PipelineEngine, "_recv_tensor_meta", lambda engine, _: message.buffers(engine))
        yield


class _Message:
    """What stages send each other.

    Of a decoder activations [b, s', h], whole or cut over tp; of an encoder-decoder two of them
    and both position tables, end to end (`pipeline.packed`).
    """

    def __init__(self, point: Point, groups: Groups) -> None:
        layout = point.layout
        tokens = layout.seq_length // layout.cp
        if layout.sequence_parallel:
            tokens //= layout.tp
        self.shape = [layout.micro_batch_size, tokens, point.shape.hidden_size]
        if point.shape.family == "t5":
            table = point.shape.num_heads // layout.tp * T5_BUCKETS
            self.shape = [2 * (math.prod(self.shape) + table)]
        self.dtype, self.tp = DTYPES[layout.model_precision], layout.tp
        self.tp_rank = groups.place.tp_rank

    def partition(self) -> list[int]:
        """How an activation is cut, in DeepSpeed's words: shape, ranks, where parts begin."""
        parts = partition_uniform(math.prod(self.shape), self.tp)
        return [len(self.shape), *self.shape, self.tp, self.tp_rank, *parts]

    def buffers(self, engine: PipelineEngine) -> Any:
        """Room for what the stage before sends."""
        if not engine.is_pipe_partitioned:
            return engine._allocate_or_extend_buffers(0, self.shape, self.dtype)
        meta = self.partition()
        part = meta[-self.tp + self.tp_rank] - meta[-self.tp - 1 + self.tp_rank]
        return (
            engine._allocate_or_extend_buffers(0, [len(meta)], torch.int64),
            engine._allocate_or_extend_buffers(1, [part], self.dtype),
        )
