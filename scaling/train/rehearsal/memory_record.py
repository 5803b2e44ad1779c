"""Track a rank's memory allocation by allocation: peaks by phase, and the code that holds them."""

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

_BLOCK = 512  # bytes; torch's CUDA allocator hands out multiples of it
_DEVICE_OF = torch.ops.prim.device.default
# Packages whose code explains an allocation; of torch's own those of its engine.
_EXPLAINING = ({"scaling", *ENGINES} - {"torch"}, {"optim", "fsdp", "pipelining"})
_WRAPPERS = ("memory_record", "rehearsal", "standins", "waits")  # modules that explain nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The bytes that one line of code, run in one phase, holds at the peak."""

    made_by: str
    phase: str
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Bytes at the peak of a phase, and when it last ended."""

    peak_bytes: int
    live_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one rank as torch's allocator would count them; the largest of `owners` first.

    `spans` has the peak bytes of each phase, and of three parts of backward: the head, the layers
    but the first, and the first layer, which is the last one. A span's peak is a line in the number
    of layers.
    """

    peak_bytes: int
    phases: dict[str, Phase]
    spans: dict[str, int]
    owners: list[Owner]


class MemoryRecord(TorchDispatchMode):
    """Records each storage when an operator first returns it and when it is freed.

    It sees tensors only, neither NCCL's memory nor a kernel's workspace. A tensor that a side
    stream still uses counts as freed at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = PHASES[0]
        self.part = ""  # of a backward
        self._paused = False
        self._live: dict[int, tuple[int, int]] = {}  # storage: entry, bytes
        self._made: dict[int, tuple[str, str]] = {}  # entry: code and phase
        self._entries: list[tuple[str, str, int, int]] = []  # phase, part, entry, bytes or -bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator, then record what it returns."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # a DTensor calls the same operator on its local tensor
        if func is _DEVICE_OF and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # more than half of all calls, none of which makes a tensor
        out = func(*args, **(kwargs or {}))
        if self._paused:
            return out
        for leaf in (out,) if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(leaf, Tensor) and _device_of(leaf).type != "meta":
                self._record_new(leaf.untyped_storage(), func.overloadpacket.__name__)
        return out

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While active, record tensors, and storages that change their size, as FSDP2's do."""
        resize = torch.UntypedStorage.resize_
        propagate = ShardingPropagator._propagate_tensor_meta_non_cached

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in self._live:
                self._record_freed(storage._cdata)
                self._record(storage, "resize_")
            return result

        def propagated(*args: Any) -> Any:
            self._paused = True  # a DTensor's operators are tried on temporary tensors
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
        """Wrap a call in a phase of its own; the previous phase continues after it."""

        def called(*args: Any, **kwargs: Any) -> Any:
            before, self.phase = self.phase, phase
            try:
                return call(*args, **kwargs)
            finally:
                self.phase = before

        return called

    def memory(self) -> Memory:
        """The peaks until now."""
        live = peak = peak_index = 0
        peaks, live_at_end, spans = Counter[str](), Counter[str](), Counter[str]()
        for index, (phase, part, _, size) in enumerate(self._entries):
            live += size
            live_at_end[phase] = live
            peaks[phase] = max(peaks[phase], live)
            spans[part + phase] = max(spans[part + phase], live)
            if live > peak:
                peak, peak_index = live, index
        return Memory(
            peak_bytes=peak,
            phases={
                phase: Phase(peak_bytes=peaks[phase], live_bytes=live_at_end[phase])
                for phase in PHASES
                if phase in peaks
            },
            spans=dict(spans),
            owners=self._owners(peak_index),
        )

    def _record_new(self, storage: torch.UntypedStorage, operator: str) -> None:
        if storage._cdata not in self._live and storage.nbytes():
            self._record(storage, operator)
            weakref.finalize(storage, self._record_freed, storage._cdata)

    def _record(self, storage: torch.UntypedStorage, operator: str) -> None:
        entry = len(self._entries)
        size = math.ceil(storage.nbytes() / _BLOCK) * _BLOCK
        self._live[storage._cdata] = entry, size
        self._made[entry] = (f"{_calling_line()} {operator}", self.phase)
        self._entries.append((self.phase, self._part, entry, size))

    def _record_freed(self, key: int) -> None:
        entry, size = self._live.pop(key)
        self._entries.append((self.phase, self._part, entry, -size))

    @property
    def _part(self) -> str:
        return self.part if self.phase == "backward" else ""

    def _owners(self, until: int) -> list[Owner]:
        """The living tensors after entry `until`, by code and phase, the largest first."""
        held: dict[int, int] = {}
        for *_, entry, size in self._entries[: until + 1]:
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
    """A fake tensor's pretended device, read without the operator that `.device` would run."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


def _calling_line() -> str:
    """The nearest line of the project's or an engine's code, as folder/file:line."""
    frame = sys._getframe(3)
    while frame is not None:
        if _explains(frame.f_globals["__name__"]):
            path = Path(frame.f_code.co_filename)
            return f"{path.parent.name}/{path.name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


@functools.cache
def _explains(module: str) -> bool:
    """Whether a module of this name explains an allocation, wherever its file lies."""
    package, *inner = module.split(".")
    packages, parts_of_torch = _EXPLAINING
    known = package in packages or (package == "torch" and not parts_of_torch.isdisjoint(inner))
    return known and module.split(".")[-1] not in _WRAPPERS
