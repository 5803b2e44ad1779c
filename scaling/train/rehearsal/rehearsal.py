"""One rank's training steps without its device, its numbers and the other ranks.

The engine runs as it is, DeepSpeed included, on fake tensors (torch's: they have a shape and no
storage) in a fake process group, whose collectives return at once. So a laptop walks the step of
any rank of any size, and can tell what the rank asks of the host and of its memory.

    echo '{"point": {...}, "rank": 0}' | python -m scaling.train.rehearsal.rehearsal

A line names a point and a rank, the answer is a line. Torch and DeepSpeed keep what is made here in
globals, so each rehearsal is a process of its own, forked from one that has imported both.

Every rank of a decoder runs, and of an encoder-decoder every one but those of later stages: these
read from their neighbour how large its messages are, which of two streams is not said here.
"""

import contextlib
import dataclasses
import json
import logging
import math
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # collectives learn to fake
from deepspeed.accelerator import set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.utils import PartitionedTensor, partition_uniform
from deepspeed.runtime.zero import partition_parameters, partitioned_param_coordinator, stage3
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.testing._internal.distributed.fake_pg import FakeStore

from scaling.study.point import Point, point_from_json
from scaling.train.data import MicroBatch
from scaling.train.engines.deepspeed.engine import Trainer, build
from scaling.train.kernels import fused
from scaling.train.kernels.attention import DTYPES
from scaling.train.model.blueprint import Blueprint
from scaling.train.parallel.groups import Groups, join_deepspeed
from scaling.train.rehearsal.ledger import Ledger, Memory
from scaling.train.rehearsal.waits import Waits

_DEVICE = torch.device("cpu")  # torch's engine of gradients refuses tensors of an absent CUDA
_STEPS = 3  # ZeRO-3 prefetches from the second one on, and DeepSpeed's timers begin with the third


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What one rank did in its last step.

    `waits` counts what lets the host wait for the device, by kind: draining it (`synchronize`) and
    reading a tensor (`item`, `bool`, ...); `where` counts the same by line of code. `beats` is what
    it said while it was built, `memory` what lived on its device in the build and in all steps.
    """

    beats: list[str]
    waits: dict[str, int]
    where: dict[str, int]
    memory: Memory


def rehearsed(point: Point, rank: int) -> Rehearsal:
    """Build the engine of this rank and train a few steps.

    Makes this process a rank that can be no other any more.

    Raises:
        NotImplementedError: the layout's kernels do not run on tensors without numbers.
    """
    layout = point.layout
    chosen = [axis for axis in (*fused.MODULES, "compile") if getattr(layout, axis)]
    if chosen or layout.attention not in ("math", "flash2"):
        said = chosen[0] if chosen else f"attention={layout.attention}"
        raise NotImplementedError(f"{said} cannot be rehearsed: it needs its GPU")
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(layout.world_size)}
    os.environ["MASTER_PORT"] = "0"  # DeepSpeed takes its absence for a wish for MPI
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    waits = Waits()
    answer_as_cuda(waits)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    join_deepspeed()
    groups = Groups(rank, layout, timeout_s=point.time_limit_s)
    with FakeTensorMode(allow_non_fake_inputs=True), _told(point, groups, waits), waits.counted():
        return walked(point, groups, waits)


def walked(point: Point, groups: Groups, waits: Waits) -> Rehearsal:
    """The same on tensors of any kind, in the group that this process is in."""
    beats: list[str] = []
    with Ledger() as ledger:
        plan = Blueprint(
            shape=point.shape,
            layout=point.layout,
            tp=groups.tensor_parallel,
            cp=groups.context_parallel,
            seed=point.seed,
            gradient_clipping=point.gradient_clipping,
            device=_DEVICE,
        )
        trainer = build(plan, groups, beats.append)
        with _phases(trainer, ledger):
            for _ in range(_STEPS):
                waits.clear()
                trainer.step(_batches(point))
    return Rehearsal(
        beats=beats, waits=waits.by_kind(), where=waits.by_place(), memory=ledger.memory()
    )


@contextlib.contextmanager
def _phases(trainer: Trainer, ledger: Ledger) -> Iterator[None]:
    """Forward lasts until backward begins, that until the next forward or the optimizer."""

    def enter(phase: str) -> None:
        ledger.phase = phase

    def backward(*args: Any, **kwargs: Any) -> None:
        enter("backward")
        run_backward(*args, **kwargs)

    run_backward, engine = torch.autograd.backward, trainer.engine
    engine._take_model_step = ledger.during("optimizer", engine._take_model_step)
    engine.module.register_forward_pre_hook(lambda *_: enter("forward"))
    with mock.patch.object(torch.autograd, "backward", backward):
        yield


def _batches(point: Point) -> list[MicroBatch]:
    layout = point.layout
    tokens = (layout.micro_batch_size, layout.seq_length // layout.cp)
    pairs = (tokens[0], 2, tokens[1]) if point.shape.family == "t5" else tokens
    return [
        (torch.zeros(pairs, dtype=torch.int64), torch.zeros(tokens, dtype=torch.int64))
        for _ in range(layout.gradient_accumulation_steps)
    ]


class _Stream:
    """A stream or an event of a device on which nothing takes time."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def synchronize(self) -> None:
        self._waits.note("synchronize")

    def wait_stream(self, _: Any) -> None: ...

    def wait_event(self, _: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or _Stream(self._waits)

    def record(self, _: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0


class _LikeCuda(CPU_Accelerator):  # type: ignore[misc] # DeepSpeed has no types
    """What DeepSpeed asks about its device, answered as CUDA would: work is queued on streams."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._communication_backend_name = "fake"
        self._waits = waits

    def is_synchronized_device(self) -> bool:
        return False

    def synchronize(self, device_index: int | None = None) -> None:
        self._waits.note("synchronize")

    @property
    def Stream(self) -> Any:
        return self._stream

    Event = Stream

    def _stream(self, *_: Any, **__: Any) -> _Stream:
        return _Stream(self._waits)

    def current_stream(self, device_index: int | None = None) -> Any:
        return self._stream()

    default_stream = current_stream


def answer_as_cuda(waits: Waits) -> None:
    """Let DeepSpeed take the paths that it takes on CUDA, and count where it drains the device."""
    set_accelerator(_LikeCuda(waits))


@contextlib.contextmanager
def _told(point: Point, groups: Groups, waits: Waits) -> Iterator[None]:
    """Tell DeepSpeed what it would read from a tensor or hear from a neighbour."""
    message = _Message(point, groups)
    rebuilt = PartitionedTensor.from_meta

    def from_meta(meta: torch.Tensor, **partition: Any) -> PartitionedTensor:
        waits.note("tolist")
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
        put(torch.Tensor, "record_stream", lambda *_: None)
        put(PartitionedTensor, "from_meta", from_meta)
        put(PipelineEngine, "_recv_tensor_meta", lambda engine, _: message.buffers(engine))
        yield


class _Message:
    """What stages of a decoder send each other: activations [b, s', h], whole or cut over tp."""

    def __init__(self, point: Point, groups: Groups) -> None:
        layout = point.layout
        tokens = layout.seq_length // layout.cp
        if layout.sequence_parallel:
            tokens //= layout.tp
        self.shape = [layout.micro_batch_size, tokens, point.shape.hidden_size]
        self.dtype, self.tp = DTYPES[layout.precision], layout.tp
        self.tp_rank = groups.place.tp_rank
        self.decoder = point.shape.family != "t5"

    def partition(self) -> list[int]:
        """How an activation is cut, in DeepSpeed's words: shape, ranks, where parts begin."""
        parts = partition_uniform(math.prod(self.shape), self.tp)
        return [len(self.shape), *self.shape, self.tp, self.tp_rank, *parts]

    def buffers(self, engine: PipelineEngine) -> Any:
        """Room for what the stage before sends."""
        if not self.decoder:
            raise NotImplementedError("later stages of an encoder-decoder cannot be rehearsed")
        if not engine.is_pipe_partitioned:
            return engine._allocate_or_extend_buffers(0, self.shape, self.dtype)
        said = self.partition()
        part = said[-self.tp + self.tp_rank] - said[-self.tp - 1 + self.tp_rank]
        return (
            engine._allocate_or_extend_buffers(0, [len(said)], torch.int64),
            engine._allocate_or_extend_buffers(1, [part], self.dtype),
        )


def main() -> None:
    """A rehearsal for each line of stdin."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # DeepSpeed prints
    warnings.simplefilter("ignore")  # of DeepSpeed's on addresses that a fake tensor has not got
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1)], fused=True)  # imports what a first optimizer imports
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            _answer(point_from_json(json.dumps(asked["point"])), asked["rank"], answers)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"the rehearsal of rank {asked['rank']} failed")


def _answer(point: Point, rank: int, answers: TextIO) -> NoReturn:
    code = 1
    try:
        answers.write(json.dumps(dataclasses.asdict(rehearsed(point, rank))) + "\n")
        answers.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
