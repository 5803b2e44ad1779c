"""Rehearse one rank's training steps without its device, its numbers and the other ranks.

The unchanged engine runs on torch's fake tensors, which have a shape and no storage, in a fake
process group whose collectives return at once. So a laptop can run the steps of any rank of any
layout, and count the rank's waits for the device and its memory.

    echo '[{"point": {...}, "rank": 0}]' | python -m scaling.train.rehearsal.rehearsal

Each line of stdin lists points and ranks, and is answered by a line that lists their rehearsals.
torch and the engines keep state in globals, so each rehearsal is a process of its own, forked from
one that has imported them. Those of a line run at once, as far as there are processors.

Every rank of every layout can be rehearsed except those that limits.py names. If a router assigns
tokens by position, the counts of each expert are known, and are answered where a rank would read
them.
"""

import contextlib
import functools
import gc
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # lets collectives take fake tensors
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from scaling.layout.engines import ENGINES, engine_module
from scaling.study.point import Point, point_from_json
from scaling.train.data import MicroBatch
from scaling.train.engines.trainer import LAYERS, Trainer, build, make_blueprint
from scaling.train.parallel.groups import Groups
from scaling.train.rehearsal.limits import rehearsal_refusal
from scaling.train.rehearsal.memory_record import MemoryRecord
from scaling.train.rehearsal.standins import stand_ins
from scaling.train.rehearsal.waits import Waits, known_expert_counts

_DEVICE = torch.device("cpu")  # autograd refuses tensors of an absent CUDA
_AT_ONCE = 16  # rehearsals at most: each needs about half a GiB
_STEPS = 3  # ZeRO-3 prefetches from the second on, and timers may begin with the third


def rehearse(point: Point, rank: int, *, steps: int = _STEPS) -> dict[str, Any]:
    """Build the engine of this rank and train a few steps; see `run_steps`.

    The process stays this rank and cannot rehearse another. Memory needs two steps: the second has
    the optimizer's states from its beginning.

    Raises:
        ValueError: the point cannot be rehearsed; it says why.
    """
    layout, reason = point.layout, rehearsal_refusal(point)
    if reason is not None:
        raise ValueError(reason)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(layout.world_size)}
    waits = Waits()
    engine = engine_module(layout.engine, "rehearsal")
    engine.act_like_cuda(waits.note)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    engine_module(layout.engine, "engine").join(0)
    groups = Groups(rank, layout, timeout_s=point.time_limit_s)
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        stand_ins(),
        known_expert_counts(point, groups, waits.note),
        engine.patched(point, groups, waits.note),
        waits.counting(),
    ):
        return run_steps(point, groups, waits, steps=steps)


def run_steps(point: Point, groups: Groups, waits: Waits, *, steps: int = _STEPS) -> dict[str, Any]:
    """Build and train on tensors of any kind, in this process's process group.

    Returns:
        `waits`: the host's waits for the device in the last step, by kind: draining it
        (`synchronize`) or reading a tensor (`item`, `bool`, ...). `beats`: the messages while
        building. `memory`: of the build and all steps (`MemoryRecord.memory`).
    """
    beats: list[str] = []
    record = MemoryRecord()
    with record.watching():
        plan = make_blueprint(point, groups, _DEVICE)
        trainer = build(plan, groups, beats.append)
        with _phases(point.layout.engine, trainer, record):
            for _ in range(steps):
                waits.clear()
                trainer.step(_batches(point))
    return {"beats": beats, "waits": dict(waits), "memory": record.memory()}


@contextlib.contextmanager
def _phases(engine: str, trainer: Trainer, record: MemoryRecord) -> Iterator[None]:
    """Set the record's phase: forward until backward begins, until forward or the optimizer."""

    def enter(phase: str, part: str = "") -> None:
        record.phase, record.part = phase, part

    def entering_part(part: str) -> Callable[..., None]:
        def watch_gradients(_: Any, __: Any, out: Any) -> None:
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    tensor.register_hook(lambda _: enter("backward", part))

        return watch_gradients

    def entering_backward(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            enter("backward")
            return call(*args, **kwargs)

        return wrapper

    wrap_optimizer = engine_module(engine, "rehearsal").wrap_optimizer
    wrap_optimizer(trainer, functools.partial(record.during, "optimizer"))
    module = trainer.engine.module
    for part in module if isinstance(module, torch.nn.ModuleList) else [module]:
        part.register_forward_pre_hook(lambda *_: enter("forward"))
        layers = [layer for layer in part.modules() if isinstance(layer, LAYERS)]
        for layer, name in zip(layers[:1] + layers[-1:], ("end of ", "layers' "), strict=False):
            layer.register_forward_hook(entering_part(name), prepend=True)
    with contextlib.ExitStack() as stack:
        for name in ("backward", "grad"):  # schedules that split the backward call `grad`
            call = entering_backward(getattr(torch.autograd, name))
            stack.enter_context(mock.patch.object(torch.autograd, name, call))
        yield


def _batches(point: Point) -> list[MicroBatch]:
    layout = point.layout
    tokens = (layout.micro_batch_size, layout.seq_length // layout.cp)
    pairs = (tokens[0], 2, tokens[1]) if point.shape.family == "t5" else tokens
    return [
        (torch.zeros(pairs, dtype=torch.int64), torch.zeros(tokens, dtype=torch.int64))
        for _ in range(layout.gradient_accumulation_steps)
    ]


def main() -> None:
    """Answer each line of stdin with the rehearsals that it lists."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # an engine may print
    warnings.simplefilter("ignore")  # about addresses, which fake tensors do not have
    torch.set_num_threads(1)
    for name in ENGINES:
        for part in ("rehearsal", "engine"):
            engine_module(name, part)
    torch.optim.AdamW([torch.zeros(1)], fused=True)  # the first optimizer imports more modules
    gc.freeze()  # so that no child collects and copies these objects
    most = min(len(os.sched_getaffinity(0)), _AT_ONCE)
    for line in sys.stdin:
        requests, running = json.loads(line), 0
        with contextlib.ExitStack() as stack:
            texts = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in requests]
            for request, text in zip(requests, texts, strict=True):
                running = running if running < most else _waited(running)
                running += 1
                if not os.fork():
                    _answer(request, text)
            while running:
                running = _waited(running)
            for text in texts:
                text.seek(0)
            answers.write(f"[{', '.join(text.read() for text in texts)}]\n")
        answers.flush()


def _waited(running: int) -> int:
    """The number of rehearsals that run after one of them has ended."""
    if os.wait()[1]:
        sys.exit("a rehearsal failed")
    return running - 1


def _answer(request: dict[str, Any], text: TextIO) -> NoReturn:
    code = 1
    try:
        point = point_from_json(json.dumps(request["point"]))
        json.dump(rehearse(point, request["rank"], steps=request.get("steps", _STEPS)), text)
        text.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
