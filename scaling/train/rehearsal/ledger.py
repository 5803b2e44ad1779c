"""What lives in a rank's memory, allocation by allocation: peaks by phase, and whose they are."""

import contextlib
import functools
import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scaling.layout.engines import ENGINES

PHASES = ("build", "forward", "backward", "optimizer")

_BLOCK = 512  # bytes: torch's allocator on CUDA hands out multiples of it
_WHERE = torch.ops.prim.device.default
# Folders whose lines explain an allocation; of torch those of its engine.
_OURS = {"scaling", "optim", "fsdp", "pipelining", *ENGINES} - {"torch"}
_OWN = ("ledger", "rehearsal", "standins", "waits")  # whose wrappers explain nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What one line of code, in one phase, holds at the peak."""

    made_by: str
    phase: str
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Bytes that lived at most during a phase, and when it was last left."""

    peak_bytes: int
    live_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one rank as torch's allocator would count them; `owners` from the largest."""

    peak_bytes: int
    phases: dict[str, Phase]
    owners: list[Owner]


class Ledger(TorchDispatchMode):
    """Writes down each storage when an operator first returns it, and when it is freed.

    It sees tensors, so neither NCCL's memory nor a kernel's workspace, and a tensor that a side
    stream still uses is freed at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = PHASES[0]
        self._paused = False
        self._live: dict[int, tuple[int, int]] = {}  # by storage: entry, bytes
        self._made: dict[int, tuple[str, str]] = {}  # by entry: who, in which phase
        self._entries: list[tuple[str, int, int]] = []  # phase, entry that it begins or ends, bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator, then look at what it returns."""
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # it calls the same operator on what this rank holds
        if func is _WHERE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # more than half of all calls, and none makes a tensor
        out = func(*args, **(kwargs or {}))
        if self._paused:
            return out
        for leaf in (out,) if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(leaf, Tensor) and _device_of(leaf).type != "meta":
                self._see(leaf.untyped_storage(), func.overloadpacket.__name__)
        return out

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within, tensors are written down; also storage that changes its size, as FSDP2's does."""
        resize = torch.UntypedStorage.resize_
        propagate = ShardingPropagator._propagate_tensor_meta_non_cached

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in self._live:
                self._freed(storage._cdata)
                self._write(storage, "resize_")
            return result

        def propagated(*args: Any) -> Any:
            self._paused = True  # a DTensor's operators are tried on tensors that nobody keeps
            try:
                return propagate(*args)
            finally:
                self._paused = False

        with (
            mock.patch.object(torch.UntypedStorage, "resize_", resized),
            mock.patch.object(ShardingPropagator, propagate.__name__, propagated),
            self,
        ):
            yield

    def during(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call as a phase of its own, after which the one before goes on."""

        def called(*args: Any, **kwargs: Any) -> Any:
            before, self.phase = self.phase, phase
            try:
                return call(*args, **kwargs)
            finally:
                self.phase = before

        return called

    def memory(self) -> Memory:
        """What was at most, until now."""
        live = peak = at_peak = 0
        peaks, left = Counter[str](), Counter[str]()
        for index, (phase, _, size) in enumerate(self._entries):
            live += size
            left[phase] = live
            peaks[phase] = max(peaks[phase], live)
            if live > peak:
                peak, at_peak = live, index
        return Memory(
            peak_bytes=peak,
            phases={
                phase: Phase(peak_bytes=peaks[phase], live_bytes=left[phase])
                for phase in PHASES
                if phase in peaks
            },
            owners=self._owners(at_peak),
        )

    def _see(self, storage: torch.UntypedStorage, operator: str) -> None:
        if storage._cdata not in self._live and storage.nbytes():
            self._write(storage, operator)
            weakref.finalize(storage, self._freed, storage._cdata)

    def _write(self, storage: torch.UntypedStorage, operator: str) -> None:
        entry, size = len(self._entries), math.ceil(storage.nbytes() / _BLOCK) * _BLOCK
        self._live[storage._cdata] = entry, size
        self._made[entry] = (f"{_maker()} {operator}", self.phase)
        self._entries.append((self.phase, entry, size))

    def _freed(self, key: int) -> None:
        entry, size = self._live.pop(key)
        self._entries.append((self.phase, entry, -size))

    def _owners(self, until: int) -> list[Owner]:
        held: dict[int, int] = {}
        for _, entry, size in self._entries[: until + 1]:
            if size < 0:
                del held[entry]
            elif size:
                held[entry] = size
        tensors, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for entry, size in held.items():
            tensors[self._made[entry]] += 1
            sizes[self._made[entry]] += size
        return [
            Owner(made_by=made_by, phase=phase, tensors=tensors[made_by, phase], bytes=size)
            for (made_by, phase), size in sizes.most_common()
        ]


def _device_of(tensor: Tensor) -> torch.device:
    """Where it stands for being; to ask a fake tensor for its device is an operator."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


def _maker() -> str:
    """The nearest line of this project's or an engine's code, as folder/file:line."""
    frame = sys._getframe(3)
    while frame is not None:
        name = _name_of(frame.f_code.co_filename)
        if name is not None:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


@functools.cache
def _name_of(file: str) -> str | None:
    path = Path(file)
    explains = not {*path.parts}.isdisjoint(_OURS) and path.stem not in _OWN
    return f"{path.parent.name}/{path.name}" if explains else None
